"""`penstock tenant`: create, change, suspend and delete tenants, and show what is left of their budgets."""

from __future__ import annotations

from contextlib import suppress
from re import fullmatch
from typing import Annotated, Any, get_args

import typer

from control_plane.cli.api_client import ApiClient, ApiError
from control_plane.cli.budget_arguments import BudgetOption, budget_bodies
from control_plane.cli.command_options import (
    ChangeClient,
    OptionalReasonOption,
    ReadClient,
    ReasonOption,
    with_fleet_options,
)
from control_plane.cli.commands.operating import tenant_key_commands
from control_plane.cli.commands.operating.tenant_key_commands import NameArgument, keys_of, path_of
from control_plane.cli.error_output import UsageFault
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.tenant_view import budgets_table, tenant_view, tenants_table
from control_plane.page import Page
from control_plane.tenants.budget_view import BudgetList
from control_plane.tenants.refusals_resource import RefusalList
from control_plane.tenants.tenant_resource import TenantSource, TenantView
from penstock.policy.fields import Label

app = typer.Typer(no_args_is_help=True, help="Create and change tenants and their API keys.")
app.add_typer(tenant_key_commands.app, name="key")

PATH = "/v1/tenants"
ANY_STATE = {"if-match": "*"}

_LABEL: str = get_args(Label)[1].extra_json_schema["pattern"]

NoteOption = Annotated[str | None, typer.Option("--note", help="Free text for people.", show_default=False)]

RestoreOption = Annotated[
    bool, typer.Option("--restore", help="The tenant is a deleted one of the name, and has its files and jobs.")
]


@app.command()
@with_fleet_options
def budgets(api: ReadClient, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Show the budgets of a tenant and its keys: limits, what is left, and what each agent has of them."""
    found = api.request("GET", "/v1/budgets", params={"tenant": name}).decoded(BudgetList)
    print_as(output, found, lambda: budgets_table(found))


@app.command()
@with_fleet_options
def create(
    api: ChangeClient,
    name: NameArgument,
    tier: Annotated[str, typer.Option("--tier", help="Tier of the policy in force.", show_default=False)],
    budget: BudgetOption = None,
    note: NoteOption = None,
    restore: RestoreOption = False,
    reason: OptionalReasonOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a tenant with the rules of a tier. A repeated command changes nothing."""
    body: dict[str, Any] = {
        "tier": tier,
        "budgets": budget_bodies(budget or ()),
        "note": note or "",
        "restore": restore,
        "reason": reason,
    }
    # The name in the body is refused with a remedy where it is malformed; in the path it may be another path.
    is_valid = fullmatch(_LABEL, name) is not None
    made = _tenant(api, "PUT", path_of(name), body) if is_valid else _tenant(api, "POST", PATH, {"name": name, **body})
    print_as(output, made, lambda: tenant_view(made, ()))


@app.command("list")
@with_fleet_options
def list_(
    api: ReadClient,
    search: Annotated[str | None, typer.Option("--search", help="Only names that contain this text.")] = None,
    tier: Annotated[str | None, typer.Option("--tier", help="Only tenants of this tier.")] = None,
    source: Annotated[TenantSource | None, typer.Option("--source", help="Only tenants from this source.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the tenants of the policy and those that were created."""
    params = {"search": search, "tier": tier, "source": source, "limit": 500}
    found = api.listed(PATH, Page[TenantView], params)
    print_as(output, found, lambda: tenants_table(found))


@app.command()
@with_fleet_options
def show(api: ReadClient, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Show a tenant, its keys, what is left of its budgets, and why its requests were refused in the last hour."""
    # The tenants of an identity provider have no document: their tokens name them, with the name of the issuer.
    is_of_issuer = ":" in name
    tenant = None if is_of_issuer else api.request("GET", path_of(name)).decoded(TenantView)
    keys = [] if is_of_issuer else keys_of(api, name)
    refusals = api.request("GET", f"{path_of(name)}/refusals").decoded(RefusalList)
    budgets: BudgetList | None = None
    with suppress(ApiError):
        # Only a leader knows what is left, and all else is known without one.
        budgets = api.request("GET", "/v1/budgets", params={"tenant": name}).decoded(BudgetList)
    shown = {
        "tenant": tenant,
        "keys": keys,
        "budgets": None if budgets is None else budgets.budgets,
        "refusals": refusals.items,
        "other_refusals": refusals.others,
    }
    print_as(output, shown, lambda: tenant_view(tenant, keys, refusals, budgets))


@app.command()
@with_fleet_options
def change(
    api: ChangeClient,
    name: NameArgument,
    tier: Annotated[str | None, typer.Option("--tier", help="New tier.", show_default=False)] = None,
    budget: BudgetOption = None,
    no_budgets: Annotated[bool, typer.Option("--no-budgets", help="Remove the budgets of the tenant.")] = False,
    note: NoteOption = None,
    reason: OptionalReasonOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change tier, budgets or note of a tenant. --budget replaces all budgets of the tenant."""
    if no_budgets and budget:
        raise UsageFault("--budget and --no-budgets cannot be used together")
    budgets = budget_bodies(budget or ()) if budget or no_budgets else None
    given = {"tier": tier, "budgets": budgets, "note": note, "reason": reason}
    body = {field: value for field, value in given.items() if value is not None}
    changed = _tenant(api, "PATCH", path_of(name), body, ANY_STATE)
    print_as(output, changed, lambda: tenant_view(changed, ()))


@app.command()
@with_fleet_options
def suspend(api: ChangeClient, name: NameArgument, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
    """Suspend a tenant: agents refuse its requests within a second and end the open ones. Its keys stay."""
    suspended = _tenant(api, "POST", f"{path_of(name)}/suspend", {"reason": reason})
    print_as(output, suspended, lambda: tenants_table([suspended]))


@app.command()
@with_fleet_options
def resume(api: ChangeClient, name: NameArgument, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
    """End the suspension of a tenant."""
    resumed = _tenant(api, "POST", f"{path_of(name)}/resume", {"reason": reason})
    print_as(output, resumed, lambda: tenants_table([resumed]))


@app.command()
@with_fleet_options
def delete(api: ChangeClient, name: NameArgument, reason: ReasonOption, output: OutputOption = Output.TABLE) -> None:
    """Delete a tenant and revoke its keys for good. Admins only."""
    response = api.request("DELETE", path_of(name), params={"reason": reason}, headers=ANY_STATE, changes=True)
    deleted = response.decoded(TenantView)
    print_as(output, deleted, lambda: f"deleted {deleted.name}")


app.command("revoke-key")(tenant_key_commands.revoke_key)
app.command("revoked-keys")(tenant_key_commands.revoked_keys)
app.command("lift-key")(tenant_key_commands.lift_key)


def _tenant(
    api: ApiClient, method: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> TenantView:
    return api.request(method, path, body=body, headers=headers, changes=True).decoded(TenantView)
