"""Metrics of a control plane's own parts: store, intake of reports, leadership, age of the snapshot, event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adapters.loop_delay import LoopDelay

STORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds (s) of the buckets of store calls, up to the timeout of a call."""

INTAKE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds (s) of the buckets of report intake, up to the time limit of a report's body."""


class InternalMetrics:
    """Metrics of the parts of one control plane; each method records one event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._store_calls = Histogram(
            "penstock_store_call_duration_seconds",
            "Seconds of a call to the store (etcd), by operation and whether it succeeded.",
            ("operation", "ok"),
            buckets=STORE_BUCKETS_S,
            registry=registry,
        )
        self.watch_restarts = Counter(
            "penstock_watch_restarts",
            "Watches of the store that began again, after a failure or for the regular new list (each 5 to 10"
            " minutes).",
            registry=registry,
        )
        self.leader_changes = Counter(
            "penstock_leader_changes",
            "Times that this control plane became the leader; the sum over all is the number of changes.",
            registry=registry,
        )
        self._receiving = Gauge(
            "penstock_reports_in_progress",
            "Agents' reports that are being received or processed: the queue of the intake.",
            registry=registry,
        )
        self._intake = Histogram(
            "penstock_report_intake_duration_seconds",
            "Seconds from the head of an agent's report to the response.",
            buckets=INTAKE_BUCKETS_S,
            registry=registry,
        )
        self.snapshot_age = Gauge(
            "penstock_snapshot_age_seconds",
            "Age of the snapshot: seconds since the newest report of the region that has reported least recently;"
            " +Inf while a region has never reported.",
            registry=registry,
        )
        self.snapshot_age.set(float("inf"))
        self.loop_delay = LoopDelay(registry, "penstock")
        """Watchdog of the event loop."""

    def store_called(self, operation: str, seconds: float, *, ok: bool) -> None:
        """Record a call to the store."""
        self._store_calls.labels(operation, "true" if ok else "false").observe(seconds)

    @contextmanager
    def receiving_report(self) -> Iterator[None]:
        """Record a report from its head to the response."""
        with self._receiving.track_inprogress(), self._intake.time():
            yield
