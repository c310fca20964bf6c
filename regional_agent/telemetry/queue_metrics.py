"""Metrics of priorities in the admission queues: waits, and which priority displaced which."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from penstock.policy.kinds.tenants import BATCH_PRIORITY


class PriorityClass(StrEnum):
    """Values of the label `priority`, which is bounded although policy may have 2,001 priorities."""

    HIGH = "high"
    """Above 0."""
    NORMAL = "normal"
    """0, the priority of tenants without one."""
    LOW = "low"
    """Below 0."""
    BATCH = "batch"


CLASSES: Final = tuple(PriorityClass)


def class_of(priority: int) -> PriorityClass:
    """Return the class of a priority."""
    if priority == BATCH_PRIORITY:
        return PriorityClass.BATCH
    if priority == 0:
        return PriorityClass.NORMAL
    return PriorityClass.HIGH if priority > 0 else PriorityClass.LOW


class QueueMetrics:
    """Counts requests that left the queues, by priority."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics with all series at zero."""
        self._seconds = Counter(
            "penstock_agent_queue_priority_wait_seconds",
            "Seconds that requests spent in the admission queues, by priority: high, normal, low or batch.",
            ("priority",),
            registry=registry,
        )
        self._requests = Counter(
            "penstock_agent_queue_priority_requests",
            "Requests that left the admission queues, by priority: high, normal, low or batch.",
            ("priority",),
            registry=registry,
        )
        self._displaced = Counter(
            "penstock_agent_queue_displaced_requests",
            "Requests that a full queue gave up for a new request, by their priority and that of the new request.",
            ("priority", "by"),
            registry=registry,
        )
        self._preempted = Counter(
            "penstock_agent_batch_preemptions",
            "Running batch requests that agents ended for requests with a priority.",
            registry=registry,
        )
        for each in CLASSES:
            self._seconds.labels(each.value)
            self._requests.labels(each.value)
            for by in CLASSES[: CLASSES.index(each) + 1]:
                self._displaced.labels(each.value, by.value)

    def waited(self, priority: int, waited_s: float) -> None:
        """Record that a request left a queue after a time (s)."""
        name = class_of(priority).value
        self._seconds.labels(name).inc(max(0.0, waited_s))
        self._requests.labels(name).inc()

    def displaced(self, priority: int, by: int) -> None:
        """Record that a request was displaced by a new one with the priority `by`."""
        self._displaced.labels(class_of(priority).value, class_of(by).value).inc()

    def preempted(self) -> None:
        """Record that a running batch request ended for another one."""
        self._preempted.inc()
