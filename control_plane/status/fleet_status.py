"""The status of a control plane with the leader's view of the fleet, since agents report to the leader alone."""

from __future__ import annotations

import msgspec

from adapters.access.callers import Caller
from adapters.store.members import Member
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.leadership.leader_client import ForwardedRequest, LeaderClient, LeaderUnavailable
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.status.status import Status
from control_plane.status.status_reporter import StatusReporter

PATH = "/v1/status"

LEADER_TIMEOUT_S = 1.5
"""Time limit (s) of the request to the leader; short, because the status matters most if the leader is unavailable."""


class FleetStatus:
    """Reads the status of this control plane, and the state of the fleet from the leader.

    Args:
        reporter: returns the status of this control plane.
        elector: determines the leader.
        link: forwards requests to the leader.
    """

    def __init__(self, reporter: StatusReporter, elector: LeaderElector, link: LeaderClient) -> None:
        self._reporter = reporter
        self._elector = elector
        self._link = link

    async def read(self, caller: Caller, client: str, *, agents: bool = True) -> Status:
        """Return the status of this control plane with the leader's view of the fleet, else with `fleet_problem`.

        Args:
            caller: the caller that the request to the leader names.
            client: address of the caller.
            agents: whether to list the agents, which are the largest part of a large status.
        """
        own = await in_api_thread(self._reporter.prepared(agents=agents))
        leader = self._elector.authority
        if leader is self._elector.member:
            return own
        if leader is None:
            return msgspec.structs.replace(own, fleet_problem="no control plane leads")
        return await self._with_leader_view(own, leader, caller, client, PATH if agents else f"{PATH}?agents=false")

    async def _with_leader_view(self, own: Status, leader: Member, caller: Caller, client: str, target: str) -> Status:
        try:
            request = ForwardedRequest("GET", target, caller, client)
            reply = await self._link.forward(leader, request, LEADER_TIMEOUT_S)
            if reply.status != 200:
                raise LeaderUnavailable(f"it answers with status {reply.status}")
            theirs = await in_api_thread(lambda: msgspec.json.decode(reply.body, type=Status))
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
            outlook=theirs.outlook,
            fleet_seen_by=theirs.name,
        )
