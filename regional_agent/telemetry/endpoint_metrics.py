"""The Prometheus metrics of the endpoints of an agent's region."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.health.engine_signals import LOAD_SIGNALS, Signal
from penstock.health.outlier_ejection import FAILURES, AttemptOutcome
from penstock.health.progress import StallReason
from regional_agent.telemetry.request_metrics import CounterFamily


class EndpointMetrics:
    """Gauges and counters by endpoint.

    Args:
        registry: where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._endpoint_in_flight = _gauge(
            registry,
            "endpoint_in_flight",
            "Requests on the endpoint, including those of the region's other agents while shared load is enabled.",
            ("endpoint",),
        )
        self._endpoint_ready = _gauge(
            registry, "endpoint_ready", "1 if the endpoint accepts new requests, else 0.", ("endpoint",)
        )
        self._endpoint_weight = _gauge(
            registry,
            "endpoint_warmup_weight",
            "Share (0-1) of the endpoint's capacity in use while it warms up; 1 when warm.",
            ("endpoint",),
        )
        self._endpoint_ejected = _gauge(
            registry,
            "endpoint_ejected",
            "1 while outlier ejection removes or limits the endpoint, else 0.",
            ("endpoint",),
        )
        self._endpoint_suspect = _gauge(
            registry,
            "endpoint_suspect",
            "1 while the endpoint receives no new requests because its requests make no progress, else 0.",
            ("endpoint",),
        )
        self._suspicions = _counter(
            registry, "endpoint_suspicions", "Endpoints that became suspect, by the evidence.", ("reason",)
        )
        self._ejections = _counter(
            registry,
            "endpoint_ejections",
            "Outlier ejections of endpoints, by the failure that caused each.",
            ("reason",),
        )
        self._engine_signal = _gauge(
            registry,
            "engine_signal",
            "Last load signals of the endpoint's engine: requests queued and running, share (0-1) of KV cache in use,"
            " and utilisation (0-1).",
            ("endpoint", "signal"),
        )
        self._engine_signal_age = _gauge(
            registry,
            "engine_signal_age_seconds",
            "Seconds since the endpoint's engine last reported load signals.",
            ("endpoint",),
        )
        self._prefix_tokens: dict[str, tuple[float, float]] = {}
        """Tokens that the prefix cache had, and those looked up in it, by endpoint whose engine reports them."""
        for collector in _prefix_counters(self._prefix_tokens):
            registry.register(collector)
        for outcome in FAILURES:
            self._ejections.labels(outcome.value)
        for evidence in StallReason:
            self._suspicions.labels(evidence.value)

    def set_load(self, endpoint: str, in_flight: int, ready: bool) -> None:
        """Set the load and readiness of one endpoint of this region's pools, by its configured name."""
        self._endpoint_in_flight.labels(endpoint).set(in_flight)
        self._endpoint_ready.labels(endpoint).set(ready)

    def set_ejection(self, endpoint: str, weight: float, *, ejected: bool, suspect: bool) -> None:
        """Set the warm-up weight (0-1) of an endpoint, whether outlier ejection removed it, and whether as suspect."""
        self._endpoint_weight.labels(endpoint).set(weight)
        self._endpoint_ejected.labels(endpoint).set(ejected)
        self._endpoint_suspect.labels(endpoint).set(suspect)

    def set_signals(self, endpoint: str, values: Mapping[Signal, float], age_s: float) -> None:
        """Set the last signals of an engine and their age in seconds; inf if the engine never reported."""
        for signal in LOAD_SIGNALS:
            if signal in values:
                self._engine_signal.labels(endpoint, signal.value).set(values[signal])
        if Signal.PREFIX_QUERIES in values:
            hits = values.get(Signal.PREFIX_HITS, 0.0)
            self._prefix_tokens[endpoint] = (hits, values[Signal.PREFIX_QUERIES])
        self._engine_signal_age.labels(endpoint).set(age_s)

    def remove(self, endpoint: str) -> None:
        """Remove the series of an endpoint that is no longer configured."""
        for gauge in (
            self._endpoint_in_flight,
            self._endpoint_ready,
            self._endpoint_weight,
            self._endpoint_ejected,
            self._endpoint_suspect,
            self._engine_signal_age,
        ):
            gauge.remove(endpoint)
        for signal in LOAD_SIGNALS:
            self._engine_signal.remove(endpoint, signal.value)
        self._prefix_tokens.pop(endpoint, None)

    def ejected(self, reason: AttemptOutcome) -> None:
        """Count one ejection by its cause."""
        self._ejections.labels(reason.value).inc()

    def became_suspect(self, reason: StallReason) -> None:
        """Count one endpoint that became suspect."""
        self._suspicions.labels(reason.value).inc()


def _prefix_counters(tokens: Mapping[str, tuple[float, float]]) -> list[CounterFamily]:
    """The counters of engines' prefix caches.

    Args:
        tokens: those that the cache had, and those looked up in it, by endpoint.
    """
    return [
        CounterFamily(
            "penstock_agent_engine_prefix_hit_tokens",
            "Prompt tokens that the engine found in its prefix cache, as it reports them; 0 again when it restarts.",
            ("endpoint",),
            lambda: [((endpoint,), hits) for endpoint, (hits, _) in tokens.items()],
        ),
        CounterFamily(
            "penstock_agent_engine_prefix_query_tokens",
            "Prompt tokens that the engine looked up in its prefix cache, as it reports them.",
            ("endpoint",),
            lambda: [((endpoint,), queries) for endpoint, (_, queries) in tokens.items()],
        ),
    ]


def _gauge(registry: CollectorRegistry, name: str, help_text: str, labels: tuple[str, ...]) -> Gauge:
    return Gauge(f"penstock_agent_{name}", help_text, labels, registry=registry)


def _counter(registry: CollectorRegistry, name: str, help_text: str, labels: tuple[str, ...]) -> Counter:
    return Counter(f"penstock_agent_{name}", help_text, labels, registry=registry)
