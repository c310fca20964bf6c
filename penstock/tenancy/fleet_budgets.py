"""All budgets that agents use, as one leader divides them in one leadership.

A new leader knows nothing but the totals of money that were saved. Each agent's first exchange reports all its
counters, with what it holds and its rates. Until all registered agents have had one (or the leases that they may have
from the earlier leader have ended), the leader grants no more than what is left if the others use their parts: of a
budget that refills, the rates of the agents that it knows; of others, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.agent_census import AgentCensus
from penstock.tenancy.agent_holding import AgentHolding
from penstock.tenancy.budget_lease import MAX_USES, MONEY, PER_MINUTE, BudgetKey, BudgetLease, BudgetUse, period_of
from penstock.tenancy.divided_budget import DividedBudget, MoneyTotal, restored, total_of
from penstock.tenancy.opening_share import WHOLE, opening_part, reserved_part, whole
from penstock.wire.budget_exchange import LEASE_S, MAX_CHANGES, ExchangeAnswer, ExchangeRequest, UsedBudget

LEASE_END_S = LEASE_S * 1.1 + 0.5
"""Time (s) from an answer to the end of the agent's leases by the leader's clock: later than by the agent's, whose
clock may be slower by a tenth."""

TOP_UP_S = 5.0
"""Interval (s) at which the counters that an agent does not report receive what has become available."""

MAX_BUDGETS = 100_000
"""Maximum number of budgets in use. Agents continue with their opening parts of further ones."""


QUANTUM = 2**20
"""Number of the smallest amounts in one unit."""


class StaleExchange(Exception):
    """A newer exchange of the agent was accepted already."""


@dataclass(slots=True)
class _Exchange:
    """The newest exchange of one agent."""

    region: str
    epoch: int
    number: int = 0
    received_at: float = 0.0
    answered_at: float = 0.0
    sent: int = 0
    """Newest change that an answer announced."""
    acked: int = 0
    """Newest announced change that the agent has applied."""
    topped_up_at: float = 0.0
    is_ended: bool = False
    """Whether the agent's leases have ended."""
    has_past: bool = True
    """Whether the agent's counters may have been used without leases of this leader."""
    granted: list[tuple[DividedBudget, AgentHolding]] = field(default_factory=list)
    recalled: list[AgentHolding] = field(default_factory=list)
    """Accounts of which the last answer asked places back."""
    budgets: dict[BudgetKey, DividedBudget] = field(default_factory=dict)
    due: dict[BudgetKey, None] = field(default_factory=dict)
    """Budgets for which the next answer may contain a lease."""


class FleetBudgets:
    """The state of one leadership.

    Args:
        epoch: fencing epoch of the leader.
        limits: returns the budget with a key and a reported tier (`BudgetUse.tier`); None if there is none.
        now: monotonic clock (s).
        totals: saved totals of money.
    """

    def __init__(
        self,
        epoch: int,
        limits: Callable[[BudgetKey, str], Budget | None],
        now: float,
        totals: Mapping[BudgetKey, MoneyTotal] | None = None,
    ) -> None:
        self.epoch = epoch
        self.short = 0
        """Number of answers that left an agent with demand without the amount of a usual request."""
        self.budgets: dict[BudgetKey, DividedBudget] = {}
        self.woken: set[str] = set()
        """Agents for which a delayed answer would have news; the caller clears them."""
        self.census = AgentCensus(now + LEASE_END_S)
        self._limits = limits
        self._exchanges: dict[str, _Exchange] = {}
        self._silent: set[str] = set()
        """Registered agents whose leases have ended."""
        self._totals = dict(totals or {})
        self._periods: dict[BudgetUnit, int] = {}
        self._revision = 0
        self._changes: dict[BudgetKey, tuple[int, bool]] = {}
        """Number of the newest change of each budget, oldest change first, and whether it is used since."""
        self._all_acked = 0

    def receive(self, request: ExchangeRequest, now: float, wall: float) -> None:
        """Charge what an agent reports.

        Args:
            now: monotonic clock (s).
            wall: Unix time (s).

        Raises:
            StaleExchange: the request is older than one that was received.
        """
        sender = request.sender
        known = self._exchanges.get(sender)
        if known is not None and (request.epoch, request.number) <= (known.epoch, known.number):
            raise StaleExchange(f"exchange {request.number} of epoch {request.epoch} of {sender} is not the newest")
        is_charged = known is None and request.leader not in (0, self.epoch)
        if known is not None and request.epoch != known.epoch:
            self._end(sender, known, is_registered=False)
            known = None
        if known is None:
            known = self._exchanges[sender] = _Exchange(request.region, request.epoch)
        known.number = request.number
        self._settle(known, arrived=(request.leader, request.answered) == (self.epoch, request.number - 1))
        # The first request to a new leader has only what has changed since the answers of the earlier one.
        is_partial = request.leader not in (0, self.epoch) or len(request.uses) >= MAX_USES
        if (not is_partial or now >= self.census.unheard_until) and self.census.hear(sender):
            # Agents may start with equal parts as soon as the leader knows the budgets that are used.
            self.woken.update(self.census.covered(""))
        known.has_past |= known.is_ended
        for use in request.uses:
            self._charge(sender, known, use, (now, wall), is_charged=is_charged)
        known.has_past = is_partial
        if known.is_ended:
            known.is_ended = False
            self._silent.discard(sender)
            for budget in known.budgets.values():
                budget.revive(sender)
        known.received_at = known.answered_at = now

    def answer(self, sender: str, number: int, now: float, wall: float) -> ExchangeAnswer:
        """Return the leases for an agent whose request was received.

        Args:
            number: number of the request.
            now: monotonic clock (s).
            wall: Unix time (s).

        Raises:
            StaleExchange: the agent has sent a newer request since.
        """
        known = self._exchanges.get(sender)
        if known is None or known.number != number:
            raise StaleExchange(f"exchange {number} of {sender} is not the newest")
        known.answered_at = now
        if now - known.topped_up_at >= TOP_UP_S:
            known.topped_up_at = now
            known.due = dict.fromkeys(known.budgets)
        leases = []
        for key in known.due:
            budget = self.budgets.get(key)
            account = None if budget is None else budget.accounts.get(sender)
            if budget is not None and account is not None:
                lease = self._lease(budget, account, number, (now, wall))
                if lease is not None:
                    leases.append(lease)
                if lease is not None and lease.amount > 0.0:
                    known.granted.append((budget, account))
                if account.recalled:
                    known.recalled.append(account)
        known.due = {}
        changes = self._changes_after(known)
        fleet, region = self.census.place(sender, ""), self.census.place(sender, known.region)
        return ExchangeAnswer(
            self.epoch,
            number,
            (fleet.agents, region.agents),
            (fleet.rank, region.rank),
            tuple(leases),
            changes,
            not self.census.unheard and known.sent == self._revision,
        )

    def set_agents(self, agents: Mapping[str, str], now: float) -> None:
        """Use these registered agents: names in the fleet, with their regions.

        Args:
            now: monotonic clock (s).
        """
        if self.census.set_agents(agents, now, LEASE_END_S):
            self.woken.update(agents)
            self._all_acked = min((self._acked(agent) for agent in self.census.covered("")), default=self._revision)

    def tick(self, now: float, wall: float) -> None:
        """End leases, begin days and months, use changed limits, and forget budgets that are not used any more.

        Args:
            now: monotonic clock (s).
            wall: Unix time (s).
        """
        for sender, known in list(self._exchanges.items()):
            if now - known.answered_at > LEASE_END_S:
                self._end(sender, known, is_registered=self.census.is_registered(sender))
        for unit in MONEY:
            self._roll(unit, wall)
        for key, budget in list(self.budgets.items()):
            limit = self._limits(key, budget.tier)
            if limit is None:
                self._forget(key)
                continue
            budget.limit_to(limit)
            period = self._periods.get(key.unit, 0)
            if budget.period != period:
                budget.begin(period)
                self._make_due(key, budget.accounts)
            budget.refill(now, self._known_part(budget, now))
            if not budget.accounts and not self.census.unheard and budget.is_unused:
                self._forget(key)
        if len(self._changes) > 2 * len(self.budgets) + MAX_CHANGES:
            # What is not announced is unused, also for agents that begin later.
            changes = self._changes.items()
            self._changes = {key: change for key, change in changes if change[1] or change[0] > self._all_acked}

    def totals(self) -> dict[BudgetKey, MoneyTotal]:
        """Return the totals of money of the present days and months, to be saved."""
        current = {key: total for key, total in self._totals.items() if total.period == self._periods.get(key.unit)}
        current |= {key: total_of(budget) for key, budget in self.budgets.items() if key.unit in MONEY}
        return current

    def reserve(self, budget: DividedBudget) -> float:
        """Return the amount of a budget that agents without leases may use."""
        key = budget.key
        agents = self.census.count(key.region)
        others = max(0, agents - len(budget.accounts))
        if not others:
            return 0.0
        unaware = 0
        changed = self._changes[key][0]
        if changed > self._all_acked:
            covered = self.census.covered(key.region)
            unaware = sum(1 for name in covered if name not in budget.accounts and self._acked(name) < changed)
        largest = budget.whole / agents
        if key.unit in WHOLE:
            largest = ceil(largest)
        elif key.unit in MONEY:
            largest = opening_part(key, budget.budget, self.census.place("", key.region))
        kept = unaware * largest + (others - unaware) * reserved_part(budget.budget, agents)
        return min(kept, budget.whole)

    def _charge(
        self, sender: str, known: _Exchange, use: BudgetUse, at: tuple[float, float], *, is_charged: bool
    ) -> None:
        now, wall = at
        budget = self.budgets.get(use.key) or self._open(use, now, wall, is_charged=is_charged)
        if budget is None:
            return
        budget.tier = use.tier or budget.tier
        budget.refill(now, self._known_part(budget, now))
        if use.closed or use.epoch != known.epoch:
            budget.report_ended(sender, use)
            if sender not in budget.accounts:
                known.budgets.pop(use.key, None)
            return
        budget.report(sender, use, is_charged=is_charged, has_past=known.has_past)
        known.budgets[use.key] = budget
        known.due[use.key] = None

    def _open(self, use: BudgetUse, now: float, wall: float, *, is_charged: bool) -> DividedBudget | None:
        key = use.key
        limit = self._limits(key, use.tier)
        if limit is None or len(self.budgets) >= MAX_BUDGETS:
            return None
        if key.unit in MONEY and key.unit not in self._periods:
            self._roll(key.unit, wall)
        period = self._periods.get(key.unit, 0)
        is_unknown = key.unit in PER_MINUTE and (is_charged or bool(self.census.unheard))
        budget = DividedBudget(key, limit, now, 0.0 if is_unknown else whole(limit), period)
        saved = self._totals.pop(key, None)
        if saved is not None and saved.period == period:
            restored(budget, saved)
        self.budgets[key] = budget
        self._announce(key, is_used=True)
        return budget

    def _lease(
        self, budget: DividedBudget, account: AgentHolding, number: int, at: tuple[float, float]
    ) -> BudgetLease | None:
        now, wall = at
        budget.refill(now, self._known_part(budget, now))
        reserve = self.reserve(budget)
        is_divided = budget.reshare(now, reserve, wall)
        target = budget.target(account, reserve)
        missing = target - account.unspent - account.granted
        kept = max(reserve, self._withheld(budget, now))
        amount = min(ceil(missing * QUANTUM), (budget.available + account.held - account.leased - kept) * QUANTUM)
        # A multiple of a power of two, so that the sums of amounts are exact, and ten requests are ten. What is missing
        # is rounded up: a little less than a request needs admits none.
        amount = max(0.0, round(amount) / QUANTUM)
        budget.grant(account, amount)
        surplus = 0.0 if amount else budget.surplus(account, target)
        is_short = budget.is_short(account)
        if is_short:
            self.short += 1
            if is_divided or account.wanted_at == now:
                self._make_due(budget.key, budget.holders(reserve))
        rate = budget.rate_of(account, kept, wall)
        if surplus and budget.wanted():
            rate = min(rate, account.used + target)
            account.recalled = surplus
        is_changed = abs(rate - account.announced_rate) > 0.1 * max(rate, account.announced_rate)
        # An agent that has to refuse requests learns what is left, for its clients.
        if not amount and not surplus and not is_changed and not is_short:
            return None
        budget.announce_rate(account, rate)
        keep = max(target, account.leased) if not surplus else target
        left = budget.available + budget.held
        rest = max(0.0, left) if self._knows_rest(budget, account) else -1.0
        return BudgetLease(budget.key, number, amount, keep, rate, budget.period, rest, max(0.0, -left))

    def _knows_rest(self, budget: DividedBudget, account: AgentHolding) -> bool:
        """Whether agents with running requests were heard since requests wait for a place at another agent: these may
        have ended."""
        return not account.wanted or all(
            self._exchanges[name].received_at >= account.wanted_at
            for name, other in budget.accounts.items()
            if other.used and not other.is_silent and other is not account
        )

    def _known_part(self, budget: DividedBudget, now: float) -> float:
        """Return the part of a budget's rate that no agent of unknown rate may be using."""
        if not self._silent and not self.census.unheard:
            return 1.0
        if not budget.refills:
            return 1.0
        if not self.census.unheard:
            # An agent without a leader uses an equal part of a budget that it did not use before.
            silent = sum(1 for agent in self._silent if agent not in budget.accounts)
            return max(0.0, 1.0 - silent / self.census.count(""))
        if now < self.census.unheard_until:
            return min(1.0, sum(a.announced_rate for a in budget.accounts.values()) / budget.full_rate)
        return 1.0 - self.census.unheard_part

    def _withheld(self, budget: DividedBudget, now: float) -> float:
        """Return the amount of a budget that does not refill that agents of unknown use may be using."""
        if not self.census.unheard or budget.refills:
            return 0.0
        part = 1.0 if now < self.census.unheard_until else self.census.unheard_part
        return part * budget.whole

    def _settle(self, known: _Exchange, *, arrived: bool) -> None:
        for budget, account in known.granted:
            budget.settle(account, arrived=arrived)
        known.granted = []
        for account in known.recalled:
            account.recalled = 0.0
        known.recalled = []
        if arrived and known.sent > known.acked:
            known.acked = known.sent
            self._all_acked = min((self._acked(agent) for agent in self.census.covered("")), default=known.acked)
        known.sent = known.acked

    def _changes_after(self, known: _Exchange) -> tuple[UsedBudget, ...]:
        found: list[tuple[int, UsedBudget]] = []
        if known.acked < self._revision:
            for key, (revision, is_used) in reversed(self._changes.items()):
                if revision <= known.acked:
                    break
                if not key.region or key.region == known.region:
                    found.append((revision, UsedBudget(key, is_used)))
        found.reverse()
        known.sent = self._revision if len(found) <= MAX_CHANGES else found[MAX_CHANGES - 1][0]
        return tuple(change for _, change in found[:MAX_CHANGES])

    def _announce(self, key: BudgetKey, *, is_used: bool) -> None:
        self._revision += 1
        self._changes.pop(key, None)
        self._changes[key] = self._revision, is_used
        self.woken.update(self.census.covered(key.region))

    def _forget(self, key: BudgetKey) -> None:
        budget = self.budgets.pop(key)
        if key.unit in MONEY:
            self._totals[key] = total_of(budget)
        for sender in budget.accounts:
            self._exchanges[sender].budgets.pop(key, None)
        self._announce(key, is_used=False)

    def _end(self, sender: str, known: _Exchange, *, is_registered: bool) -> None:
        known.granted = []
        known.is_ended = True
        self._silent.add(sender)
        for budget in known.budgets.values():
            budget.expire(sender, self.census.count(budget.key.region), is_registered=is_registered)
        if not is_registered:
            del self._exchanges[sender]
            self._silent.discard(sender)

    def _make_due(self, key: BudgetKey, agents: list[str] | dict[str, AgentHolding]) -> None:
        for agent in agents:
            self._exchanges[agent].due[key] = None
            self.woken.add(agent)

    def _acked(self, agent: str) -> int:
        known = self._exchanges.get(agent)
        return 0 if known is None else known.acked

    def _roll(self, unit: BudgetUnit, wall: float) -> None:
        """Begin the day or month; one that has begun does not end early if the clock is set back by less than it."""
        period, current = period_of(unit, wall), self._periods.get(unit, 0)
        if period > current or period < current - 1:
            self._periods[unit] = period
            self._totals = {
                key: total for key, total in self._totals.items() if key.unit is not unit or total.period == period
            }
