"""Counts the work that each tenant receives from a model's endpoints: the basis of the fair order among tenants.

A request counts when it starts, whether or not it waited, with its estimated work; when it ends, the estimate is
replaced by the work that was measured (the virtual token counter of Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024; start-time fair queueing with several servers: Jin et al., SIGMETRICS 2004). All counters are in
seconds on the reference accelerator, divided by the weight of the tenant.

A tenant that is idle saves up nothing: its counter is raised to the virtual time, the counter of the tenant that was
served last. That tenant may hold many slots, so half of the work that it runs is not counted as received here: the
newcomer is first until it holds as much.
"""

from __future__ import annotations

from typing import Final

MAX_TENANTS: Final = 1024
"""Maximum number of tenants without running and waiting requests whose counters are kept, for each priority of a
model. Of more tenants, those that received the least are forgotten: they are raised to the virtual time when they
return."""

MIN_SWEEP: Final = 64
"""Number of tenants from which on counters that no longer matter are removed."""


class TenantCounter:
    """The work of one tenant's requests of one model and priority."""

    __slots__ = (
        "counters",
        "has_changed",
        "received_s",
        "running",
        "running_s",
        "tenant",
        "total_s",
        "waits",
        "weight",
    )

    def __init__(self, counters: WorkCounters, tenant: str, weight: float, received_s: float) -> None:
        self.counters = counters
        self.tenant = tenant
        self.weight = weight
        self.received_s = received_s
        """Work received (s, for the weight), on the scale of the virtual time."""
        self.running = 0
        """Requests of this agent that run."""
        self.running_s = 0.0
        """Their work (s, for the weight), by the estimates."""
        self.total_s = 0.0
        """Work received (s, for the weight) at this agent since the counter was last published for the first time."""
        self.waits = False
        """Whether a request of the tenant waits at this agent."""
        self.has_changed = False
        """Whether `total_s` has changed since it was taken for publication."""

    def end(self, charged_s: float, used_s: float) -> None:
        """Replace the estimate of a request that ended, which `start` has counted, by the work (s) that it used."""
        counters, weight = self.counters, self.weight
        counters.running -= 1
        self.running -= 1
        self.running_s = self.running_s - charged_s / weight if self.running else 0.0
        more_s = (used_s - charged_s) / weight
        if more_s:
            self.add(more_s)

    def add(self, work_s: float) -> None:
        """Count work (s, for the weight) that the tenant received at this agent; negative for a correction."""
        self.received_s += work_s
        self.total_s += work_s
        if not self.has_changed:
            self.has_changed = True
            self.counters.changed.append(self)


class WorkCounters:
    """The counters of the tenants of one priority of a model, and their virtual time."""

    __slots__ = ("_highest_s", "_last", "_sweep_at", "changed", "running", "tenants", "virtual_s", "waiting")

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
        self._last: TenantCounter | None = None
        """The tenant served last, which determines the virtual time."""
        self._highest_s = 0.0
        """A bound of what any tenant has received."""
        self._sweep_at = MIN_SWEEP

    def start(self, tenant: str, weight: float, work_s: float) -> TenantCounter:
        """Count a request that starts, with its estimated work (s); returns the counter, whose `end` has to follow."""
        counter = self.tenants.get(tenant) or self._create(tenant, weight)
        counter.weight = weight
        if not counter.waits:
            if not self.running and not self.waiting:
                # Nobody waited for what was used before, so it counts against no tenant.
                self.virtual_s = self._highest_s
                self._last = None
            self._raise(counter)
        self._advance(counter)
        work_s = work_s / weight
        counter.add(work_s)
        if counter.received_s > self._highest_s:
            self._highest_s = counter.received_s
        self.running += 1
        counter.running += 1
        counter.running_s += work_s
        return counter

    def started_elsewhere(self, tenant: str, work_s: float) -> None:
        """Count work (s, for the weight) that a tenant received at another agent; negative for a correction."""
        counter = self.tenants.get(tenant) or self._create(tenant, 1.0)
        if not counter.waits and not counter.running:
            self._raise(counter)
        if work_s > 0.0:
            self._advance(counter)
        counter.received_s += work_s
        if counter.received_s > self._highest_s:
            self._highest_s = counter.received_s

    def floor_s(self) -> float:
        """Return the lowest counter (s) that a tenant has when its first request joins or starts."""
        last = self._last
        return self.virtual_s if last is None else self.virtual_s - last.running_s / 2.0

    def received_s(self, tenant: str) -> float:
        """Return the counter (s) that a tenant has, or would have if a request of it joined."""
        counter, floor_s = self.tenants.get(tenant), self.floor_s()
        return (
            floor_s if counter is None or (counter.received_s < floor_s and not counter.waits) else counter.received_s
        )

    def join(self, tenant: str, weight: float) -> TenantCounter:
        """Return the counter of a tenant whose first request joins the queue; `leave` has to follow."""
        counter = self.tenants.get(tenant) or self._create(tenant, weight)
        if not counter.waits:
            counter.weight = weight
            self._raise(counter)
            counter.waits = True
            self.waiting += 1
        return counter

    def leave(self, counter: TenantCounter) -> None:
        """Record that no request of a tenant waits any longer."""
        if counter.waits:
            counter.waits = False
            self.waiting -= 1

    def _advance(self, counter: TenantCounter) -> None:
        """Advance the virtual time to the counter of a tenant that is served."""
        if counter.received_s >= self.virtual_s:
            self.virtual_s = counter.received_s
            self._last = counter

    def _raise(self, counter: TenantCounter) -> None:
        """Raise the counter of a tenant without waiting requests, so that its idle time has saved up nothing."""
        last, floor_s = self._last, self.virtual_s
        if last is not None and last is not counter:
            floor_s -= last.running_s / 2.0
        if counter.received_s < floor_s:
            counter.received_s = floor_s

    def _create(self, tenant: str, weight: float) -> TenantCounter:
        if len(self.tenants) >= self._sweep_at:
            self._sweep()
        counter = self.tenants[tenant] = TenantCounter(self, tenant, weight, self.floor_s())
        return counter

    def _sweep(self) -> None:
        """Remove counters of tenants without requests: those that equal the floor, and if need be the lowest."""
        floor_s = self.floor_s()
        idle = [each for each in self.tenants.values() if not each.running and not each.waits]
        idle.sort(key=_received)
        surplus = len(self.tenants) - MAX_TENANTS
        for number, each in enumerate(idle):
            if each.received_s > floor_s and number >= surplus:
                break
            if each is not self._last:
                del self.tenants[each.tenant]
        self.changed = [each for each in self.changed if self.tenants.get(each.tenant) is each]
        self._sweep_at = max(2 * len(self.tenants), MIN_SWEEP)


class ModelCounters:
    """The counters of one model's tenants, by priority."""

    __slots__ = ("priorities",)

    def __init__(self) -> None:
        self.priorities: dict[int, WorkCounters] = {}

    def of(self, priority: int) -> WorkCounters:
        """Return the counters of a priority."""
        counters = self.priorities.get(priority)
        if counters is None:
            counters = self.priorities[priority] = WorkCounters()
        return counters

    def start(self, priority: int, tenant: str, weight: float, work_s: float) -> TenantCounter:
        """As `WorkCounters.start`, for one of the priorities."""
        counters = self.priorities.get(priority)
        if counters is None:
            counters = self.of(priority)
        return counters.start(tenant, weight, work_s)


def _received(counter: TenantCounter) -> float:
    return counter.received_s
