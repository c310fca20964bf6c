"""Metrics of the answers to PowerDNS."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from regional_agent.telemetry.metric_primitives import gauge_family


class DnsMetrics:
    """The metrics of one agent's DNS names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the metrics at zero."""
        self._answers = Counter(
            "penstock_agent_dns_answers",
            "Answers to PowerDNS for names of the policy, by name and by region, last_resort or none (SERVFAIL).",
            ("name", "answer"),
            registry=registry,
        )
        self.live_regions: Callable[[], list[tuple[tuple[str, ...], float]]] = list
        """Returns the number of live regions by name; empty at an agent that answers no names."""
        registry.register(
            gauge_family(
                "penstock_agent_dns_live_regions",
                "Permitted regions that a name of the policy may resolve to now, for queries without a client subnet.",
                ("name",),
                lambda: self.live_regions(),
            )
        )

    def answered(self, name: str, answer: str) -> None:
        """Count an answer for a name: a region, `last_resort` or `none`."""
        self._answers.labels(name, answer).inc()
