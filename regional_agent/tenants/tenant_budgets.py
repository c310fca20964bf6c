"""The meters of budgets at this agent: created on first use, and forgotten when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from penstock.ledger.prices import PriceList, Rate
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.pools.placement import WorkEstimate
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_lease import (
    MAX_USES,
    BudgetKey,
    BudgetLease,
    BudgetLeases,
    BudgetUse,
    keyed_budgets,
    period_of,
)
from penstock.tenancy.budget_limits import reported_tier
from penstock.tenancy.budget_meter import LEASE_WAIT_S, BudgetMeter
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets
from penstock.tenancy.exceeded_budget import exceeded
from penstock.tenancy.refusals import RefusalLog
from penstock.tenancy.request_amounts import estimated_amounts

MAX_SENDERS: Final = 65_536
"""Maximum number of senders (a tenant, and one of its keys) whose budgets are cached; the oldest is evicted first."""

IDLE_S: Final = 600.0
"""Time (s) without requests after which a meter is closed."""

CHECK_S: Final = 1.0
"""Time (s) between two checks whether a leader answers."""

MAX_LEASE_WAIT_S: Final = 1.0
"""Time (s) for which a request waits for leases."""

MAX_WAITING: Final = 256
"""Maximum number of requests that wait for a lease; further ones are refused."""

LEASE_AWAITED: Final = Refusal(
    Reason.QUOTA_EXCEEDED, "waits for a lease of a budget", retry_after_s=LEASE_WAIT_S, awaits_lease=True
)
"""The refusal of a request that should wait for `TenantBudgets.wait_for_lease`."""


class TenantBudgets:
    """Limits the tenants and keys to their budgets, at the agent that receives their requests."""

    def __init__(
        self,
        region: str,
        epoch: int,
        leases: BudgetLeases,
        agents_in: Callable[[str], int],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create no meters.

        Args:
            region: region of the agent.
            epoch: number of this start of the agent.
            leases: the state of the agent's exchanges with the leader.
            agents_in: returns the number of agents of a region, or of all regions for "".
            wall_clock: returns the Unix time (s), for days and months.
        """
        self._region = region
        self._epoch = epoch
        self._leases = leases
        self._agents_in = agents_in
        self.wall_clock = wall_clock
        self.max_wait_s = MAX_LEASE_WAIT_S
        """Time (s) for which a request waits for leases; tests may lengthen it."""
        self._meters: dict[BudgetKey, BudgetMeter] = {}
        self._senders: dict[tuple[str, str], SenderBudgets] = {}
        self._ended: dict[tuple[BudgetKey, int], BudgetUse] = {}
        """The counters of earlier processes that the leader has not confirmed, by budget and epoch."""
        self.refusals = RefusalLog()
        """The newest refusals."""
        self.refused: dict[BudgetUnit, int] = dict.fromkeys(BudgetUnit, 0)
        """Number of refusals, by the unit of the budget."""
        self._generation = 0
        """Number of times that meters were closed or forgotten."""
        self._check_at = 0.0
        self._ended_at = 0.0
        """Without a leader: the time (s) at which the leases ended."""
        self._lost: tuple[int, int] | None = None
        """Without a leader: the numbers of agents of the region and the fleet by which the meters continue."""
        self._prices: PriceList | None = None
        self._priced_by: Policy | None = None
        self._woken = False
        self._waiting = 0
        """Number of requests that wait for a lease."""
        self._answered = asyncio.Event()
        """Set, and replaced, by the next answer of a leader."""
        self._reported_at = 0.0
        """Time (s) of the last report."""

    def of(self, tenant: Tenant, key_id: str = "", key_budgets: tuple[Budget, ...] = ()) -> SenderBudgets | None:
        """Return the budgets that limit a tenant's requests with a key; None if there are none.

        Args:
            key_id: identifier of the key; empty without one.
        """
        if not key_budgets:
            key_id = ""
        known = self._senders.get((tenant.name, key_id))
        if known is not None and known.tenant == tenant and known.key_budgets == key_budgets:
            return known
        keyed = keyed_budgets(tenant.name, "", tenant.budgets, self._region)
        if key_budgets:
            keyed |= keyed_budgets(tenant.name, key_id, key_budgets, self._region)
        if not keyed:
            return None
        budgets = SenderBudgets(tenant, key_budgets, keyed)
        if len(self._senders) >= MAX_SENDERS:
            del self._senders[next(iter(self._senders))]
        self._senders[tenant.name, key_id] = budgets
        return budgets

    def reserve(
        self,
        budgets: SenderBudgets,
        policy: Policy,
        estimate: WorkEstimate,
        now: float,
        held: BudgetReservation | None = None,
        *,
        may_wait: bool = False,
    ) -> BudgetReservation | Refusal:
        """Reserve what a request needs from all of its sender's budgets, or nothing, and refuse it.

        Args:
            policy: the policy in force.
            estimate: the estimated work of the request.
            now: monotonic (s).
            held: what the head of the request reserved, which the result replaces; None for nothing.
            may_wait: whether the request can wait for a lease: then it may be refused with LEASE_AWAITED.
        """
        self._prepare(budgets, now)
        if budgets.needs_estimate:
            price = self.price_of(policy, estimate) if budgets.needs_money else None
            gpus = policy.models[estimate.model].scaling.gpus_per_endpoint if budgets.needs_gpu else 0.0
            amounts = estimated_amounts(estimate, gpus, price)
        else:
            amounts = Amounts()
        if held is not None and held.budgets is not budgets:
            held.give_back(now)
            held = None
        reserved = budgets.reserve(amounts, now, held)
        if isinstance(reserved, BudgetMeter):
            if may_wait and self._awaits_lease(reserved, reserved.amount_of(amounts), now):
                return LEASE_AWAITED
            return self._refuse(budgets, reserved, amounts, now)
        self._wake_if_low(budgets)
        return reserved

    def reserve_early(
        self, budgets: SenderBudgets, now: float, *, may_wait: bool = False
    ) -> BudgetReservation | Refusal:
        """Reserve one request and one place for a request with a large body, by its head; see `reserve`."""
        self._prepare(budgets, now)
        reserved = budgets.reserve_early(now)
        if isinstance(reserved, BudgetMeter):
            if may_wait and self._awaits_lease(reserved, 1.0, now):
                return LEASE_AWAITED
            return self._refuse(budgets, reserved, Amounts(), now)
        return reserved

    async def wait_for_lease(self) -> None:
        """Wait for the next answer of the leader, at most LEASE_WAIT_S."""
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE_WAIT_S):
                    await self._answered.wait()
        finally:
            self._waiting -= 1

    def meters(self) -> Iterable[BudgetMeter]:
        """Return all meters."""
        return self._meters.values()

    def fullest(self, used: float, now: float) -> list[tuple[float, BudgetKey]]:
        """Return the budgets of which at least the part `used` (0-1) is used, with that part. Reads all meters."""
        found = []
        for meter in self._meters.values():
            ratio = meter.used_ratio(now)
            if ratio >= used:
                found.append((ratio, meter.key))
        return found

    def __len__(self) -> int:
        """Return the number of meters."""
        return len(self._meters)

    @property
    def is_without_leader(self) -> bool:
        """Whether no leader renews the leases."""
        return self._lost is not None

    def status(self) -> dict[str, Any]:
        """Return what the status page shows: the number of budgets that are counted, and the newest refusals."""
        newest = self.refusals.newest(self.wall_clock())
        return {"counted": len(self._meters), "without_leader": self.is_without_leader, "refusals": newest}

    def running(self, tenant: str) -> int:
        """Return the running requests of a tenant that count towards a budget of concurrent requests."""
        counts = [meter.held for meter in self._meters.values() if meter.is_concurrency and meter.key.tenant == tenant]
        return round(max(counts, default=0.0))

    def price_of(self, policy: Policy, estimate: WorkEstimate, priority: int = 0) -> Rate | None:
        """Return the price of a request of a priority; None if it costs nothing."""
        wall = self.wall_clock()
        if self._prices is None or policy is not self._priced_by or not self._prices.is_in_force(wall):
            self._prices, self._priced_by = PriceList(policy, wall), policy
        return self._prices.of(estimate.adapter or estimate.model, priority)

    # the exchange with the leader

    def uses(self, now: float) -> list[BudgetUse]:
        """Return the state of the counters; counters of idle tenants are closed.

        Of more than MAX_USES counters, those that were used since the last call come first, and the others in turn.
        """
        meters = self._meters
        if len(meters) <= MAX_USES:
            reported = list(meters.values())
        else:
            since = self._reported_at
            reported = list(islice((meter for meter in meters.values() if meter.used_at >= since), MAX_USES))
            others = islice((meter for meter in meters.values() if meter.used_at < since), MAX_USES - len(reported))
            for meter in list(others):
                # To the end, so that further ones are next.
                del meters[meter.key]
                meters[meter.key] = meter
                reported.append(meter)
        self._reported_at = now
        idle_since = now - IDLE_S
        for meter in reported:
            if not meter.is_closed and meter.is_idle(idle_since):
                meter.close()
                self._generation += 1
        self._woken = False
        uses = [meter.use(self._epoch, now) for meter in reported]
        return [*uses, *islice(self._ended.values(), MAX_USES)]

    def apply(self, leases: list[BudgetLease], now: float) -> None:
        """Apply the leases of an answer; a lease of an unknown counter is ignored (its amount is returned thereby)."""
        for lease in leases:
            meter = self._meters.get(lease.key)
            if meter is not None and not meter.is_closed:
                meter.apply(lease, now)
                if meter.is_concurrency and meter.unspent > meter.keep:
                    # Requests wait for these places at other agents.
                    self._leases.wake()

    def answered(self, uses: list[BudgetUse]) -> None:
        """Forget the counters that these uses closed: the leader has them."""
        for use in uses:
            if not use.closed:
                continue
            if use.epoch != self._epoch:
                self._ended.pop((use.key, use.epoch), None)
                continue
            meter = self._meters.get(use.key)
            if meter is not None and meter.is_closed:
                del self._meters[use.key]
                self._generation += 1
        if self._waiting:
            self._answered.set()
            self._answered = asyncio.Event()

    def report_ended(self, uses: Iterable[BudgetUse]) -> None:
        """Report counters of an earlier process of this agent with the next exchange."""
        self._ended |= {(use.key, use.epoch): use for use in uses}

    def money_uses(self) -> list[BudgetUse]:
        """Return what counters of money have used that the leader may not have, to be kept on disk."""
        uses = [meter.closing_use(self._epoch) for meter in self._meters.values() if meter.is_money and meter.used]
        return [*uses, *self._ended.values()]

    # inside

    def _prepare(self, budgets: SenderBudgets, now: float) -> None:
        """Make the meters of a sender ready for a request."""
        if now >= self._check_at:
            self._check_at = now + CHECK_S
            self._check_leader(now)
        if budgets.generation != self._generation:
            self._find_meters(budgets, now)
        if budgets.needs_money:
            wall = self.wall_clock()
            for meter in budgets.meters:
                if wall >= meter.period_end:
                    meter.enter(period_of(meter.key.unit, wall))
                    if not meter.lost:
                        meter.unspent += self._leases.opening(meter.key, meter.budget, now).amount

    def _find_meters(self, budgets: SenderBudgets, now: float) -> None:
        rules, tier = budgets.tenant.rules, reported_tier(budgets.tenant)
        meters = []
        for key, budget in budgets.limits:
            meter = self._meters.get(key)
            if meter is None:
                opening = self._leases.opening(key, budget, now)
                meter = self._meters[key] = BudgetMeter(key, budget, opening, now, self.wall_clock())
            elif meter.is_closed:
                meter.reopen(self._leases.opening(key, budget, now), now)
            if meter.budget != budget:
                meter.use_budget(budget, now)
            meter.tier = tier
            if rules:
                meter.hold_s, meter.on_loss = rules.hold_s, rules.on_loss
            if self._lost is not None and not meter.lost:
                meter.begin_lost(self._ended_at, self._agents_of(key), now)
            meters.append(meter)
        budgets.meters, budgets.generation = meters, self._generation

    def _check_leader(self, now: float) -> None:
        """Continue without a leader where none answers, and spend leases again where one does."""
        ended_s = self._leases.ended_s(now)
        if ended_s is None:
            if self._lost is not None:
                self._lost = None
                for meter in self._meters.values():
                    meter.regain()
            return
        agents = (max(1, self._agents_in(self._region)), max(1, self._agents_in(""), self._leases.agents))
        if agents != self._lost:
            self._lost, self._ended_at = agents, now - ended_s
            for meter in self._meters.values():
                meter.lose(self._ended_at, self._agents_of(meter.key), now)

    def _agents_of(self, key: BudgetKey) -> int:
        here, everywhere = self._lost or (1, 1)
        return here if key.region else everywhere

    def _awaits_lease(self, meter: BudgetMeter, amount: float, now: float) -> bool:
        if self._waiting >= MAX_WAITING or not meter.awaits_lease(amount, now):
            return False
        meter.wanted += meter.is_concurrency
        self._leases.wake()
        return True

    def _wake_if_low(self, budgets: SenderBudgets) -> None:
        if self._woken:
            return
        for meter in budgets.meters:
            if meter.unspent < meter.low:
                self._wake()
                return

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._leases.wake()

    def _refuse(self, budgets: SenderBudgets, meter: BudgetMeter, amounts: Amounts, now: float) -> Refusal:
        amount = meter.amount_of(amounts)
        if meter.waits_for_lease(amount, now):
            self._wake()
        else:
            self._wake_if_low(budgets)
        wall = self.wall_clock()
        found = exceeded(budgets, meter, amount, now, wall)
        self.refusals.add(found, wall)
        self.refused[found.unit] += 1
        return Refusal(
            Reason.QUOTA_EXCEEDED,
            found.describe(),
            retry_after_s=found.retry_after_s,
            tenant=budgets.tenant.name,
            exceeded=found,
        )
