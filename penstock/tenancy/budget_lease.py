"""Budget leases: what agents and the leader send to each other about budgets.

An agent counts what it uses of a budget and spends only what the leader granted (`unspent`). An exchange reports the
counts of the budgets that the agent uses, and returns leases that add amounts. Numbers make lost, repeated and
reordered messages harmless:

- An agent has one exchange in flight. It applies the answer to its newest request only, and each request states the
  number of the newest answer that the agent applied. The leader thereby knows whether an earlier grant arrived; one
  that did not is void.
- Counts are totals since the counter began (`epoch`), so the leader charges the difference, however often it is sent.

A lease ends when the agent has had no answer for `LEASE_S` (`penstock/wire/budget_exchange.py`) since it sent its last
answered request: the agent drops what it holds, and continues at `rate_per_s` (`penstock/tenancy/without_leader.py`).
The leader waits longer than that before it grants the same amount to another agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit

MAX_USES: Final = 4_000
"""Maximum number of budgets in one exchange."""

_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Number = Annotated[int, Meta(ge=0, le=2**62)]


class BudgetKey(msgspec.Struct, frozen=True, array_like=True):
    """The name of one budget."""

    tenant: Annotated[str, Meta(max_length=256)]
    key_id: Annotated[str, Meta(max_length=64)]
    """Identifier of the key that the budget limits; "" for a budget of the tenant."""
    unit: BudgetUnit
    region: Annotated[str, Meta(max_length=63)]
    """Region in which the budget holds; "" for the fleet."""


class BudgetUse(msgspec.Struct, frozen=True, array_like=True):
    """What one agent uses of one budget (agent to leader)."""

    key: BudgetKey
    epoch: _Number
    """Number of the counter: the agent's epoch when the counter began. A counter of money that the agent read from its
    disk keeps its number; the agent then counts on with a new one."""
    used: _Amount
    """Amount used since the counter began, estimates of running requests included. For money: since the counter began
    in `period`. For concurrent requests: those that run now."""
    unspent: Annotated[float, Meta(ge=-1e18, le=1e18)]
    """Amount that the agent may use without a further lease; negative if settlements exceeded it."""
    demand_per_s: _Amount
    """Amount per second that clients asked for recently, refused requests included. For concurrent requests: the number
    that would run if none were refused."""
    rate_per_s: _Amount = 0.0
    """Rate of the lease in force; 0 without one."""
    period: _Number = 0
    """Number of the day or month of a budget of money (`period_of`); 0 for other units."""
    request_amount: _Amount = 1.0
    """Amount of a usual request: a smaller unspent amount permits none."""
    closed: bool = False
    """Whether the counter has ended: the agent forgets it once the report was answered, and starts anew if the tenant
    returns. Such a counter has no unspent amount and no demand."""
    tier: Annotated[str, Meta(max_length=63)] = ""
    """Tier of an identity provider's own tenant, which only the token names; "" for other tenants."""
    wanted: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Concurrent requests that wait at the agent for a place."""


class BudgetLease(msgspec.Struct, frozen=True, array_like=True):
    """What one agent may use of one budget (leader to agent). Applied once, in the order of numbers."""

    key: BudgetKey
    number: int
    """Number of the exchange whose answer contains the lease; an agent ignores numbers that it has passed."""
    amount: _Amount
    """Amount to add to `unspent`: part of the burst, chunk of money, places of concurrent requests."""
    keep: _Amount
    """Largest amount that the agent keeps: `unspent` above it is dropped when the next report is built, and thereby
    returned."""
    rate_per_s: _Amount
    """Rate at which the agent continues after the end of the lease, without a leader. For concurrent requests: the
    number that may run."""
    period: int = 0
    """Day or month that the amount belongs to. If it is another one than that of the agent's counter, the counter
    changes to it (`BudgetMeter.enter`)."""
    rest: float = -1.0
    """What all agents together have left of the budget, for clients; negative: not known."""
    debt: _Amount = 0.0
    """What has to be repaid before anything is left."""


class MeteredBudgets(Protocol):
    """The counters of one agent, as the exchange uses them."""

    def uses(self, now: float) -> list[BudgetUse]:
        """Return the state of each counter, after `unspent` above `keep` was dropped.

        Args:
            now: monotonic clock (s).
        """
        ...

    def apply(self, leases: list[BudgetLease], now: float) -> None:
        """Apply the leases of an answer; a lease of an unknown counter is ignored (its amount is returned thereby)."""
        ...

    def answered(self, uses: list[BudgetUse]) -> None:
        """Forget the counters that these uses closed: the leader has them."""
        ...


class BudgetLeases(Protocol):
    """The state of an agent's exchanges, as its counters use it."""

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        """Return the lease with which a new counter starts: the agent's part of a budget that no agent uses, or of the
        reserve for agents that did not use it recently.

        Args:
            now: monotonic clock (s).
        """
        ...

    def ended_s(self, now: float) -> float | None:
        """Return the time (s) since the leases of the agent ended; None while they are valid."""
        ...

    def wake(self) -> None:
        """Exchange soon (within 100 ms and the round trip), because an amount is nearly used."""
        ...

    @property
    def agents(self) -> int:
        """Number of agents of the fleet, as last known."""
        ...


PER_MINUTE: Final = frozenset(
    (
        BudgetUnit.REQUESTS,
        BudgetUnit.INPUT_TOKENS,
        BudgetUnit.OUTPUT_TOKENS,
        BudgetUnit.TOKENS,
        BudgetUnit.GPU_SECONDS,
    )
)
"""Units whose budgets refill."""

MONEY: Final = frozenset((BudgetUnit.MONEY_PER_DAY, BudgetUnit.MONEY_PER_MONTH))


def keyed_budgets(tenant: str, key_id: str, budgets: Iterable[Budget], region: str) -> dict[BudgetKey, Budget]:
    """Return the budgets of a tenant, or of a key, by their names; of two that limit the same, the smaller one.

    Args:
        key_id: identifier of the key; "" for the budgets of the tenant.
        region: region of the agent that enforces them.
    """
    found: dict[BudgetKey, Budget] = {}
    for budget in budgets:
        key = BudgetKey(tenant, key_id, budget.unit, region if budget.scope is BudgetScope.REGION else "")
        other = found.get(key)
        if other is None or (budget.limit, budget.largest_burst) < (other.limit, other.largest_burst):
            found[key] = budget
    return found


def period_of(unit: BudgetUnit, now: float) -> int:
    """Return the number of the day or month (UTC) in which a budget is counted; 0 for units other than money.

    Args:
        now: Unix time (s).
    """
    if unit is BudgetUnit.MONEY_PER_DAY:
        return int(now // 86_400)
    if unit is BudgetUnit.MONEY_PER_MONTH:
        at = datetime.fromtimestamp(now, UTC)
        return at.year * 12 + at.month - 1
    return 0


def period_end(unit: BudgetUnit, period: int) -> float:
    """Return the Unix time (s) at which a day or month of `period_of` ends."""
    if unit is BudgetUnit.MONEY_PER_DAY:
        return (period + 1) * 86_400.0
    year, month = divmod(period + 1, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC).timestamp()
