"""GET /v1/status and /v1/whoami: everything at a glance, and who asks.

A control plane tells of itself what it knows, and of the fleet what the leader knows.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from adapters.store.members import Member
from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.auth.callers import Caller
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from control_plane.leadership.leader_client import LeaderAway
from control_plane.status.status import Status

PATH = "/v1/status"

LEADER_WITHIN_S = 1.5
"""How long (s) the leader may take: while it does not answer is when people look."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows the fleet as this control plane sees it."""
    router = APIRouter(prefix="/v1", tags=["status"])

    @router.get("/status", responses=gives(Status, "The fleet as this control plane sees it."))
    async def status(caller: Viewer, request: Request) -> Response:
        """Who leads, every region, agent and arc, and how old each number is.

        Regions, agents and missing capacity are as the leader sees them; `fleet_problem` says why, where they are not.
        """
        own = control_plane.status()
        authority = control_plane.authority
        if authority is control_plane.member:
            return answer(own)
        if authority is None:
            return answer(msgspec.structs.replace(own, fleet_problem="no control plane leads"))
        return answer(await _with_fleet(control_plane, own, authority, request))

    @router.get("/whoami", responses=gives(Caller, "The caller."))
    async def who_am_i(caller: Viewer) -> Response:
        """Your name, role and regions, as the audit log will have them."""
        return answer(caller)

    return router


async def _with_fleet(control_plane: ControlPlane, own: Status, leader: Member, request: Request) -> Status:
    """Our status with the fleet as the leader sees it; with what we know of it where the leader cannot be asked."""
    credential = {"authorization": request.headers["authorization"]}
    client = request.client.host if request.client is not None else ""
    try:
        reply = await control_plane.link.ask(leader, "GET", PATH, credential, client=client, within_s=LEADER_WITHIN_S)
        if reply.status != 200:
            raise LeaderAway(f"it answers {reply.status}")
        its = msgspec.json.decode(reply.body, type=Status)
    except LeaderAway as away:
        return msgspec.structs.replace(own, fleet_problem=f"{leader.name} at {leader.url} leads: {away}")
    except msgspec.DecodeError:
        return msgspec.structs.replace(own, fleet_problem=f"{leader.name} at {leader.url} leads: another version")
    return msgspec.structs.replace(
        own, regions=its.regions, agents=its.agents, shortfalls=its.shortfalls, fleet_seen_by=its.name
    )
