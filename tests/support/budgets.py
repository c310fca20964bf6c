"""Budgets of agents without a leader."""

from __future__ import annotations

from collections.abc import Callable

from penstock.tenancy.agent_leases import AgentLeases, LeaseHolder
from regional_agent.tenants.tenant_budgets import TenantBudgets


class Leaderless:
    """An agent that knows no leader, and the number of agents."""

    def __init__(self, agents: Callable[[], int]) -> None:
        self._agents = agents

    def wake(self) -> None:
        """Do nothing, since there is no exchange."""

    def has_leader(self) -> bool:
        """Whether a leader is known: never."""
        return False

    def registered(self, region: str) -> int:
        """Return the number of agents."""
        return self._agents()


def equal_budgets(region: str = "eu-de", agents: Callable[[], int] = lambda: 1) -> TenantBudgets:
    """The budgets of one of `agents` agents, each of which uses an equal part."""
    leases = AgentLeases(LeaseHolder("a", region, 1), Leaderless(agents), 0.0)
    return TenantBudgets(region, 1, leases, lambda of: agents())
