"""`/v1/tenants/{name}/refusals`: why requests of a tenant were refused."""

from __future__ import annotations

from fastapi import APIRouter, Response

from control_plane.api.openapi import returns
from control_plane.api.responses import json_response
from control_plane.api.routes.tenants.tenants_routes import TenantName
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.refusals_resource import RefusalList, refusals_of


def routes(view: FleetView) -> APIRouter:
    """Return the router of refusals."""
    router = APIRouter(prefix="/v1/tenants", tags=["tenants"])

    @router.get("/{name}/refusals", responses=returns(RefusalList, "The refusals, the newest first."))
    async def refusals(caller: Viewer, name: TenantName) -> Response:
        """List the budgets because of which requests of a tenant were refused in the last hour, by agent.

        Agents report the 50 budgets that were exceeded last.
        """
        return json_response(refusals_of(view.snapshot, name))

    return router
