"""Counts the work that each tenant receives from a model's endpoints: the basis of the fair order among tenants.

A request counts when it starts, whether or not it waited, with its estimated work; when it ends, the estimate is
replaced by the work that was measured (the virtual token counter of Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024; start-time fair queueing with several servers: Jin et al., SIGMETRICS 2004). All counters are in
seconds on the reference accelerator, divided by the weight of the tenant.

A tenant that is idle saves up nothing: its counter is raised to the virtual time, the counter of the tenant that was
served last.
"""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.admission.priority_turns import PriorityTurns

MAX_TENANTS: Final = 1024
"""Number of tenants to which a sweep reduces the counters of a priority of a model, as far as tenants have neither
running nor waiting requests; up to twice as many are kept between two sweeps. Of more tenants, those that received the
least are forgotten: they are raised to the virtual time when they return."""

SHARED_S: Final = 10.0
"""Time (s) after a request of a tenant for which the model counts as shared with it."""

MIN_SWEEP: Final = 64
"""Number of tenants from which on counters that no longer matter are removed."""


class TenantCounter:
    """The work of one tenant's requests of one model and priority."""

    def __init__(self, counters: WorkCounters, tenant: str, weight: float, received_s: float) -> None:
        self.counters = counters
        self.tenant = tenant
        self.weight = weight
        self.received_s = received_s
        """Work received (s, for the weight), on the scale of the virtual time."""
        self.running = 0
        """Requests of this agent that run."""
        self.total_s = 0.0
        """Work received (s, for the weight) at this agent since its published total began at 0."""
        self.waits = False
        """Whether a request of the tenant waits at this agent."""
        self.has_changed = False
        """Whether `total_s` has changed since it was taken for publication."""

    def end(self, charged_s: float, used_s: float) -> None:
        """Replace the estimate of a request that ended, which `start` has counted, by the work (s) that it used."""
        self.counters.running -= 1
        self.running -= 1
        self.add((used_s - charged_s) / self.weight)

    def add(self, work_s: float) -> None:
        """Count work (s, for the weight) that the tenant received at this agent; negative for a correction."""
        counters = self.counters
        self.received_s += work_s
        self.total_s += work_s
        if self.received_s > counters.highest_s:
            counters.highest_s = self.received_s
        if not self.has_changed:
            self.has_changed = True
            counters.changed.append(self)


class WorkCounters:
    """The counters of the tenants of one priority of a model, and their virtual time."""

    def __init__(self) -> None:
        """Create counters without tenants."""
        self.tenants: dict[str, TenantCounter] = {}
        self.changed: list[TenantCounter] = []
        """The counters that changed since they were taken for publication."""
        self.virtual_s = 0.0
        """Work (s, for its weight) that the tenant served last had received before."""
        self.running = 0
        """Requests of this agent that run."""
        self.waiting = 0
        """Tenants with waiting requests at this agent."""
        self.highest_s = 0.0
        """A bound of what any tenant has received."""
        self.shared_since = -inf
        """Time (s) at which another tenant joined one that had the model for itself."""
        self._sweep_at = MIN_SWEEP

    def start(self, tenant: str, weight: float, work_s: float) -> TenantCounter:
        """Count a request that starts, with its estimated work (s); returns the counter, whose `end` has to follow."""
        counter = self.tenants.get(tenant) or self._create(tenant, weight)
        counter.weight = weight
        if not counter.waits:
            if not self.running and not self.waiting:
                # No request waited while the earlier work ran, so that work counts against no tenant.
                self.virtual_s = self.highest_s
            if counter.received_s < self.virtual_s:
                counter.received_s = self.virtual_s
        if counter.received_s > self.virtual_s:
            self.virtual_s = counter.received_s
        counter.add(work_s / weight)
        self.running += 1
        counter.running += 1
        return counter

    def started_elsewhere(self, tenant: str, work_s: float) -> None:
        """Count work (s, for the weight) that a tenant received at another agent; negative for a correction."""
        counter = self.tenants.get(tenant) or self._create(tenant, 1.0)
        if not counter.waits and not counter.running and counter.received_s < self.virtual_s:
            counter.received_s = self.virtual_s
        if work_s > 0.0 and counter.received_s > self.virtual_s:
            self.virtual_s = counter.received_s
        counter.received_s += work_s
        if counter.received_s > self.highest_s:
            self.highest_s = counter.received_s

    def received_s(self, tenant: str) -> float:
        """Return the counter (s) that a tenant has, or would have if a request of it joined."""
        counter = self.tenants.get(tenant)
        if counter is None:
            return self.virtual_s
        return counter.received_s if counter.waits else max(counter.received_s, self.virtual_s)

    def join(self, tenant: str, weight: float) -> TenantCounter:
        """Return the counter of a tenant whose first request joins the queue; `leave` has to follow."""
        counter = self.tenants.get(tenant) or self._create(tenant, weight)
        if not counter.waits:
            counter.weight = weight
            counter.received_s = max(counter.received_s, self.virtual_s)
            counter.waits = True
            self.waiting += 1
        return counter

    def leave(self, counter: TenantCounter) -> None:
        """Record that no request of a tenant waits any longer."""
        if counter.waits:
            counter.waits = False
            self.waiting -= 1

    def _create(self, tenant: str, weight: float) -> TenantCounter:
        if len(self.tenants) >= self._sweep_at:
            self._sweep()
        counter = self.tenants[tenant] = TenantCounter(self, tenant, weight, self.virtual_s)
        return counter

    def _sweep(self) -> None:
        """Remove counters of tenants without requests: those at the virtual time, and if need be the lowest."""
        idle = [each for each in self.tenants.values() if not each.running and not each.waits]
        idle.sort(key=_received)
        surplus = len(self.tenants) - MAX_TENANTS
        for number, each in enumerate(idle):
            if each.received_s > self.virtual_s and number >= surplus:
                break
            del self.tenants[each.tenant]
        self.changed = [each for each in self.changed if self.tenants.get(each.tenant) is each]
        self._sweep_at = max(2 * len(self.tenants), MIN_SWEEP)


class ModelCounters:
    """The counters of one model's tenants, by priority."""

    def __init__(self) -> None:
        self.priorities: dict[int, WorkCounters] = {}
        self.turns = PriorityTurns()
        """The reserves of lower priorities."""
        self._newest = ""
        """The tenant whose request started last, and when (s)."""
        self._newest_at = -inf
        self._other_at = -inf
        """When a request of another tenant started last (s)."""

    def of(self, priority: int) -> WorkCounters:
        """Return the counters of a priority."""
        counters = self.priorities.get(priority)
        if counters is None:
            counters = self.priorities[priority] = WorkCounters()
        return counters

    def start(self, priority: int, tenant: str, weight: float, work_s: float, now: float) -> TenantCounter:
        """As `WorkCounters.start`, for one of the priorities. `now` is monotonic, in seconds."""
        self._note(tenant, now)
        if self.turns.levels:
            self.turns.started(priority, work_s, now)
        counters = self.priorities.get(priority)
        if counters is None:
            counters = self.of(priority)
        return counters.start(tenant, weight, work_s)

    def started_elsewhere(self, priority: int, tenant: str, work_s: float, now: float) -> None:
        """As `WorkCounters.started_elsewhere`, for one of the priorities."""
        self._note(tenant, now)
        if self.turns.levels and work_s > 0.0:
            self.turns.started(priority, work_s, now)
        self.of(priority).started_elsewhere(tenant, work_s)

    def is_shared(self, tenant: str, now: float) -> bool:
        """Whether tenants besides one had requests in the last SHARED_S."""
        return now - (self._other_at if tenant == self._newest else self._newest_at) < SHARED_S

    def _note(self, tenant: str, now: float) -> None:
        if tenant != self._newest:
            if now - self._other_at >= SHARED_S:
                for counters in self.priorities.values():
                    counters.shared_since = now
            self._other_at = self._newest_at
            self._newest = tenant
        self._newest_at = now


def _received(counter: TenantCounter) -> float:
    return counter.received_s
