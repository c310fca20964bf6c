"""Tables of tenants, keys and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table

from control_plane.cli.budget_arguments import budget_texts
from control_plane.cli.output import table_of
from control_plane.tenants.budget_view import BudgetList
from control_plane.tenants.refusals_resource import OtherRefusalView, RefusalList, RefusalView
from control_plane.tenants.tenant_resource import NewTenantKey, RevokedKeyView, TenantKeyView, TenantView
from penstock.tenancy.exceeded_budget import amount_text


def tenants_table(tenants: Sequence[TenantView]) -> Table:
    """Return the table of a list of tenants."""
    table = table_of("name", "source", "tier", "data class", "keys", "state", "note", right=("keys",))
    for tenant in tenants:
        table.add_row(
            tenant.name,
            tenant.source.value,
            tenant.tier or "-",
            tenant.data_class or "-",
            str(tenant.keys),
            _state(tenant),
            tenant.note,
        )
    return table


def tenant_view(
    tenant: TenantView | None,
    keys: Sequence[TenantKeyView],
    refusals: RefusalList | None = None,
    budgets: BudgetList | None = None,
) -> RenderableType:
    """Return all that is known of one tenant; `tenant` is None for a tenant of an identity provider."""
    tables: list[RenderableType] = [] if tenant is None else [_fields(tenant)]
    if keys:
        tables.append(keys_table(keys))
    if budgets is not None and budgets.budgets:
        tables.append(budgets_table(budgets))
    if refusals is not None and refusals.items:
        tables += ["refusals of the last hour because of budgets:", refusals_table(refusals.items)]
    if refusals is not None and refusals.others:
        tables += ["requests of the last hour that were refused or ended for other reasons:", _others(refusals.others)]
    return Group(*tables or ["no budget is in use, and no request of the last hour was refused"])


def _fields(tenant: TenantView) -> Table:
    table = table_of("field", "value")
    for name, value in (
        ("name", tenant.name),
        ("source", tenant.source.value),
        ("tier", tenant.tier or "-"),
        ("data class", tenant.data_class or "-"),
        ("priority", str(tenant.priority)),
        ("state", _state(tenant)),
        ("budgets", "\n".join(budget_texts(tenant.budgets)) or "-"),
        ("budgets of the tier", "\n".join(budget_texts(tenant.tier_budgets)) or "-"),
        ("created", moment(tenant.created_at)),
        ("note", tenant.note),
    ):
        table.add_row(name, value)
    return table


def budgets_table(found: BudgetList) -> Table:
    """Return the table of what is used and left of budgets."""
    numbers = ("limit", "used", "left")
    table = table_of("budget", "of", "in", *numbers, "divided", title=f"Budgets of {found.tenant}", right=numbers)
    for budget in found.budgets:
        table.add_row(
            budget.unit.value,
            budget.key_id or "tenant",
            budget.region or "fleet",
            f"{budget.limit:.15g}",
            amount_text(budget.used),
            amount_text(budget.left),
            ", ".join(f"{part.agent} {amount_text(part.held)}" for part in budget.agents) or "not in use",
        )
    return table


def refusals_table(refusals: Sequence[RefusalView]) -> Table:
    """Return the table of refusals because of budgets."""
    table = table_of("agent", "budget", "refused", "last", "needed", "left", right=("refused", "needed", "left"))
    for each in refusals:
        holder = f" of key {each.key_id}" if each.key_id else ""
        table.add_row(
            f"{each.region}/{each.agent}",
            f"{each.unit.value} {each.limit:.15g} ({each.scope.value}){holder}",
            str(each.count),
            moment(each.last_at),
            amount_text(each.needed),
            amount_text(max(0.0, each.left)),
        )
    return table


def _others(refusals: Sequence[OtherRefusalView]) -> Table:
    table = table_of("agent", "reason", "requests", "last", right=("requests",))
    for each in refusals:
        table.add_row(f"{each.region}/{each.agent}", each.reason, str(each.count), moment(each.last_at))
    return table


def keys_table(keys: Sequence[TenantKeyView]) -> Table:
    """Return the table of keys."""
    table = table_of("key", "tenant", "state", "created", "expires", "revoked", "budgets", "note")
    for key in keys:
        table.add_row(
            key.id,
            key.tenant,
            key.state.value,
            moment(key.created_at),
            moment(key.expires_at),
            moment(key.revoked_at),
            "\n".join(budget_texts(key.budgets)) or "-",
            key.note,
        )
    return table


def new_key_view(made: NewTenantKey) -> RenderableType:
    """Return a key that was created, with the key itself."""
    shown = keys_table([made.view, *([made.replaced] if made.replaced is not None else [])])
    return Group(f"{made.key}\n(the key is not shown again)" if made.key else "(no key was made)", shown)


def revoked_keys_table(revoked: Sequence[RevokedKeyView]) -> Table:
    """Return the table of revoked keys."""
    table = table_of("id", "tenant", "at", "author", "reason")
    for key in revoked:
        table.add_row(key.id, key.tenant or "-", moment(key.revoked_at), key.author, key.reason)
    return table


def moment(at: float | None) -> str:
    """Return a Unix time (s) in UTC; `-` for none."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _state(tenant: TenantView) -> str:
    state = "suspended" if tenant.suspended else "active"
    return f"{state}; {tenant.problem}" if tenant.problem else state
