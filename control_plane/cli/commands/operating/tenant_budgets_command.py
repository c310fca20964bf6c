"""`penstock tenant budgets`: show what is left of a tenant's budgets."""

from __future__ import annotations

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.commands.operating.tenant_key_commands import NameArgument
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.tenant_view import budgets_table
from control_plane.tenants.budget_view import BudgetList


@with_fleet_options
def budgets(api: ReadClient, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """Show the budgets of a tenant and its keys: limits, what is left, and what each agent has of them."""
    found = api.request("GET", "/v1/budgets", params={"tenant": name}).decoded(BudgetList)
    print_as(output, found, lambda: budgets_table(found))
