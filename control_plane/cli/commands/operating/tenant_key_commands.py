"""`penstock tenant key`: create, rotate, revoke and list the API keys of tenants.

`penstock tenant revoke-key`, `revoked-keys` and `lift-key` do so by the digest of a key, for keys of the policy too.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from adapters.files.plain_file import read_plain_file
from adapters.files.secret_file import MAX_FILE_BYTES
from control_plane.cli.api_client import ApiClient, ResponseLost
from control_plane.cli.budget_arguments import BudgetOption, budget_bodies
from control_plane.cli.command_options import (
    ChangeClient,
    ChangeOptions,
    OptionalReasonOption,
    ReadClient,
    ReasonOption,
    with_fleet_options,
)
from control_plane.cli.commands.operating.overrides_commands import seconds_of
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error, fail
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.tenant_view import keys_table, new_key_view, revoked_keys_table
from control_plane.page import Page
from control_plane.tenants.tenant_resource import NewTenantKey, RevokedKeyView, TenantKeyView

app = typer.Typer(no_args_is_help=True, help="Create, rotate and revoke the API keys of tenants.")

NameArgument = Annotated[str, typer.Argument(help="Name of the tenant.", show_default=False)]
IdArgument = Annotated[
    str, typer.Argument(help="Identifier of the key, as `tenant key list` prints it.", show_default=False)
]
ExpiresOption = Annotated[
    str, typer.Option("--expires", help="Duration until the key expires, such as 90d; `none`: never.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print the key alone.", show_default=False)]


@app.command()
@with_fleet_options
def create(
    api: ChangeClient,
    name: NameArgument,
    expires: ExpiresOption = "none",
    budget: BudgetOption = None,
    note: Annotated[str, typer.Option("--note", help="Free text for people, such as the user of the key.")] = "",
    reason: OptionalReasonOption = None,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key, and print it. The key cannot be printed again."""
    body = {
        "note": note,
        "expires_in_s": _seconds(expires, "--expires"),
        "budgets": budget_bodies(budget or ()),
        "reason": reason,
    }
    _print(_new_key(api, "create", name, f"{path_of(name)}/keys", body), output, quiet)


@app.command()
@with_fleet_options
def rotate(
    api: ChangeClient,
    name: NameArgument,
    id: IdArgument,
    overlap: Annotated[
        str | None, typer.Option("--overlap", help="Duration until the old key expires; 0s: at once. Default: 24h.")
    ] = None,
    expires: ExpiresOption = "none",
    reason: OptionalReasonOption = None,
    quiet: QuietOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create the successor of a key, and print it. Both keys are valid during the overlap."""
    body = {"expires_in_s": _seconds(expires, "--expires"), "reason": reason}
    if overlap is not None:
        body["overlap_s"] = _seconds(overlap, "--overlap")
    path = f"{path_of(name)}/keys/{quote(id, safe='')}/rotate"
    _print(_new_key(api, "rotate", name, path, body), output, quiet)


@app.command()
@with_fleet_options
def revoke(
    api: ChangeClient,
    name: NameArgument,
    id: IdArgument,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a key for good: agents refuse it within a second and end its open requests."""
    path = f"{path_of(name)}/keys/{quote(id, safe='')}"
    response = api.request("DELETE", path, params={"reason": reason}, changes=True)
    revoked = response.decoded(TenantKeyView)
    print_as(output, revoked, lambda: keys_table([revoked]))


@app.command("list")
@with_fleet_options
def list_(api: ReadClient, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """List the keys of a tenant, revoked and expired ones included."""
    keys = keys_of(api, name)
    print_as(output, keys, lambda: keys_table(keys))


def path_of(name: str) -> str:
    """Return the path of a tenant."""
    return f"/v1/tenants/{quote(name, safe='')}"


def keys_of(api: ApiClient, name: str) -> list[TenantKeyView]:
    """Return the keys of a tenant."""
    return api.listed(f"{path_of(name)}/keys", Page[TenantKeyView])


def _new_key(api: ApiClient, command: str, name: str, path: str, body: dict[str, Any]) -> NewTenantKey:
    try:
        made = api.request("POST", path, body=body, changes=True).decoded(NewTenantKey)
    except ResponseLost as lost:
        remedy = f"`penstock tenant key list {name}` shows whether a key was created; revoke it, and try again"
        fail(f"tenant key {command}", f"{lost}\n{remedy}", EXIT_FAILED)
    return made


def _print(made: NewTenantKey, output: Output, quiet: bool) -> None:
    if quiet and output is Output.TABLE:
        print(made.key, end="\n" if made.key else "", flush=True)
    else:
        print_as(output, made, lambda: new_key_view(made))


def _seconds(duration: str, option: str) -> float | None:
    seconds = seconds_of(duration, option)
    return None if isinstance(seconds, str) else seconds


PATH = "/v1/revoked-keys"


@with_fleet_options
def revoke_key(
    fleet: ChangeOptions,
    reason: ReasonOption,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key, one line.")] = None,
    digest: Annotated[str | None, typer.Option(help="SHA-256 of the key in hexadecimal, as in the policy.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke an API key: agents refuse it within a second and end its open requests, whatever policy is in force.

    Give --key-file or --digest. The key itself is not sent. The key of a tenant that was created with `tenant create`
    is revoked for good, as by `tenant key revoke`.
    """
    with exit_on_error("tenant revoke-key"):
        if (key_file is None) == (digest is None):
            raise UsageFault("give either --key-file or --digest")
        wanted = _digest_of(key_file) if key_file is not None else (digest or "").strip().lower()
        with fleet.connect() as api:
            body = {"key_digest": wanted, "reason": reason}
            revoked = api.request("POST", PATH, body=body, changes=True).decoded(RevokedKeyView)
        if revoked.tenant is None:
            typer.echo("penstock tenant revoke-key: no tenant has this key", err=True)
        print_as(output, revoked, lambda: revoked_keys_table([revoked]))


@with_fleet_options
def revoked_keys(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the revoked API keys."""
    found = api.listed(PATH, Page[RevokedKeyView])
    print_as(output, found, lambda: revoked_keys_table(found))


@with_fleet_options
def lift_key(
    api: ChangeClient,
    id: Annotated[str, typer.Argument(help="Identifier, as `tenant revoked-keys` prints it.", show_default=False)],
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Lift a revocation: the key is valid again where the policy in force has it. Admins only."""
    response = api.request("DELETE", f"{PATH}/{quote(id, safe='')}", params={"reason": reason}, changes=True)
    lifted = response.decoded(RevokedKeyView)
    print_as(output, lifted, lambda: revoked_keys_table([lifted]))


def _digest_of(key_file: Path) -> str:
    try:
        key = read_plain_file(key_file, MAX_FILE_BYTES).content.strip()
    except OSError as error:
        raise UsageFault(f"{key_file}: cannot read the key: {error.strerror}") from None
    if not key or len(key.split()) > 1:
        raise UsageFault(f"{key_file}: not an API key; write it alone on one line")
    return sha256(key).hexdigest()
