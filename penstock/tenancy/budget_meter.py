"""The use of one budget at one agent: reserved at admission by an estimate, settled by what a request used.

An agent spends only what it was granted (`unspent`). While the leader answers, its leases add amounts. Without a
leader, the agent adds amounts itself, at a rate: that of the last lease for `hold_s`, then as `on_loss` says. Times are
monotonic (s) but for the periods of money, which are days and months of the wall clock.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final

from penstock.policy.kinds.budgets import Budget, BudgetUnit, OnLoss
from penstock.policy.kinds.tenants import DEFAULT_HOLD_S
from penstock.tenancy.amounts import ROUNDING, Amounts
from penstock.tenancy.budget_lease import MONEY, BudgetKey, BudgetLease, BudgetUse, period_end, period_of
from penstock.tenancy.without_leader import MIN_AMOUNT, full_rate, rate_without_leader

MAX_EXCESS_BURSTS: Final = 10.0
"""Maximum amount by which a request exceeds its estimate, in bursts of the budget (amounts of one minute by default): a
wrong report of an engine must not lock a tenant out for longer."""

MAX_WAIT_S: Final = 366.0 * 86_400.0
"""Maximum time (s) of a retry, a year: calendars end before some limits are refilled."""

EXCHANGE_S: Final = 1.0
"""Minimum time (s) after which a refused request can be admitted, unless it waits for a lease alone."""

LEASE_WAIT_S: Final = 0.5
"""Time (s) after which a refused request can expect a lease, if the fleet has what it needs."""

FIRST_LEASE_S: Final = 1.0
"""Time (s) for which requests may wait for a lease, from the first request on, or the first one that lacks an amount
after PAUSE_S."""

PAUSE_S: Final = 2.0
"""Time (s) without a request that lacked an amount, after which the budget is probably not used up: another agent has
what this one lacks."""

KNOWN_S: Final = 0.2
"""Time (s) for which an agent relies on what the leader told of free places: two exchanges."""

USUAL_REQUESTS: Final = 8.0
"""Number of requests whose mean is the usual amount."""

DEMAND_S: Final = 2.0
"""Time constant (s) of the mean of what clients ask for."""

_REQUESTS: Final = BudgetUnit.REQUESTS
_CONCURRENT: Final = BudgetUnit.CONCURRENT_REQUESTS
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

ONE: Final = 0
INPUT: Final = 1
OUTPUT: Final = 2
BOTH: Final = 3
GPU: Final = 4
MONETARY: Final = 5
"""What a budget counts: requests, input tokens, output tokens, tokens, GPU seconds, money."""

COUNTS: Final = {
    BudgetUnit.REQUESTS: ONE,
    BudgetUnit.INPUT_TOKENS: INPUT,
    BudgetUnit.OUTPUT_TOKENS: OUTPUT,
    BudgetUnit.TOKENS: BOTH,
    BudgetUnit.GPU_SECONDS: GPU,
    BudgetUnit.CONCURRENT_REQUESTS: ONE,
    BudgetUnit.MONEY_PER_DAY: MONETARY,
    BudgetUnit.MONEY_PER_MONTH: MONETARY,
}
"""What a budget of a unit counts."""


class BudgetMeter:
    """What one agent uses of one budget."""

    def __init__(self, key: BudgetKey, budget: Budget, opening: BudgetLease, now: float, wall: float) -> None:
        """Start a counter.

        Args:
            opening: the lease with which the counter starts.
            wall: Unix time (s), for budgets of money.
        """
        self.key = key
        self.counts = COUNTS[key.unit]
        """What the budget counts: one of the numbers above."""
        self.is_money = key.unit in MONEY
        self.is_concurrency = key.unit == _CONCURRENT
        self.unspent = opening.amount
        """Amount that may be used without a further lease; negative: a debt."""
        self.spent = 0.0
        """Amount that settled requests used since the counter began; of money, in the period."""
        self.held = 0.0
        """Amount that running requests reserved."""
        self.keep = opening.keep
        """Largest `unspent` that the agent keeps."""
        self.rate_per_s = -1.0
        """Rate of the last lease, for the time after its end; negative before the first one."""
        self.low = opening.keep / 4.0
        """Below this amount, another lease is due."""
        self.is_closed = False
        """Whether the counter ends with the next exchange."""
        self.period = max(period_of(key.unit, wall), opening.period)
        """Number of the day or month of money; else 0."""
        self.period_end = period_end(key.unit, self.period) if self.is_money else inf
        """Unix time (s) of the end of the period; inf for other units."""
        self.used_at = now
        """Time (s) of the last request."""
        self.tier = ""
        """See `BudgetUse.tier`."""
        self._left_period, self._left_spent = self.period, 0.0
        self._open = 0
        self._at = self._reported_at = now
        self.lost = False
        """Whether no leader answers, so that the agent adds to `unspent` itself."""
        self._refill_per_s = 0.0
        """Rate (units per second) at which it does so."""
        self._most = 0.0
        """Largest `unspent` that it adds up to."""
        self._agents = 1
        """Agents that the budget covers, as last known."""
        self._ended_at = 0.0
        """Time (s) at which the leases ended."""
        self._rule_at = inf
        """Time (s) at which `on_loss` replaces the last rate."""
        self.hold_s = DEFAULT_HOLD_S
        """Time (s) for which the last rates continue without a leader."""
        self.on_loss = OnLoss.SHARE
        """The rates afterwards."""
        self.wanted = 0
        """Requests that were found waiting for a place since the last report."""
        self._first_until, self._refused_at = now + FIRST_LEASE_S, -inf
        """Times (s) until which requests may wait for a lease, and of the last request that lacked an amount."""
        self._asked = 0.0
        """Amount that requests asked for since the last report; of concurrent requests, the refused ones."""
        self._usual = 0.0
        """Amount of a usual request, or of the last one that awaits a lease; 0 before the first one."""
        self._peak = self._demand = 0.0
        self.use_budget(budget, now)

    def use_budget(self, budget: Budget, now: float) -> None:
        """Use a limit, from the next lease on. What was used stays used."""
        self.budget = budget
        per_minute = not (self.is_money or self.is_concurrency)
        burst = self._burst = max(MIN_AMOUNT, budget.largest_burst if per_minute else budget.limit)
        self._per_s = max(MIN_AMOUNT, budget.per_s) if per_minute else 0.0
        self._max_excess = inf if self.is_money else MAX_EXCESS_BURSTS * burst
        # A larger request waits for half of the burst and owes the rest, since an agent seldom has all of the burst.
        self._cached_weight = budget.cached_weight
        self._enough = (
            inf if self.is_money or self.is_concurrency else burst if self.key.unit == _REQUESTS else burst / 2.0
        )
        self._full = self._enough
        """With this amount unspent, a request of any size is admitted."""
        self._rest, self._rest_at = burst, now
        self._shown, self._shown_at = burst, now
        if self.lost:
            self._use_rate(now)

    @property
    def used(self) -> float:
        """Amount used since the counter began, estimates of running requests included."""
        return self.spent + self.held

    def amount_of(self, amounts: Amounts) -> float:
        """Return what a request needs or used of this budget."""
        counts = self.counts
        if counts == ONE:
            return amounts.requests
        if counts == OUTPUT:
            return amounts.output_tokens
        if counts == GPU:
            return amounts.gpu_s
        if counts == MONETARY:
            return amounts.money
        tokens = amounts.input_tokens - amounts.cached_tokens * (1.0 - self._cached_weight)
        return tokens if counts == INPUT else tokens + amounts.output_tokens

    def lacks(self, amount: float, now: float) -> bool:
        """Whether a request that needs `amount` has to be refused."""
        if self.lost:
            self._refill(now)
        return self.unspent + ROUNDING < amount and self.unspent < self._full

    def take(self, amount: float, now: float) -> None:
        """Reserve `amount`; only after `lacks` returned False for it."""
        self.unspent -= amount
        self.held += amount
        self._open += 1
        self.used_at = now
        if self.is_concurrency:
            self._rest -= amount
            if self.held > self._peak:
                self._peak = self.held
        else:
            self._asked += amount
            self._usual += (amount - self._usual) / (USUAL_REQUESTS if self._usual else 1.0)
            self._rest = self.rest(now) - amount
            self._rest_at = now

    def extend(self, amount: float) -> None:
        """Reserve `amount` in addition, however little is left."""
        self.unspent -= amount
        self.held += amount
        self._rest -= amount

    def refuse(self, amount: float, now: float) -> None:
        """Count a request that was refused because of this budget: it is demand."""
        if now - self._refused_at >= PAUSE_S:
            self._first_until = now + FIRST_LEASE_S
        self._refused_at = now
        self._asked += amount
        if self.waits_for_lease(amount, now):  # the next lease is to permit it, however unusual it is
            self._usual = min(amount, self._full)
        else:
            self._usual += (amount - self._usual) / USUAL_REQUESTS
        self.used_at = now

    def settle(self, reserved: float, actual: float, now: float) -> None:
        """Replace a reservation by the amount that was used; 0 gives it back. Called once per `take`."""
        self._open -= 1
        self.used_at = now
        # Exactly zero without running requests, and never negative, whatever the sums of fractions came to.
        held = self.held - reserved
        self.held = held if self._open and held > 0.0 else 0.0
        if self.is_concurrency:
            self.unspent += reserved
            self._rest += reserved
            return
        if actual > reserved + self._max_excess:
            actual = reserved + self._max_excess
        self.spent += actual
        self.unspent += reserved - actual
        self._rest += reserved - actual

    def retry_after_s(self, amount: float, now: float, wall: float) -> float:
        """Return the time (s) after which a refused request of `amount` can be admitted, if no other one is."""
        if self.is_concurrency:
            return EXCHANGE_S
        if self.waits_for_lease(amount, now):
            return LEASE_WAIT_S
        needed = min(amount, self._full)
        if self.lost:
            rate = self._refill_per_s
            return min(MAX_WAIT_S, (needed - self.unspent) / rate) if rate else EXCHANGE_S
        if self.is_money and self.unspent + self.held >= needed:
            # Running requests reserved it, most of which need less.
            return EXCHANGE_S
        wait_s = self.period_end - wall if self.is_money else (needed - self.rest(now)) / self._per_s
        return min(MAX_WAIT_S, max(EXCHANGE_S, wait_s))

    def waits_for_lease(self, amount: float, now: float) -> bool:
        """Whether the fleet has what a refused request of `amount` needs, as far as this agent knows, so that the next
        lease can contain it."""
        return not self.lost and not self.is_concurrency and self.rest(now) + ROUNDING >= min(amount, self._full)

    def awaits_lease(self, amount: float, now: float) -> bool:
        """Whether a refused request of `amount` may wait for the next lease.

        For an amount, for FIRST_LEASE_S: a used-up budget refuses at once. For a place, while one is free at another
        agent, as far as this agent knows: with fewer places than agents, each request may arrive where none is.
        """
        if self.lost:
            return False
        if self.is_concurrency:
            is_free = self._rest >= amount or now - self._rest_at > KNOWN_S
            return is_free and self.held + amount <= self._burst
        return now < self._first_until and self.waits_for_lease(amount, now)

    def left(self, now: float) -> float:
        """Return what is left of the whole budget, as far as this agent knows; without a leader, of its part."""
        return self.unspent if self.lost else self.rest(now)

    def rest(self, now: float) -> float:
        """Return what is left of the whole budget, as far as this agent knows."""
        # Without min and max, here and below: compiled, their calls take longer than all the rest.
        rest = self._rest + (now - self._rest_at) * self._per_s
        return rest if rest < self._burst else self._burst

    def used_ratio(self, now: float) -> float:
        """Return the part (0-1) of the budget that is used, as far as this agent knows; of places, by this agent."""
        left = self._burst - self.held if self.is_concurrency else self.left(now)
        ratio = 1.0 - left / self._burst
        return 0.0 if ratio < 0.0 else 1.0 if ratio > 1.0 else ratio

    def remaining(self, now: float) -> float:
        """Return what is left of a budget per minute, as clients read it.

        It rises only with time, at the rate of the budget: what a reservation had too much comes back at that rate.
        Without a leader, it is what is left of this agent's part.
        """
        shown = self._shown + (now - self._shown_at) * self._per_s
        rest = self.left(now)
        if rest < shown:
            shown = rest
        self._shown = shown
        self._shown_at = now
        return shown if shown > 0.0 else 0.0

    def reset_s(self, now: float) -> float:
        """Return the time (s) after which `remaining` is the whole burst, or the agent's part, without requests.

        Args:
            now: time (s) of the last call of `remaining`.
        """
        if not self.lost:
            reset_s = (self._burst - self._shown) / self._per_s
        else:
            missing = self._most - self.unspent
            reset_s = missing / self._refill_per_s if missing > 0.0 and self._refill_per_s else 0.0
        return reset_s if reset_s < MAX_WAIT_S else MAX_WAIT_S

    # the exchange with the leader

    def use(self, epoch: int, now: float) -> BudgetUse:
        """Return the report of this counter. Drops what the agent may not keep.

        Args:
            epoch: number of the counter, see `BudgetUse`.
        """
        if self.lost:
            self._refill(now)
        elif self.unspent > self.keep:
            self.unspent = self.keep
        elapsed_s = max(1e-3, now - self._reported_at)
        if self.is_concurrency:
            asked, self._peak = self._peak + self._asked, self.held
        else:
            asked = self._asked / elapsed_s
        old = exp(-elapsed_s / DEMAND_S)
        self._demand = self._demand * old + asked * (1.0 - old)
        self._asked, self._reported_at = 0.0, now
        wanted, self.wanted = self.wanted, 0
        if self.is_closed:
            return self.closing_use(epoch)
        return BudgetUse(
            self.key,
            epoch,
            self.used,
            self.unspent,
            self._demand,
            max(0.0, self.rate_per_s),
            self.period,
            min(self._usual, self._enough),
            tier=self.tier,
            wanted=wanted,
        )

    def closing_use(self, epoch: int) -> BudgetUse:
        """Return the last report of this counter.

        Args:
            epoch: number of the counter, see `BudgetUse`.
        """
        return BudgetUse(self.key, epoch, self.used, 0.0, 0.0, period=self.period, closed=True, tier=self.tier)

    def apply(self, lease: BudgetLease, now: float) -> None:
        """Add the amount of a lease, which is applied once."""
        if self.is_money and lease.period != self.period:
            self.enter(lease.period)
        self.unspent += lease.amount
        self.keep, self.rate_per_s = lease.keep, lease.rate_per_s
        self.low = lease.keep / 4.0
        if lease.rest >= 0.0:
            self._rest, self._rest_at = lease.rest - lease.debt, now

    def enter(self, period: int) -> None:
        """Begin another day or month of money, in which running requests will be charged.

        A period to which the clock returns has the amount that was spent in it: no jump gives it its budget twice.
        """
        left, spent = self._left_period, self._left_spent
        self._left_period, self._left_spent = self.period, self.spent
        if period == left:
            self.spent = spent
        elif period > self.period:
            self.spent = 0.0
        self.period, self.period_end = period, period_end(self.key.unit, period)
        self._rest = self._burst - self.held
        if not self.lost:
            self.unspent = -self.held

    def close(self) -> None:
        """End the counter, which the next report closes. Only while no request runs."""
        self.is_closed = True
        self.unspent = 0.0

    def reopen(self, opening: BudgetLease, now: float) -> None:
        """Continue a closed counter that the leader has not forgotten yet."""
        self.is_closed = False
        self.keep, self.used_at, self._first_until = opening.keep, now, now + FIRST_LEASE_S
        self.unspent += opening.amount

    def is_idle(self, since: float) -> bool:
        """Whether no request runs or came after `since` (s), and nothing is owed."""
        return (
            self.used_at < since
            and not self._open
            and (self.unspent >= self._most if self.lost else self.unspent >= -ROUNDING)
        )

    # without a leader

    def lose(self, ended_at: float, agents: int, now: float) -> None:
        """Continue without a leader. What is left of leases is dropped, since the leader grants it to others.

        Args:
            ended_at: time (s) at which the leases ended.
            agents: number of agents that the budget covers, as last known.
        """
        if not self.lost:
            self.unspent, self._at = min(self.unspent, 0.0), ended_at
        self._add_at_rate(ended_at, agents, now)

    def begin_lost(self, ended_at: float, agents: int, now: float) -> None:
        """As `lose`, for a counter that starts now: it keeps what it started with."""
        self._at = now
        self._add_at_rate(ended_at, agents, now)

    def _add_at_rate(self, ended_at: float, agents: int, now: float) -> None:
        self.lost, self._agents, self._ended_at = True, agents, ended_at
        self._use_rate(now)

    def regain(self) -> None:
        """Spend only leases again."""
        self.lost, self._full = False, self._enough

    def _refill(self, now: float) -> None:
        if now >= self._rule_at:
            self._use_rate(now)
        if self.unspent < self._most:
            self.unspent = min(self._most, self.unspent + (now - self._at) * self._refill_per_s)
        self._at = now

    def _use_rate(self, now: float) -> None:
        budget, ended_s, loss = self.budget, now - self._ended_at, (self.hold_s, self.on_loss)
        last = self.rate_per_s
        if last < 0.0:
            last = full_rate(budget) / self._agents
            if self.is_concurrency:
                last = max(1.0, last)
        rate = rate_without_leader(budget, last, self._agents, ended_s, loss)
        self._rule_at = inf if ended_s >= self.hold_s else self._ended_at + self.hold_s
        if self.is_concurrency:
            self.unspent = rate - self.held
            return
        self._refill_per_s = rate
        share = rate / full_rate(budget)
        self._most = max(self._burst * share, min(1.0, self._burst)) if rate else 0.0
        self._full = min(self._enough, self._most) if rate and not self.is_money else inf
