"""A fleet that divides budgets, on a virtual clock: agents with counters, a leader, and exchanges between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import exp

from penstock.policy.kinds.budgets import Budget, BudgetUnit, OnLoss
from penstock.tenancy.agent_leases import AgentLeases, LeaseHolder
from penstock.tenancy.budget_lease import BudgetKey, BudgetLease, BudgetUse
from penstock.tenancy.divided_budget import MoneyTotal
from penstock.tenancy.fleet_budgets import FleetBudgets, StaleExchange
from penstock.tenancy.without_leader import rate_without_leader
from penstock.wire.budget_exchange import ExchangeAnswer, ExchangeRequest

HOLD = (3600.0, OnLoss.SHARE)


class Meter:
    """A counter of one budget as agents have it, without settlement."""

    def __init__(self, key: BudgetKey, budget: Budget, opening: BudgetLease, now: float) -> None:
        self.key, self.budget = key, budget
        self.used = 0.0
        self.unspent = opening.amount
        self.keep, self.rate, self.period = opening.keep, opening.rate_per_s, opening.period
        self.at = self.reported_at = now
        self.asked = self.demand = 0.0
        self.dropped_for = -1.0
        self.wanted = 0

    def take(self, leases: AgentLeases, now: float, amount: float = 1.0) -> bool:
        """Use an amount, or refuse it."""
        self.asked += amount
        ended_s = leases.ended_s(now)
        if ended_s is not None:
            self._continue(leases, ended_s, now)
        if self.unspent < amount:
            # Its client asks again, as a request that waits does.
            self.wanted += self.budget.unit is BudgetUnit.CONCURRENT_REQUESTS
            leases.wake()
            return False
        self.unspent -= amount
        self.used += amount
        if self.unspent < amount:
            leases.wake()
        return True

    def end(self, amount: float = 1.0) -> None:
        """End a concurrent request."""
        self.used -= amount
        self.unspent += amount

    def use(self, epoch: int, leases: AgentLeases, now: float) -> BudgetUse:
        """Return the report of the counter."""
        ended_s = leases.ended_s(now)
        if ended_s is not None:
            self._continue(leases, ended_s, now)
        self.unspent = min(self.unspent, self.keep) if ended_s is None else self.unspent
        passed = max(1e-3, now - self.reported_at)
        old = exp(-passed / 2.0)
        if self.budget.unit is BudgetUnit.CONCURRENT_REQUESTS:
            recent = self.used + self.asked
        else:
            recent = self.asked / passed
        self.demand = self.demand * old + recent * (1.0 - old)
        self.asked, self.reported_at = 0.0, now
        wanted, self.wanted = self.wanted, 0
        used = max(0.0, self.used)
        return BudgetUse(self.key, epoch, used, self.unspent, self.demand, self.rate, self.period, wanted=wanted)

    def apply(self, lease: BudgetLease, now: float) -> None:
        """Apply a lease."""
        if lease.period > self.period > 0:
            self.used = self.unspent = 0.0
        self.period = max(self.period, lease.period)
        self.unspent += lease.amount
        self.keep, self.rate, self.at = lease.keep, lease.rate_per_s, now

    def _continue(self, leases: AgentLeases, ended_s: float, now: float) -> None:
        began = now - ended_s
        if self.dropped_for != began:
            self.dropped_for, self.at = began, began
            self.unspent = min(0.0, self.unspent)
        rate = rate_without_leader(self.budget, self.rate, leases.agents_of(self.key), ended_s, HOLD)
        if self.budget.unit is BudgetUnit.CONCURRENT_REQUESTS:
            self.unspent = int(rate) - self.used
        else:
            most = max(1.0, rate * 60.0)
            self.unspent = min(max(self.unspent, most), self.unspent + rate * (now - self.at))
        self.at = now


class Meters:
    """The counters of an agent; implements `MeteredBudgets`."""

    def __init__(self, leases: AgentLeases, epoch: int) -> None:
        self._leases = leases
        self._epoch = epoch
        self.of: dict[BudgetKey, Meter] = {}

    def take(self, key: BudgetKey, budget: Budget, now: float, amount: float = 1.0) -> bool:
        """Admit a request of `amount`, or refuse it."""
        meter = self.of.get(key)
        if meter is None:
            meter = self.of[key] = Meter(key, budget, self._leases.opening(key, budget, now), now)
        return meter.take(self._leases, now, amount)

    def uses(self, now: float) -> list[BudgetUse]:
        """Return the state of each counter."""
        return [meter.use(self._epoch, self._leases, now) for meter in self.of.values()]

    def apply(self, leases: Iterable[BudgetLease], now: float) -> None:
        """Apply the leases of an answer."""
        for lease in leases:
            meter = self.of.get(lease.key)
            if meter is not None:
                meter.apply(lease, now)
                if meter.budget.unit is BudgetUnit.CONCURRENT_REQUESTS and meter.unspent > meter.keep:
                    self._leases.wake()

    def answered(self, uses: list[BudgetUse]) -> None:
        """Do nothing: these counters stay."""


class Agent:
    """An agent with counters."""

    def __init__(self, name: str, region: str, epoch: int, now: float) -> None:
        self.name, self.region, self.epoch = name, region, epoch
        self.wants_exchange = False
        self.regions: list[str] = [region]
        """Regions of the registered agents, which an agent reads from etcd."""
        self.exchanged_at = now - 10.0
        self.leases = AgentLeases(LeaseHolder(name, region, epoch), self, now)
        self._all = Meters(self.leases, epoch)
        self.meters = self._all.of
        self.take = self._all.take

    def request(self, now: float) -> ExchangeRequest:
        """Return the next request to the leader."""
        self.wants_exchange, self.exchanged_at = False, now
        return self.leases.request(self._all.uses(now), now)

    def accept(self, answer: ExchangeAnswer, now: float) -> None:
        """Apply an answer."""
        if self.leases.accept(answer) is None:
            return
        self._all.apply(answer.leases, now)

    def wake(self) -> None:
        """Let an exchange take place with the next step."""
        self.wants_exchange = True

    def has_leader(self) -> bool:
        """Whether a leader is known."""
        return True

    def registered(self, region: str) -> int:
        """Return the number of registered agents."""
        return self.regions.count(region) if region else len(self.regions)


class BudgetFleet:
    """Agents and a leader with the same budgets.

    Args:
        budgets: the limits.
        regions: names of agents, by region.
        wall: Unix time (s) at the start.
    """

    def __init__(
        self, budgets: Mapping[BudgetKey, Budget], regions: Mapping[str, list[str]], wall: float = 1_800_000_000.0
    ) -> None:
        self.budgets = dict(budgets)
        self.now = 1_000.0
        self.wall_offset = wall - self.now
        self.agents = {
            f"{region}/{name}": Agent(name, region, 1, self.now) for region, names in regions.items() for name in names
        }
        self.leader: FleetBudgets | None = None
        self.saved: dict[BudgetKey, MoneyTotal] = {}
        self.elect(1)

    @property
    def wall(self) -> float:
        """Unix time (s)."""
        return self.now + self.wall_offset

    def elect(self, epoch: int) -> None:
        """Let a new leader take office."""
        self.leader = FleetBudgets(epoch, lambda key, tier: self.budgets.get(key), self.now, self.saved)
        self.register()

    def register(self) -> None:
        """Let the leader know the agents that are registered."""
        regions = [agent.region for agent in self.agents.values()]
        for agent in self.agents.values():
            agent.regions = regions
        if self.leader is not None:
            self.leader.set_agents({name: agent.region for name, agent in self.agents.items()}, self.now)

    def exchange(self, name: str) -> None:
        """Let an agent and the leader exchange, if there is one."""
        agent = self.agents[name]
        request = agent.request(self.now)
        answer = self.ask(request)
        if answer is not None:
            agent.accept(answer, self.now)

    def ask(self, request: ExchangeRequest) -> ExchangeAnswer | None:
        """Return the leader's answer to a request; None without a leader, or for an old request."""
        if self.leader is None:
            return None
        try:
            self.leader.receive(request, self.now, self.wall)
            return self.leader.answer(request.sender, request.number, self.now, self.wall)
        except StaleExchange:
            return None

    def advance(self, step_s: float = 0.1, cut: Collection[str] = ()) -> None:
        """Let time pass; agents exchange each second, and sooner where they want to or the leader wakes them.

        Args:
            cut: names of agents that reach no leader.
        """
        self.now += step_s
        if self.leader is not None:
            self.register()
            self.leader.tick(self.now, self.wall)
        for name, agent in self.agents.items():
            woken = self.leader is not None and name in self.leader.woken
            if woken and self.leader is not None:
                self.leader.woken.discard(name)
            if name not in cut and (agent.wants_exchange or woken or self.now - agent.exchanged_at >= 1.0):
                self.exchange(name)
                # An answer to a request that was open is confirmed at once.
                agent.wants_exchange |= woken

    def run(self, seconds: float, offer: Callable[[float], None], step_s: float = 0.1) -> None:
        """Let time pass; `offer` is called with the time before each step."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            offer(self.now)
            self.advance(step_s)
