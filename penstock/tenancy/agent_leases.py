"""An agent's side of the exchange of budgets: numbers, the budgets that other agents use, and the end of leases.

Implements `BudgetLeases` without IO; `regional_agent/tenants/budget_exchange.py` sends the requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import MAX_USES, BudgetKey, BudgetLease, BudgetUse
from penstock.tenancy.opening_share import AgentRank, opening_part, reserved_part, whole
from penstock.tenancy.without_leader import full_rate
from penstock.wire.budget_exchange import LEASE_S, MAX_WAIT_S, ExchangeAnswer, ExchangeRequest

FIRST_ANSWER_S = 2.0
"""Time (s) from the start of the agent for which it expects the first answer, and grants itself nothing."""

NEVER_S = 1e9
"""Time (s) since the end of leases of an agent that never had one."""

BUSY_WAIT_S = 1.0
"""Time (s) for which the leader may delay its answer to an agent whose counters change: the next report follows."""

SMALL_CHANGE = 0.2
"""Part by which the demand of an unchanged counter must change to be reported."""


class LeaseHolder(NamedTuple):
    """An agent."""

    agent: str
    """Name in its region."""
    region: str
    epoch: int
    """A restarted agent has a larger one."""


class Surroundings(Protocol):
    """What an agent knows before the first answer of a leader."""

    def wake(self) -> None:
        """Let an exchange take place soon."""
        ...

    def has_leader(self) -> bool:
        """Whether a leader is known, so that an answer can be expected."""
        ...

    def registered(self, region: str) -> int:
        """Return the number of registered agents of a region, or of the fleet ("")."""
        ...


class AgentLeases:
    """The exchanges of one agent.

    Args:
        now: monotonic clock (s) at the start.
    """

    def __init__(self, sender: LeaseHolder, around: Surroundings, now: float) -> None:
        self._sender = sender
        self._around = around
        self._number = 0
        self._answered = 0
        self._leader = 0
        self._ends_at = now + FIRST_ANSWER_S
        """Time (s) of the end of the leases; before the first answer: of the wait for it."""
        self._sent_at = now
        self._reported: dict[BudgetKey, BudgetUse] = {}
        """The newest uses that an answer of the leader has confirmed."""
        self._in_flight: list[BudgetUse] = []
        self._places: dict[str, AgentRank] = {}
        """Places of the agent in the fleet ("") and its region, by the newest answer."""
        self._announced: set[BudgetKey] = set()
        """Budgets that agents use, by the answers of the leader."""
        self._earlier: set[BudgetKey] = set()
        """The same by answers of an earlier leader, until the leader knows the budgets of all agents."""
        self._may_open = False
        """Whether a leader has announced all budgets that agents use."""

    @property
    def agents(self) -> int:
        """Number of agents of the fleet, as last known."""
        return self._place("").agents

    def agents_of(self, key: BudgetKey) -> int:
        """Return the number of agents that a budget covers, as last known."""
        return self._place(key.region).agents

    def wake(self) -> None:
        """Exchange soon, because an amount is nearly used."""
        self._around.wake()

    def ended_s(self, now: float) -> float | None:
        """Return the time (s) since the leases of the agent ended; None while they are valid."""
        if not self._answered and not (now < self._ends_at and self._around.has_leader()):
            return NEVER_S
        return None if now < self._ends_at else now - self._ends_at

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        """Return the lease with which a new counter starts.

        Args:
            now: monotonic clock (s).
        """
        place = self._place(key.region)
        amount, rate = 0.0, full_rate(budget) / place.agents
        if key in self._announced or key in self._earlier:
            amount = reserved_part(budget, place.agents)
            if key.unit is BudgetUnit.CONCURRENT_REQUESTS:
                # Other agents may run all; what they end is not divided anew without a leader.
                rate = amount
        elif self._may_open:
            amount = opening_part(key, budget, place)
        elif self.ended_s(now) is not None:
            # No leader has answered since the start: equal parts, at least one request.
            amount = max(whole(budget) / place.agents, min(1.0, whole(budget)))
            if key.unit is BudgetUnit.CONCURRENT_REQUESTS:
                amount = rate = max(1.0, budget.limit // place.agents)
        self._around.wake()
        return BudgetLease(key, 0, amount, amount, rate)

    def request(self, uses: Iterable[BudgetUse], now: float) -> ExchangeRequest:
        """Return the next request: the counters that have changed, or need more.

        Args:
            now: monotonic clock (s).
        """
        agent, region, epoch = self._sender
        if now >= self._ends_at:
            self._reported.clear()
        self._in_flight = [use for use in uses if self._is_news(use)][:MAX_USES]
        self._number += 1
        self._sent_at = now
        wait_s = MAX_WAIT_S if not self._in_flight else BUSY_WAIT_S
        return ExchangeRequest(
            agent,
            region,
            epoch,
            self._number,
            self._answered,
            self._leader,
            tuple(self._in_flight),
            wait_s if self._may_open else 0.0,
        )

    def accept(self, answer: ExchangeAnswer) -> list[BudgetUse] | None:
        """Use an answer to the newest request.

        Returns:
            The uses that the leader has; None if the answer is of an earlier request or leader, and must be ignored.
        """
        if answer.number != self._number or answer.number == self._answered or answer.leader < self._leader:
            return None
        if answer.leader != self._leader:
            self._earlier |= self._announced
            self._announced = set()
            self._reported = {}
        self._leader, self._answered = answer.leader, answer.number
        self._ends_at = self._sent_at + LEASE_S
        for change in answer.announced:
            if change.is_used:
                self._announced.add(change.key)
            else:
                self._announced.discard(change.key)
        if answer.is_complete:
            self._earlier = set()
            self._may_open = True
        (agents, region_agents), (rank, region_rank) = answer.agents, answer.ranks
        self._places = {"": AgentRank(rank, agents), self._sender.region: AgentRank(region_rank, region_agents)}
        for use in self._in_flight:
            if use.closed:
                self._reported.pop(use.key, None)
            else:
                self._reported[use.key] = use
        # A lease changes what the counter holds, so that the next request reports the counter.
        return self._in_flight

    def _place(self, region: str) -> AgentRank:
        """Return the place of the agent among those of a region, or of the fleet ("")."""
        return self._places.get(region) or AgentRank(0, max(1, self._around.registered(region)))

    def _is_news(self, use: BudgetUse) -> bool:
        last = self._reported.get(use.key)
        if last is None or use.closed or use.unspent < use.request_amount:
            return True
        if (use.used, use.unspent, use.rate_per_s) != (last.used, last.unspent, last.rate_per_s):
            return True
        if (use.period, use.epoch, use.wanted) != (last.period, last.epoch, last.wanted):
            return True
        return abs(use.demand_per_s - last.demand_per_s) > SMALL_CHANGE * max(use.demand_per_s, last.demand_per_s)
