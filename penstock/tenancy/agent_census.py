"""The agents among which budgets are divided."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.tenancy.opening_share import AgentRank


class AgentCensus:
    """The registered agents, and those of them that a new leader has not heard of.

    Args:
        unheard_until: time (s, monotonic) at which the leases of an earlier leader have ended.
    """

    def __init__(self, unheard_until: float) -> None:
        self.unheard_until = unheard_until
        self.unheard: set[str] = set()
        """Agents that were registered when the leader took office, and have had no exchange with it."""
        self._registered: Mapping[str, str] = {}
        self._regions: dict[str, str] = {}
        """Region of each registered agent, and of those that left a moment ago."""
        self._left_at: dict[str, float] = {}
        self._covered: dict[str, dict[str, int]] = {"": {}}
        """Rank of each agent, by region; "" for the fleet."""
        self._is_first = True
        self._heard: set[str] = set()
        """Agents that had an exchange before the registrations were known."""

    def set_agents(self, agents: Mapping[str, str], now: float, keep_s: float) -> bool:
        """Use these agents: names in the fleet, with their regions. Returns whether those that are counted changed.

        Args:
            now: monotonic clock (s).
            keep_s: time (s) for which an agent counts that is not registered any more: the parts of the others do not
                grow before its lease has ended.
        """
        for agent in self._regions:
            if agent in agents:
                self._left_at.pop(agent, None)
            else:
                self._left_at.setdefault(agent, now)
        for agent in [agent for agent, left_at in self._left_at.items() if now - left_at >= keep_s]:
            del self._left_at[agent]
        counted = dict(agents) | {agent: self._regions[agent] for agent in self._left_at}
        self._registered = agents
        if self._is_first:
            self._is_first = False
            self.unheard = agents.keys() - self._heard
        elif counted == self._regions:
            return False
        self.unheard &= counted.keys()
        self._regions = counted
        self._covered = {"": {}}
        for agent in sorted(counted):
            for region in ("", counted[agent]):
                ranks = self._covered.setdefault(region, {})
                ranks[agent] = len(ranks)
        return True

    def hear(self, agent: str) -> bool:
        """Record an exchange of an agent. Returns whether the leader has heard of all agents by it."""
        if self._is_first:
            self._heard.add(agent)
        was_last = self.unheard == {agent}
        self.unheard.discard(agent)
        return was_last

    def is_registered(self, agent: str) -> bool:
        """Whether an agent is registered."""
        return agent in self._registered

    def count(self, region: str) -> int:
        """Return the number of agents of a region, or of the fleet (""); at least 1."""
        return max(1, len(self.covered(region)))

    def covered(self, region: str) -> Collection[str]:
        """Return the agents of a region, or of the fleet ("")."""
        return self._covered.get(region, {})

    def place(self, agent: str, region: str) -> AgentRank:
        """Return the place of an agent in a region, or in the fleet ("")."""
        return AgentRank(self._covered.get(region, {}).get(agent, 0), self.count(region))

    @property
    def unheard_part(self) -> float:
        """Part of the agents that the leader has not heard of."""
        return len(self.unheard) / self.count("")
