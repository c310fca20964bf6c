"""Amounts that an agent may use of a budget for which it has no lease yet, so that a first request need not wait.

While no agent uses a budget, each agent may use an equal part. Once the leader has announced that an agent uses it,
the others may use a small part of a reserve, where the budget is large enough. The agents and the leader compute both
by the same rules: the leader does not grant what an agent without a lease may still use.
"""

from __future__ import annotations

from math import inf
from typing import Final
from zlib import crc32

import msgspec

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import MONEY, BudgetKey

RESERVE: Final = 0.03
"""Part of a budget that is kept for agents that do not use it."""

MONEY_OPENING: Final = 0.05
"""Part of a budget of money that agents without leases may use together. Small, since it does not refill."""

WHOLE: Final = frozenset((BudgetUnit.REQUESTS, BudgetUnit.CONCURRENT_REQUESTS))
"""Units of which a request takes one."""

_SMALLEST: Final = {
    BudgetUnit.REQUESTS: 1.0,
    BudgetUnit.CONCURRENT_REQUESTS: 1.0,
    BudgetUnit.INPUT_TOKENS: 2_000.0,
    BudgetUnit.OUTPUT_TOKENS: 1_000.0,
    BudgetUnit.TOKENS: 3_000.0,
    BudgetUnit.GPU_SECONDS: 1.0,
}
"""Smallest useful part of the reserve by unit: about one request. Money has no reserve: it would stay unused."""


class AgentRank(msgspec.Struct, frozen=True):
    """The place of an agent among the agents that a budget covers."""

    rank: int
    """Number of the agent in the order of names, from 0."""
    agents: int
    """Number of the agents, this one included."""


def whole(budget: Budget) -> float:
    """Return the amount of a budget that can be used at once: the burst of one that refills, else the limit."""
    if budget.unit is BudgetUnit.CONCURRENT_REQUESTS or budget.unit in MONEY:
        return budget.limit
    return budget.largest_burst


def opening_part(key: BudgetKey, budget: Budget, place: AgentRank) -> float:
    """Return the amount that an agent may use of a budget that no agent uses: an equal part, whole for requests.

    The whole parts of all agents add up to the budget; the agents with the larger ones differ among budgets.
    """
    amount = whole(budget)
    if budget.unit in MONEY:
        return amount * MONEY_OPENING / place.agents
    if budget.unit not in WHOLE:
        return amount / place.agents
    turn = (place.rank + crc32(f"{key.tenant}/{key.key_id}/{key.unit}".encode())) % place.agents
    return float(int(amount * (turn + 1) / place.agents) - int(amount * turn / place.agents))


def reserved_part(budget: Budget, agents: int) -> float:
    """Return the amount that an agent without a lease may use of a budget that other agents use."""
    part = whole(budget) * RESERVE / agents
    if budget.unit in WHOLE:
        part = float(int(part))
    return part if part >= _SMALLEST.get(budget.unit, inf) else 0.0
