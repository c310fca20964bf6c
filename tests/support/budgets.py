"""Budgets of agents without a leader."""

from __future__ import annotations

from collections.abc import Callable

from regional_agent.tenants.equal_parts import EqualParts
from regional_agent.tenants.tenant_budgets import TenantBudgets


def equal_budgets(region: str = "eu-de", agents: Callable[[], int] = lambda: 1) -> TenantBudgets:
    """The budgets of one of `agents` agents, each of which uses an equal part."""
    return TenantBudgets(region, 1, EqualParts(agents), lambda of: agents())
