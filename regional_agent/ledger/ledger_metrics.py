"""Metrics of the ledger: the spool, and records that are lost."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge

from regional_agent.ledger.request_ledger import RequestLedger


class LedgerMetrics:
    """The metrics of one agent's ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        self._lost = Counter(
            "penstock_agent_ledger_records_lost",
            "Records of the ledger that were lost because the spool had no room; the requests were served.",
            registry=registry,
        )
        self._lost_so_far = 0
        self._spool_bytes = Gauge(
            "penstock_agent_ledger_spool_bytes",
            "Size in bytes of the files of the ledger that wait for the usage store or are written.",
            registry=registry,
        )
        self._oldest_age = Gauge(
            "penstock_agent_ledger_oldest_segment_age_seconds",
            "Age in seconds of the oldest complete segment that is not in the usage store yet; 0 without one.",
            registry=registry,
        )

    def update(self, ledger: RequestLedger) -> None:
        """Set the metrics to the current state."""
        lost, use = ledger.spool.lost_records, ledger.spool.use
        self._lost.inc(lost - self._lost_so_far)
        self._lost_so_far = lost
        self._spool_bytes.set(use.total_bytes)
        self._oldest_age.set(0.0 if use.oldest_at is None else max(0.0, time.time() - use.oldest_at))
