"""`/v1/status` and `/v1/whoami`: the state of the fleet, and the identity of the caller.

A follower reports its own state and adds the leader's view of regions and agents.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from adapters.access.callers import Caller
from adapters.store.members import Member
from control_plane.api.openapi import returns
from control_plane.api.responses import json_response
from control_plane.auth.required_roles import Viewer
from control_plane.leadership.leader_client import LeaderClient, LeaderUnavailable
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.status.status import Status
from control_plane.status.status_reporter import StatusReporter

PATH = "/v1/status"

LEADER_TIMEOUT_S = 1.5
"""Time limit (s) of the request to the leader. Short: the status matters most when the leader does not answer."""


def routes(reporter: StatusReporter, elector: LeaderElector, link: LeaderClient) -> APIRouter:
    """Return the router of the status."""
    router = APIRouter(prefix="/v1", tags=["status"])

    @router.get("/status", responses=returns(Status, "The fleet as this control plane sees it."))
    async def status(caller: Viewer, request: Request) -> Response:
        """Get the state of the fleet: leader, regions, agents and arcs, with the age of each value.

        Regions, agents and capacity shortfalls are the leader's view; if it is not available, `fleet_problem` states
        why.
        """
        own = reporter.status()
        authority = elector.authority
        if authority is elector.member:
            return json_response(own)
        if authority is None:
            return json_response(msgspec.structs.replace(own, fleet_problem="no control plane leads"))
        return json_response(await _with_leader_view(link, own, authority, request, caller))

    @router.get("/whoami", responses=returns(Caller, "The caller."))
    async def who_am_i(caller: Viewer) -> Response:
        """Get the name, role and regions of the caller."""
        return json_response(caller)

    return router


async def _with_leader_view(
    link: LeaderClient, own: Status, leader: Member, request: Request, caller: Caller
) -> Status:
    """Return the own status with the leader's view of the fleet, or with `fleet_problem` if there is none."""
    client = request.client.host if request.client is not None else ""
    try:
        reply = await link.forward(leader, "GET", PATH, {}, caller=caller, client=client, within_s=LEADER_TIMEOUT_S)
        if reply.status != 200:
            raise LeaderUnavailable(f"it answers with status {reply.status}")
        theirs = msgspec.json.decode(reply.body, type=Status)
    except LeaderUnavailable as error:
        return msgspec.structs.replace(own, fleet_problem=f"{leader.name} at {leader.url} leads: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = f"{leader.name} at {leader.url} leads: it runs another version"
        return msgspec.structs.replace(own, fleet_problem=problem)
    return msgspec.structs.replace(
        own,
        regions=theirs.regions,
        agents=theirs.agents,
        shortfalls=theirs.shortfalls,
        fleet_seen_by=theirs.name,
    )
