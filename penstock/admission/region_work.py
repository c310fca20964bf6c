"""The work that tenants receive in a region, over all its agents, and what waits at the other agents.

Each agent counts the requests that it starts and publishes the totals of the tenants whose work has changed recently;
the other agents count the differences between two publications. A tenant with connections at many agents is therefore
served like a tenant at one agent. Without the other agents' publications, each agent's order is fair by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.admission.work_counters import ModelCounters, TenantCounter
from penstock.fleet.shared_counts import LEASE_S

KEEP_S: Final = 2 * LEASE_S
"""Time (s) after its last change for which a total is published: every agent that is not removed for its silence reads
it."""

MAX_PUBLISHED: Final = 64
"""Maximum number of tenants of one model whose totals an agent publishes; those that changed last."""

MAX_WORK_US: Final = 10**13
"""Maximum total (µs), 116 days; a larger total is published as this number."""

WorkTotal = tuple[int, str, int]
"""Priority, name of a tenant, and its total (µs, for its weight)."""


class Difference(NamedTuple):
    """Work that a tenant received at another agent."""

    model: str
    priority: int
    tenant: str
    work_s: float
    """For the weight; negative for a correction."""


class RemoteQueue(NamedTuple):
    """The admission queue of another agent for one model."""

    requests: int
    behind: int
    """Negated priority of the request at the head."""
    since: float
    """Time (s) at which the request at the head arrived, by this agent's clock."""
    which: int
    """Number of the request at the head, unique in the region."""
    tenant: str = ""
    """Tenant of the request at the head; empty from an agent of an earlier release."""


class _Published:
    """A counter whose total is published."""

    __slots__ = ("changed_at", "counter")

    def __init__(self, counter: TenantCounter, changed_at: float) -> None:
        self.counter = counter
        self.changed_at = changed_at


class RegionWork:
    """The counters of all models at one agent, what it publishes of them, and the queues of the other agents."""

    def __init__(self) -> None:
        """Create counters without work."""
        self._models: dict[str, ModelCounters] = {}
        self._published: dict[str, dict[tuple[int, str], _Published]] = {}
        """The published counters by model, the least recently changed first."""
        self.remote_queues: dict[str, list[RemoteQueue]] = {}
        """The other agents' admission queues, by model; without those of agents whose load has no weight left."""

    def of(self, model: str) -> ModelCounters:
        """Return the counters of a model."""
        counters = self._models.get(model)
        if counters is None:
            counters = self._models[model] = ModelCounters()
        return counters

    def running(self) -> Iterator[tuple[str, int]]:
        """Yield tenants and their running requests at this agent, once for each model and priority."""
        for counters in self._models.values():
            for level in counters.priorities.values():
                if level.running:
                    yield from ((each.tenant, each.running) for each in level.tenants.values() if each.running)

    def totals(self, now: float) -> dict[str, list[WorkTotal]]:
        """Return the totals to publish, by model. `now` is monotonic, in seconds."""
        for model, counters in self._models.items():
            published = self._published.get(model)
            for priority, level in counters.priorities.items():
                if level.changed:
                    if published is None:
                        published = self._published[model] = {}
                    _take(published, priority, level.changed, now)
                    level.changed = []
        totals: dict[str, list[WorkTotal]] = {}
        for model, published in list(self._published.items()):
            _drop(published, now)
            if published:
                totals[model] = [
                    (priority, tenant, int(max(-MAX_WORK_US, min(MAX_WORK_US, each.counter.total_s * 1e6))))
                    for (priority, tenant), each in published.items()
                ]
            else:
                del self._published[model]
        return totals

    def started_elsewhere(self, work: Iterable[Difference], now: float) -> None:
        """Count the work that tenants received at another agent. `now` is monotonic, in seconds."""
        for model, priority, tenant, work_s in work:
            self.of(model).started_elsewhere(priority, tenant, work_s, now)


def differences(before: dict[str, list[WorkTotal]], after: dict[str, list[WorkTotal]]) -> list[Difference]:
    """Return the work between two successive publications of one agent. A total that is new began at 0."""
    found: list[Difference] = []
    for model, totals in after.items():
        past = {(priority, tenant): total_us for priority, tenant, total_us in before.get(model, ())}
        for priority, tenant, total_us in totals:
            work_us = total_us - past.get((priority, tenant), 0)
            if work_us:
                found.append(Difference(model, priority, tenant, work_us / 1e6))
    return found


def _take(
    published: dict[tuple[int, str], _Published], priority: int, changed: list[TenantCounter], now: float
) -> None:
    for counter in changed:
        counter.has_changed = False
        key = (priority, counter.tenant)
        before = published.pop(key, None)
        if before is not None and before.counter is not counter:
            # The counter was removed and created again; the total continues.
            counter.total_s += before.counter.total_s
        published[key] = _Published(counter, now)


def _drop(published: dict[tuple[int, str], _Published], now: float) -> None:
    """Remove totals that have not changed for a while, or that are too many; they begin at 0 again."""
    surplus = len(published) - MAX_PUBLISHED
    for number, (key, each) in enumerate(list(published.items())):
        if number >= surplus and now - each.changed_at < KEEP_S:
            break
        each.counter.total_s = 0.0
        del published[key]
