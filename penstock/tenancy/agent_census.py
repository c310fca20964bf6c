"""The agents among which budgets are divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.tenancy.opening_share import Place


class AgentCensus:
    """The registered agents, and those of them that a new leader has not heard of.

    Args:
        unheard_until: time (s, monotonic) at which the leases of an earlier leader have ended.
    """

    def __init__(self, unheard_until: float) -> None:
        self.unheard_until = unheard_until
        self.unheard: set[str] = set()
        """Agents that were registered when the leader took office, and have had no exchange with it."""
        self._regions: dict[str, str] = {}
        self._covered: dict[str, dict[str, int]] = {"": {}}
        """Rank of each agent, by region; "" for the fleet."""
        self._is_first = True

    def set_agents(self, agents: Mapping[str, str]) -> bool:
        """Use these agents: names in the fleet, with their regions. Returns whether they have changed."""
        if self._is_first:
            self._is_first = False
            self.unheard = {agent for agent in agents if agent not in self._regions}
        elif agents == self._regions:
            return False
        self.unheard &= agents.keys()
        self._regions = dict(agents)
        self._covered = {"": {}}
        for agent in sorted(agents):
            for region in ("", agents[agent]):
                ranks = self._covered.setdefault(region, {})
                ranks[agent] = len(ranks)
        return True

    def hear(self, agent: str) -> bool:
        """Record an exchange of an agent. Returns whether the leader has heard of all agents by it."""
        was_last = self.unheard == {agent}
        self.unheard.discard(agent)
        return was_last

    def is_registered(self, agent: str) -> bool:
        """Whether an agent is registered."""
        return agent in self._regions

    def count(self, region: str) -> int:
        """Return the number of agents of a region, or of the fleet (""); at least 1."""
        return max(1, len(self.covered(region)))

    def covered(self, region: str) -> Sequence[str]:
        """Return the agents of a region, or of the fleet ("")."""
        return tuple(self._covered.get(region, ()))

    def place(self, agent: str, region: str) -> Place:
        """Return the place of an agent in a region, or in the fleet ("")."""
        return Place(self._covered.get(region, {}).get(agent, 0), self.count(region))

    @property
    def unheard_part(self) -> float:
        """Part of the agents that the leader has not heard of."""
        return len(self.unheard) / self.count("")
