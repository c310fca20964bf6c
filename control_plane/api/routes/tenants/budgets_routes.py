"""`/v1/budgets`: the budgets of a tenant, what is left of them, and how they are divided among agents.

Only the leader divides budgets, so other control planes forward these requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response

from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, json_response
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.budget_leader import BudgetLeader
from control_plane.tenants.budget_view import BudgetList, budget_list
from penstock.tenancy.tenant_record import TenantRecord

PATH = "/v1/budgets"


def routes(leader: BudgetLeader, view: FleetView, record_of: Callable[[str], TenantRecord | None]) -> APIRouter:
    """Return the router of budgets.

    Args:
        record_of: returns the record of a created tenant.
    """
    router = APIRouter(tags=["tenants"])

    @router.get(PATH, responses=returns(BudgetList, "The budgets of the tenant and its keys."))
    async def budgets(
        caller: Viewer,
        tenant: Annotated[str, Query(max_length=128, description="Name of the tenant.")],
    ) -> Response:
        """List the budgets of a tenant and its keys: the limits, what is left, and what each agent has of them."""
        policy = view.policy
        found = None if policy is None else budget_list(tenant, policy, record_of(tenant), leader.fleet)
        if found is None:
            raise Problem(404, f"there is no tenant {tenant!r}; GET /v1/tenants lists them")
        return json_response(found)

    return router
