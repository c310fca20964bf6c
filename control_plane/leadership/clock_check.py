"""Whether other processes accept what this control plane writes now: the clock must agree with theirs."""

from __future__ import annotations

from collections.abc import Callable

from control_plane.leadership.leader_client import LeaderClient
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.planning.fleet_snapshot import FleetSnapshot
from penstock.fleet.agent_clocks import MAX_DIFFERENCE_S, clock_difference_s


class ClockCheck:
    """Compares the clock with those of the agents that report to the leader or, at a follower, with the leader's.

    Args:
        elector: the leadership of this control plane.
        fleet: the snapshot of agents' reports.
        clock: the clock of this control plane: Unix time (s).
        leader: asks the leader for its time.
    """

    def __init__(
        self, elector: LeaderElector, fleet: FleetSnapshot, clock: Callable[[], float], leader: LeaderClient
    ) -> None:
        self._elector = elector
        self._fleet = fleet
        self._clock = clock
        self._leader = leader

    def difference_to_agents_s(self) -> float:
        """Return the time (s) by which the clock is ahead of those of most agents; 0 if no agent reports here."""
        return clock_difference_s(self._fleet.snapshot.agents.values(), self._clock())

    async def problem(self) -> str:
        """Return why others would ignore what this control plane writes; empty if the clocks agree, or no other clock
        is known."""
        leader = self._elector.authority
        if leader is None or leader is self._elector.member:
            other, ahead_s = self._agents(), self.difference_to_agents_s()
        else:
            other, ahead_s = f"the leader, {leader.name}", await self._leader.clock_difference_s(leader)
        if abs(ahead_s) <= MAX_DIFFERENCE_S:
            return ""
        state = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
        return f"the clock of {self._elector.member.name} is {state} that of {other}"

    def _agents(self) -> str:
        names = [f"{region}/{name}" for region, name in self._fleet.snapshot.agents]
        return f"the only agent, {names[0]}" if len(names) == 1 else "most agents"
