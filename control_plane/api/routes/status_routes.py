"""`/v1/status`, `/v1/history` and `/v1/whoami`: the state of the fleet, its last 15 minutes, and the caller."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from adapters.access.callers import Role
from control_plane.api.openapi import returns
from control_plane.api.responses import json_response, large_response
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_status import FleetStatus
from control_plane.status.status import Status
from control_plane.status.status_history import RecentHistory, StatusHistory


class CallerView(msgspec.Struct, frozen=True):
    """The caller, as the page and the command line show it."""

    name: str
    role: Role
    regions: frozenset[str] | None
    """Regions that the caller may change; None for all, and for resources of the whole fleet."""


def routes(fleet: FleetStatus, history: StatusHistory) -> APIRouter:
    """Return the router of the status."""
    router = APIRouter(prefix="/v1", tags=["status"])

    @router.get("/status", responses=returns(Status, "The fleet as this control plane sees it."))
    async def status(
        caller: Viewer,
        request: Request,
        agents: Annotated[bool, Query(description="Whether to list the agents and their peers.")] = True,
    ) -> Response:
        """Get the state of the fleet: leader, regions, agents and arcs, with the age of each value.

        Regions, agents and capacity shortfalls are the leader's view; if the leader is unavailable, `fleet_problem`
        states the reason.
        """
        client = request.client.host if request.client is not None else ""
        found = await fleet.read(caller, client, agents=agents)
        return await large_response(lambda: found)

    @router.get("/history", responses=returns(RecentHistory, "Samples of each 10 s."))
    async def recent(
        caller: Viewer,
        region: Annotated[
            str | None, Query(max_length=128, description="The series of this region, also by pool.")
        ] = None,
    ) -> Response:
        """Get the last 15 minutes as the leader has seen them: demand, load, waiting requests, attained objectives.

        Without a region: of the fleet by model, and of each region. A new leader begins with an empty history; for
        longer ones use Prometheus.
        """
        return await large_response(history.prepared(region))

    @router.get("/whoami", responses=returns(CallerView, "The caller."))
    async def who_am_i(caller: Viewer) -> Response:
        """Get the name, role and regions of the caller."""
        return json_response(CallerView(caller.name, caller.role, caller.regions))

    return router
