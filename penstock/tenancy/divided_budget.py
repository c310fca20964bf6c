"""One budget, as the leader divides it among agents.

Each amount of a budget is in one place at a time: available at the leader (`available`), granted to an agent, or used.

- granted = used + returned + expired. What an agent holds (`AgentHolding.held`) is charged when it is granted. A report
  states what of it was used and what is still held; the difference to the charge is returned to `available`. When the
  lease ends, what is held expires and becomes available again; a later report of its use is charged then.
- Nothing doubles. An amount becomes available again only if the agent reported that it dropped it, if the answer with
  the grant is known to be void (the agent's next request names another answer), or if the lease ended, upon which the
  agent drops it. The agent's lease ends first: it counts from its request, the leader from its answer, plus a margin.
- Nothing burns. Each grant ends in one of these ways, and a budget that refills is full again after limit / rate.
- `available` may be negative: settlements, and agents without a leader, may use more than was granted. The excess is
  charged, and withheld from later grants.

The argument holds for each kind of budget; they differ in what a charge is: a budget that refills gains its rate up to
its burst, what agents hold included; concurrent requests are charged while they run; money is charged by period.
"""

from __future__ import annotations

import msgspec

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.agent_holding import AgentHolding
from penstock.tenancy.amounts import ROUNDING
from penstock.tenancy.budget_lease import MONEY, PER_MINUTE, BudgetKey, BudgetUse, period_end
from penstock.tenancy.budget_meter import MAX_EXCESS_BURSTS
from penstock.tenancy.opening_share import whole
from penstock.tenancy.water_filling import shares
from penstock.tenancy.without_leader import full_rate

RESHARE_S = 0.2
"""Minimum time (s) between two divisions of one budget."""

MONEY_CHUNK = 0.25
"""Part of the rest of a budget of money that agents hold: chunks become smaller as the budget ends (guided
self-scheduling: Polychronopoulos, Kuck, 1987)."""

SLACK = 0.1
"""Part by which what an agent holds may exceed its part before it gives the excess back."""

IDLE_S = 2.0
"""Time (s) without a request after which an agent gives back the amount of its last request to one that lacks it."""

MAX_COUNTERS = 1_000
"""Maximum number of ended counters whose amounts are kept, so that a late report is charged once."""


class MoneyTotal(msgspec.Struct, frozen=True, array_like=True):
    """What is used of one budget of money in a day or month. The leader saves it, so that it survives the loss of the
    leader and the agents."""

    period: int
    """Number of the day or month (`period_of`)."""
    spent: float
    """Amount used, as reported."""
    counters: tuple[tuple[str, int, float], ...]
    """Agent, number of its counter, and what of the amount it reported: a later report is charged from there."""


class DividedBudget:
    """The accounts of one budget.

    Args:
        budget: the limits in force.
        now: monotonic clock (s).
        available: amount that can be granted at first.
        period: day or month of a budget of money; 0 for other units.
    """

    __slots__ = (
        "accounts",
        "at",
        "available",
        "budget",
        "counters",
        "expired",
        "forgiven",
        "full_rate",
        "held",
        "is_money",
        "key",
        "overdrawn",
        "period",
        "rates_in_force",
        "refills",
        "runs",
        "shared_at",
        "silent",
        "tier",
        "whole",
    )

    def __init__(self, key: BudgetKey, budget: Budget, now: float, available: float, period: int) -> None:
        self.key = key
        self.budget = budget
        self.tier = ""
        """See `BudgetUse.tier`: as last reported."""
        self.whole = whole(budget)
        """Amount that can be used at once."""
        self.full_rate = full_rate(budget)
        """Rate (units per second) of the whole budget."""
        self.refills = budget.unit in PER_MINUTE
        self.is_money = budget.unit in MONEY
        self.runs = budget.unit is BudgetUnit.CONCURRENT_REQUESTS
        """Whether an amount is charged only while requests run."""
        self.silent = 0
        """Number of agents without leases that continue at their rates."""
        self.available, self.at, self.period = available, now, period
        self.accounts: dict[str, AgentHolding] = {}
        self.counters: dict[tuple[str, int], float] = {}
        """Amount that is charged of counters, by agent and number: of money all in the period, of others those of
        agents that disappeared."""
        self.held = 0.0
        """Sum of what the agents hold."""
        self.rates_in_force = 0.0
        """Sum of the rates at which agents may continue without a leader."""
        self.shared_at = -RESHARE_S
        self.expired = 0.0
        """Amount whose leases have ended, since the leader took office."""
        self.forgiven = 0.0
        """Debt beyond its bound, until the rest is repaid."""
        self.overdrawn = 0.0
        """Largest amount by which `available` was negative since it was last read."""

    def refill(self, now: float, part: float = 1.0) -> None:
        """Add what became available since the last call.

        Args:
            now: monotonic clock (s).
            part: part of the rate that no unknown agent may be using.
        """
        passed = max(0.0, now - self.at)
        self.at = now
        if self.runs or passed == 0.0:
            return
        if self.silent:
            for account in self.accounts.values():
                if account.is_silent:
                    spent = account.granted + account.announced_rate * passed
                    self._update(account, account.used, account.unspent, spent)
        if self.refills:
            gained = self.available + self.full_rate * part * passed
            self.available = min(gained, max(self.available, self.whole - self.held))

    def limit_to(self, budget: Budget) -> None:
        """Use other limits from now on. What is used and held stays so."""
        if budget != self.budget:
            before = self.whole
            self.budget, self.whole, self.full_rate = budget, whole(budget), full_rate(budget)
            self.available += 0.0 if self.refills else self.whole - before
            self.available = min(self.available, self.whole - self.held)

    def begin(self, period: int) -> None:
        """Begin another day or month: nothing is used, and what agents hold of the last one is void."""
        self.period = period
        self.available, self.held = self.budget.limit, 0.0
        self.counters.clear()
        for account in self.accounts.values():
            account.used = account.unspent = account.granted = account.held = 0.0

    def report(self, agent: str, use: BudgetUse, *, is_charged: bool = False, has_past: bool = False) -> AgentHolding:
        """Charge what an agent reports of its counter.

        Args:
            is_charged: whether an earlier leader charged what an unknown counter has used.
            has_past: whether the counter may have been used without leases of this leader.
        """
        account, before = self.accounts.get(agent), self.available
        if account is not None and account.epoch != use.epoch:
            self.leave(agent)
            account = None
        if account is None:
            account = self.accounts[agent] = AgentHolding(use.epoch, self.at)
            counted = self.counters.pop((agent, use.epoch), None)
            if counted is None:
                counted = use.used if is_charged and self.refills else 0.0
            account.used = counted
            self.announce_rate(account, use.rate_per_s)
            self.shared_at = -RESHARE_S
        self.silent -= account.is_silent
        account.is_silent = False
        if use.used > account.used or use.demand_per_s > account.demand:
            account.asked_at = self.at
        account.demand, account.request = use.demand_per_s, use.request_amount
        if use.wanted and not account.wanted:
            account.wanted_at = self.at
        account.wanted = use.wanted
        rate, account_used = account.rate_in_force, account.used
        account.reported_rate = use.rate_per_s
        self.rates_in_force += account.rate_in_force - rate
        if self.is_money and use.period != self.period:
            # What an agent with another clock used is charged already: it must not return to the budget.
            self._update(account, account.used, 0.0, 0.0)
        else:
            # No agent can hold more than the whole, whatever it reports.
            self._update(account, use.used, min(use.unspent, self.whole), 0.0)
        if self.refills:
            # A counter with a past withholds the budget for the time of one burst, and not for ever.
            most = self.whole * (1.0 if has_past else MAX_EXCESS_BURSTS)
            self._bound_debt(min(before, -most), account_used - account.used)
        return account

    def _bound_debt(self, least: float, refund: float) -> None:
        """Forgive a debt beyond `least`. What was forgiven of an estimate is no part of its later refund."""
        returned = min(max(0.0, refund), self.forgiven)
        excess = max(0.0, least - (self.available - returned))
        self.available = min(self.available - returned + excess, self.whole - self.held)
        self.forgiven = self.forgiven - returned + excess if self.available < 0.0 else 0.0

    def report_ended(self, agent: str, use: BudgetUse) -> None:
        """Charge the last report of a counter that has ended: of an earlier process of the agent, or a closed one."""
        account = self.accounts.get(agent)
        if account is not None and account.epoch == use.epoch:
            self.report(agent, use)
            self.leave(agent)
            if not self.is_money:
                self.counters.pop((agent, use.epoch), None)
        elif self.is_money and use.period == self.period:
            counted = self.counters.get((agent, use.epoch), 0.0)
            self.available -= max(0.0, use.used - counted)
            self._count(agent, use.epoch, max(counted, use.used))

    def grant(self, account: AgentHolding, amount: float) -> None:
        """Charge an amount that the next answer grants."""
        self._update(account, account.used, account.unspent, account.granted + amount)

    def settle(self, account: AgentHolding, *, arrived: bool) -> None:
        """Settle the last grant, of which the agent's next request states whether it arrived."""
        unspent = account.unspent + account.granted if arrived else account.unspent
        self._update(account, account.used, unspent, 0.0)

    def expire(self, agent: str, agents: int, *, is_registered: bool) -> None:
        """End an agent's lease: what it holds becomes available. A registered agent continues at its rate, or, later,
        at an equal part; the larger one is withheld from the others.

        Args:
            agents: number of agents that the budget covers.
        """
        account = self.accounts.get(agent)
        if account is None:
            return
        if not account.is_silent:
            self.expired += account.held
            account.is_silent, account.wanted = True, 0
            self.silent += 1
            share = self.rate(0.0) / agents if not self.is_money else 0.0
            self.announce_rate(account, max(account.rate_in_force, share))
            self._update(account, account.used, min(0.0, account.unspent), 0.0)
        if not is_registered:
            self.leave(agent)

    def revive(self, agent: str) -> None:
        """Begin a lease of an agent again that reported nothing of the budget: it holds nothing."""
        account = self.accounts.get(agent)
        if account is not None and account.is_silent:
            account.is_silent = False
            self.silent -= 1
            self._update(account, account.used, account.unspent, 0.0)

    def leave(self, agent: str) -> None:
        """Remove the account of an agent that has stopped counting. What it used stays charged, and is charged once if
        the agent reports again."""
        account = self.accounts.pop(agent, None)
        if account is None:
            return
        self.silent -= account.is_silent
        self.rates_in_force -= account.rate_in_force
        account.announced_rate = account.reported_rate = 0.0
        if self.runs:
            self._update(account, 0.0, 0.0, 0.0)
        else:
            self._update(account, account.used, 0.0, 0.0)
            self._count(agent, account.epoch, account.used)

    @property
    def is_unused(self) -> bool:
        """Whether agents may start with equal parts: the budget is full, or less than half of the money is used."""
        if self.is_money:
            return self.available >= self.budget.limit / 2
        return self.available >= self.whole * (1 - 1e-9)

    def spent(self) -> dict[tuple[str, int], float]:
        """Return what each counter has used; of a budget of money, in the period."""
        return self.counters | {(agent, account.epoch): account.used for agent, account in self.accounts.items()}

    def _count(self, agent: str, epoch: int, used: float) -> None:
        if (agent, epoch) not in self.counters and len(self.counters) >= MAX_COUNTERS:
            oldest = min(self.counters, key=lambda counter: counter[1])
            del self.counters[oldest]
        self.counters[agent, epoch] = used

    def reshare(self, now: float, reserve: float, wall: float) -> bool:
        """Divide the budget by demand, unless that was done a moment ago.

        Args:
            now: monotonic clock (s).
            reserve: amount that is kept for agents without accounts.
            wall: Unix time (s).

        Returns:
            Whether it was divided.
        """
        if now - self.shared_at < RESHARE_S:
            return False
        self.shared_at = now
        accounts = [account for account in self.accounts.values() if not account.is_silent]
        if not accounts:
            return False
        # Anew, so that rounding errors do not add up.
        self.rates_in_force = sum(account.rate_in_force for account in self.accounts.values())
        taken = sum(account.announced_rate for account in self.accounts.values() if account.is_silent)
        if self.runs:
            taken += reserve
        total = max(1e-9, self.rate(wall) - taken)
        found = shares(total, [account.demand for account in accounts], [account.share for account in accounts])
        for account, share in zip(accounts, found, strict=True):
            account.share = share
        return True

    def target(self, account: AgentHolding, reserve: float) -> float:
        """Return the amount that an account should hold, so that all together hold what is available."""
        if self.runs:
            amount = max(0.0, account.share * (self.budget.limit - reserve) - account.used)
        else:
            amount = account.share * max(0.0, self.available + self.held - reserve)
            if self.is_money:
                amount *= MONEY_CHUNK
        if account.wanted:
            amount = max(amount, account.wanted)
        elif wanted := self.wanted():
            # Free places are for requests that wait, wherever they are.
            return max(0.0, min(account.leased, account.held - max(0.0, self._lacking(wanted, reserve))))
        if amount < account.request:
            # Parts that permit no request leave less than one to an agent that could use it.
            return account.request if self._is_in_use(account) and self._turn(account, reserve) else 0.0
        if self.runs:
            return float(int(amount + 1e-9))
        return amount

    def rate(self, wall: float) -> float:
        """Return the rate (units per second) that agents have together; the limit for concurrent requests.

        Args:
            wall: Unix time (s).
        """
        if self.is_money:
            left = max(60.0, period_end(self.budget.unit, self.period) - wall)
            return max(0.0, self.available + self.held) / left
        return self.full_rate

    def rate_of(self, account: AgentHolding, kept: float, wall: float) -> float:
        """Return the rate of an agent's next lease: its part by demand, of what others leave.

        Without the limit, the rates at a moment at which demand moves would together exceed the budget, and a leader
        that is lost then would leave them so. Others leave what their rates in force do not use; of concurrent
        requests, which others may run already, what is available.

        Args:
            kept: amount that is not for this agent.
            wall: Unix time (s).
        """
        if self.runs:
            left = account.used + account.held + max(0.0, self.available - kept)
            return float(int(min(account.share * (self.budget.limit - kept), left) + 1e-9))
        whole_rate = self.rate(wall)
        left = whole_rate - self.rates_in_force + account.rate_in_force
        return max(0.0, min(account.share * whole_rate, left))

    def announce_rate(self, account: AgentHolding, rate: float) -> None:
        """Keep the rate of the lease that an agent is about to have."""
        before = account.rate_in_force
        account.announced_rate = rate
        self.rates_in_force += account.rate_in_force - before
        self._update(account, account.used, account.unspent, account.granted)

    def is_short(self, account: AgentHolding) -> bool:
        """Whether an agent has demand and cannot permit a usual request."""
        return account.leased < account.wanted or (account.leased < account.request and self._is_in_use(account))

    def wanted(self) -> float:
        """Return the number of places that requests wait for and that their agents do not have yet."""
        if not self.runs:
            return 0.0
        return sum(max(0.0, account.wanted - account.leased) for account in self.accounts.values())

    def holders(self, reserve: float) -> list[str]:
        """Return the agents that hold clearly more than their part, which another agent could use; while requests wait
        for places, all that had some: what is free by now, they tell."""
        if self.wanted():
            return [
                agent
                for agent, each in self.accounts.items()
                if (each.held or each.used) and not (each.wanted or each.is_silent)
            ]
        smallest = min((account.request for account in self.accounts.values()), default=0.0)
        if self.held < smallest:
            return []
        return [
            agent for agent, account in self.accounts.items() if self.surplus(account, self.target(account, reserve))
        ]

    def surplus(self, account: AgentHolding, target: float) -> float:
        """Return the amount that an agent should give back, of which `target` is its part; 0 if it is small."""
        over = account.held - target
        return over if over > SLACK * account.held and not account.is_silent else 0.0

    def _lacking(self, wanted: float, reserve: float) -> float:
        recalled = sum(account.recalled for account in self.accounts.values())
        return wanted - recalled - max(0.0, self.available - reserve)

    def _is_in_use(self, account: AgentHolding) -> bool:
        """Whether an agent has had about a request in the last minute."""
        if self.runs:
            return account.demand >= 0.5
        return account.demand * 60.0 >= account.request

    def _turn(self, account: AgentHolding, reserve: float) -> bool:
        """Whether an agent whose part is smaller than a request has one now: first come, first served, while it is not
        idle."""
        idle_since = self.at - IDLE_S
        if account.asked_at <= idle_since and any(
            other.asked_at > idle_since and self.is_short(other) for other in self.accounts.values()
        ):
            return False
        return max(account.leased, self.available + account.held - reserve + ROUNDING) >= account.request

    def _update(self, account: AgentHolding, used: float, unspent: float, granted: float) -> None:
        held = granted + unspent if unspent > 0.0 else granted
        if self.runs:
            # The agent may lose its leader, and then run as many at once.
            held = max(held, account.rate_in_force - used)
        more_held = held - account.held
        self.held += more_held
        self.available -= more_held + used - account.used
        account.used, account.unspent, account.granted, account.held = used, unspent, granted, held
        if self.available < -self.overdrawn:
            self.overdrawn = -self.available


def total_of(budget: DividedBudget) -> MoneyTotal:
    """Return the total of a budget of money."""
    counters = tuple((agent, epoch, used) for (agent, epoch), used in budget.spent().items())
    return MoneyTotal(budget.period, budget.budget.limit - budget.available - budget.held, counters)


def restored(budget: DividedBudget, total: MoneyTotal) -> None:
    """Charge a saved total to a budget in which nothing is charged yet."""
    budget.available -= total.spent
    budget.counters.update({(agent, epoch): used for agent, epoch, used in total.counters})
