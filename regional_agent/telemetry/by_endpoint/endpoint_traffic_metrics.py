"""The Prometheus metrics of the attempts at endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from penstock.meters.endpoint_traffic import EndpointTraffic
from regional_agent.telemetry.by_endpoint.endpoint_series import EndpointSeries
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family, histogram_family

OTHER = "other"
"""The label of all endpoints without series of their own."""


def register_traffic(registry: CollectorRegistry, own: EndpointSeries) -> None:
    """Register the metrics of the endpoints; `own` has those with series of their own."""

    def series() -> Iterator[tuple[str, EndpointTraffic]]:
        yield from own.named.items()
        if own.without_series:
            yield OTHER, own.other

    for collector in (
        counter_family(
            "penstock_agent_endpoint_requests",
            "Attempts of this agent at the endpoint, by outcome as evidence about the endpoint: `served`, a failure, or"
            " `inconclusive` (the client left, a busy answer).",
            ("endpoint", "outcome"),
            lambda: [
                ((name, outcome.value), count) for name, traffic in series() for outcome, count in traffic.outcomes()
            ],
        ),
        counter_family(
            "penstock_agent_endpoint_outages",
            "How often the endpoint was ejected, and how often it became suspect.",
            ("endpoint", "cause"),
            lambda: [
                ((name, cause), count)
                for name, traffic in series()
                for cause, count in (("ejected", traffic.ejections), ("suspect", traffic.suspicions))
            ],
        ),
        histogram_family(
            "penstock_agent_endpoint_ttft_seconds",
            "Seconds from a request sent to the endpoint to the first byte of its streamed response.",
            ("endpoint",),
            lambda: [((name,), traffic.first_bytes) for name, traffic in series()],
        ),
        histogram_family(
            "penstock_agent_endpoint_request_duration_seconds",
            "Seconds for which a request with a complete response held its slot of the endpoint.",
            ("endpoint",),
            lambda: [((name,), traffic.durations) for name, traffic in series()],
        ),
        histogram_family(
            "penstock_agent_endpoint_connect_seconds",
            "Seconds for which requests that found no idle connection to the endpoint waited until one was open.",
            ("endpoint",),
            lambda: [((name,), traffic.connects) for name, traffic in series()],
        ),
        gauge_family(
            "penstock_agent_endpoints_without_series",
            "Endpoints that share the label `other`, because `max_endpoint_series` others have series of their own.",
            (),
            lambda: [((), own.without_series)],
        ),
    ):
        registry.register(collector)
