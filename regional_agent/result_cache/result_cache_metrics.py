"""Metrics of the result cache."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

HIT: Final = "hit"
MISS: Final = "miss"
BYPASSED: Final = "bypassed"


class ResultCacheMetrics:
    """Counts requests of routes and tenants whose responses are kept."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        self.requests = Counter(
            "penstock_agent_result_cache_requests",
            "Requests whose responses are kept by policy: `hit` received a kept response, `miss` none was kept that the"
            " client accepts, `bypassed` the client sent `no-store`.",
            ["result"],
            registry=registry,
        )
        for result in (HIT, MISS, BYPASSED):
            self.requests.labels(result)
        self.saved_gpu_s = Counter(
            "penstock_agent_result_cache_saved_gpu_seconds",
            "Estimated GPU seconds, on the reference accelerator, of the requests that received a kept response.",
            registry=registry,
        )
        self.sent_bytes = Counter(
            "penstock_agent_result_cache_sent_bytes", "Bytes of the kept responses that were sent.", registry=registry
        )
        self.stored_bytes = Counter(
            "penstock_agent_result_cache_stored_bytes", "Bytes of the responses that were kept.", registry=registry
        )
        self.memory_bytes = Gauge(
            "penstock_agent_result_cache_memory_bytes",
            "Bytes of the kept responses in the memory of the agent.",
            registry=registry,
        )
        self.redis_failures = Counter(
            "penstock_agent_result_cache_redis_failures",
            "Look-ups and stores of kept responses that failed or took too long in Redis.",
            registry=registry,
        )
