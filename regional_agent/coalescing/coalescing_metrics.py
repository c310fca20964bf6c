"""Metrics of request coalescing."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class CoalescingMetrics:
    """Counts requests that shared the run of another request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        self.shared = Counter(
            "penstock_agent_coalesced_requests",
            "Requests that received the response of an identical request in flight, without a run of their own.",
            registry=registry,
        )
        self.saved_gpu_s = Counter(
            "penstock_agent_coalesced_saved_gpu_seconds",
            "Estimated GPU seconds, on the reference accelerator, of the requests that received a shared response.",
            registry=registry,
        )
