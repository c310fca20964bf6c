"""GET /v1/status and /v1/whoami: everything at a glance, and who asks."""

from __future__ import annotations

from fastapi import APIRouter, Response

from control_plane.access.callers import Caller
from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.api.openapi import gives
from control_plane.daemon import ControlPlane
from control_plane.status import Status


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows the fleet as this control plane sees it."""
    router = APIRouter(prefix="/v1", tags=["status"])

    @router.get("/status", responses=gives(Status, "The fleet as this control plane sees it."))
    async def status(caller: Viewer) -> Response:
        """Who leads, every region, agent and arc, and how old each number is."""
        return answer(control_plane.status())

    @router.get("/whoami", responses=gives(Caller, "The caller."))
    async def who_am_i(caller: Viewer) -> Response:
        """Your name, role and regions, as the audit log will have them."""
        return answer(caller)

    return router
