"""`penstock tenant budgets`: show what is left of a tenant's budgets."""

from __future__ import annotations

from rich.console import RenderableType

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.commands.operating.tenant_key_commands import NameArgument
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.tenants.budget_view import BudgetList

NUMBERS = ("limit", "used", "left")


@with_fleet_options
def budgets(api: ReadClient, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Show the budgets of a tenant and its keys: limits, what is left, and what each agent has of them."""
    found = api.request("GET", "/v1/budgets", params={"tenant": name}).decoded(BudgetList)
    print_as(output, found, lambda: _view(found))


def _view(found: BudgetList) -> RenderableType:
    table = table_of("budget", "of", "in", *NUMBERS, "divided", title=f"Budgets of {found.tenant}", right=NUMBERS)
    for budget in found.budgets:
        table.add_row(
            budget.unit.value,
            budget.key_id or "tenant",
            budget.region or "fleet",
            f"{budget.limit:g}",
            f"{budget.used:.4g}",
            f"{budget.left:.4g}",
            ", ".join(f"{part.agent} {part.held:.4g}" for part in budget.agents) or "not in use",
        )
    return table
