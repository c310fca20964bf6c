"""GET /v1/plans: what agents are told to do."""

from __future__ import annotations

from fastapi import APIRouter, Response

from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.api.openapi import gives
from control_plane.daemon import ControlPlane
from penstock.plan import RegionPlan


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows plans."""
    router = APIRouter(prefix="/v1/plans", tags=["plans"])

    @router.get("/current", responses=gives(dict[str, RegionPlan], "Slices by region."))
    async def current(caller: Viewer) -> Response:
        """The plan in the store, one slice a region."""
        return answer(control_plane.plans)

    return router
