"""The Prometheus metrics of the endpoints of an agent's region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from penstock.cost.work import Speed
from penstock.health.engine_signals import LOAD_SIGNALS, Signal
from penstock.health.gpu_metrics import GpuState
from penstock.health.outlier_ejection import FAILURES, AttemptOutcome
from penstock.health.progress import StallReason
from penstock.health.version_skew import SkewAgainst
from penstock.pools.slowdown import decode_time
from regional_agent.telemetry.by_endpoint.endpoint_places import MAX_ENDPOINT_SERIES, EndpointPlaces
from regional_agent.telemetry.by_endpoint.endpoint_traffic_metrics import register_traffic
from regional_agent.telemetry.metric_primitives import ComputedFamily, counter_family

_GPU_GAUGES = {
    "utilisation": ("endpoint_gpu_utilisation_ratio", "Mean share (0-1) of the time in which the GPUs ran a kernel."),
    "memory_used": (
        "endpoint_gpu_memory_used_ratio",
        "Share (0-1) of GPU memory in use, of the endpoint's GPU with the largest.",
    ),
    "temperature_c": ("endpoint_gpu_temperature_celsius", "Highest temperature of the endpoint's GPUs."),
    "is_throttled": (
        "endpoint_gpu_throttled",
        "1 while heat, power brakes or hardware slow down one of the endpoint's GPUs.",
    ),
}
"""By field of GpuState: name and help text of the gauge."""


class EndpointMetrics:
    """Gauges and counters by endpoint.

    Args:
        registry: where the metrics are registered.
        max_endpoint_series: number of endpoints with series of their own.
    """

    def __init__(self, registry: CollectorRegistry, max_endpoint_series: int = MAX_ENDPOINT_SERIES) -> None:
        self.places = EndpointPlaces(max_endpoint_series)
        """The endpoints with series of their own."""
        register_traffic(registry, self.places)
        self._endpoint_in_flight = _gauge(
            registry,
            "endpoint_in_flight",
            "Requests on the endpoint, including those of the region's other agents while shared load is enabled.",
            ("endpoint",),
        )
        self._endpoint_ready = _gauge(
            registry, "endpoint_ready", "1 if the endpoint accepts new requests, else 0.", ("endpoint",)
        )
        self._draining = _gauge(
            registry,
            "endpoint_draining",
            "1 while the endpoint receives no new requests because an operator drains it or it is being removed.",
            ("endpoint",),
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
        self._slots = _gauge(
            registry, "endpoint_slots", "Requests that the endpoint runs at once, as configured.", ("endpoint",)
        )
        self._work_time = _gauge(
            registry,
            "endpoint_work_time_ratio",
            "Learned time of a unit of prefill and of decode on the endpoint, relative to policy's costs on the"
            " reference accelerator; 2 is half as fast. No series before a few completions.",
            ("endpoint", "work"),
        )
        self._slowdown = _gauge(
            registry,
            "endpoint_slowdown_ratio",
            "Learned time of decode relative to the median of the endpoints with the same models and accelerator;"
            " 1.25 is 25 % slower.",
            ("endpoint",),
        )
        self._gpus = {
            field: _gauge(registry, name, help_text, ("endpoint",)) for field, (name, help_text) in _GPU_GAUGES.items()
        }
        self._skew = _gauge(
            registry,
            "endpoint_version_skew",
            "1 while the endpoint serves another revision than policy expects or than its siblings serve, or runs"
            " another version of the engine than they.",
            ("endpoint", "against"),
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
        """Tokens found in the prefix cache, and tokens looked up, by endpoint, for engines that report them."""
        self._kv_events_current = _gauge(
            registry,
            "endpoint_kv_events_current",
            "1 while what the endpoint's cache holds is read from its KV events, 0 while it is estimated.",
            ("endpoint",),
        )
        self._kv_blocks = _gauge(
            registry, "endpoint_kv_blocks", "Blocks in the endpoint's cache by its KV events.", ("endpoint",)
        )
        self._kv_events: dict[str, tuple[int, int]] = {}
        """Numbers of applied batches of KV events and of gaps, by endpoint, for endpoints whose events are read."""
        for collector in (*_prefix_counters(self._prefix_tokens), *_kv_event_counters(self._kv_events)):
            registry.register(collector)
        for outcome in FAILURES:
            self._ejections.labels(outcome.value)
        for evidence in StallReason:
            self._suspicions.labels(evidence.value)

    def set_load(self, endpoint: str, in_flight: int, ready: bool, draining: bool = False) -> None:
        """Set the load and readiness of one endpoint of this region's pools, by its configured name."""
        self._endpoint_in_flight.labels(endpoint).set(in_flight)
        self._endpoint_ready.labels(endpoint).set(ready and not draining)
        self._draining.labels(endpoint).set(draining)

    def set_speed(self, endpoint: str, slots: int, speed: Speed | None) -> None:
        """Set the slots of one endpoint and its learned speed; None if it is not learned yet."""
        self._slots.labels(endpoint).set(slots)
        if speed is not None:
            self._work_time.labels(endpoint, "prefill").set(speed.prefill)
            self._work_time.labels(endpoint, "decode").set(decode_time(speed))

    def set_slowdowns(self, ratios: Mapping[str, float]) -> None:
        """Set the slowdown of every endpoint; endpoints not in `ratios` have no series."""
        self._slowdown.clear()
        for endpoint, ratio in ratios.items():
            self._slowdown.labels(endpoint).set(ratio)

    def set_gpus(self, states: Mapping[str, GpuState]) -> None:
        """Set the state of the endpoints' GPUs; other endpoints, and values that are not reported, have no series."""
        for gauge in self._gpus.values():
            gauge.clear()
        for endpoint, state in states.items():
            for field, gauge in self._gpus.items():
                value = getattr(state, field)
                if value is not None:
                    gauge.labels(endpoint).set(value)

    def set_skews(self, skews: Mapping[str, Iterable[SkewAgainst]]) -> None:
        """Set what every endpoint differs from; endpoints not in `skews` have no series."""
        self._skew.clear()
        for endpoint, against in skews.items():
            for each in against:
                self._skew.labels(endpoint, each.value).set(1)

    def set_ejection(self, endpoint: str, weight: float, *, ejected: bool, suspect: bool) -> None:
        """Set the warm-up weight (0-1) of an endpoint, and whether the endpoint is ejected and suspect."""
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

    def set_kv_events(self, endpoint: str, *, current: bool, blocks: int, batches: int, gaps: int) -> None:
        """Set the state and the counts of the KV events of an endpoint's engine."""
        self._kv_events_current.labels(endpoint).set(current)
        self._kv_blocks.labels(endpoint).set(blocks)
        self._kv_events[endpoint] = (batches, gaps)

    def remove_kv_events(self, endpoint: str) -> None:
        """Remove the series of an endpoint whose KV events are not read."""
        if self._kv_events.pop(endpoint, None) is not None:
            self._kv_events_current.remove(endpoint)
            self._kv_blocks.remove(endpoint)

    def remove(self, endpoint: str) -> None:
        """Remove the series of an endpoint that is no longer configured."""
        for gauge in (
            self._endpoint_in_flight,
            self._endpoint_ready,
            self._endpoint_weight,
            self._endpoint_ejected,
            self._endpoint_suspect,
            self._engine_signal_age,
            self._slots,
            self._draining,
        ):
            gauge.remove(endpoint)
        for work in ("prefill", "decode"):
            self._work_time.remove(endpoint, work)
        for signal in LOAD_SIGNALS:
            self._engine_signal.remove(endpoint, signal.value)
        self._prefix_tokens.pop(endpoint, None)
        self.remove_kv_events(endpoint)

    def ejected(self, reason: AttemptOutcome) -> None:
        """Count one ejection by its cause."""
        self._ejections.labels(reason.value).inc()

    def became_suspect(self, reason: StallReason) -> None:
        """Count one endpoint that became suspect."""
        self._suspicions.labels(reason.value).inc()


def _prefix_counters(tokens: Mapping[str, tuple[float, float]]) -> list[ComputedFamily]:
    """Return the counters of engines' prefix caches.

    Args:
        tokens: tokens found in the cache, and tokens looked up, by endpoint.
    """
    return [
        counter_family(
            "penstock_agent_engine_prefix_hit_tokens",
            "Prompt tokens that the engine found in its prefix cache, as it reports them; 0 again when it restarts.",
            ("endpoint",),
            lambda: [((endpoint,), hits) for endpoint, (hits, _) in tokens.items()],
        ),
        counter_family(
            "penstock_agent_engine_prefix_query_tokens",
            "Prompt tokens that the engine looked up in its prefix cache, as it reports them.",
            ("endpoint",),
            lambda: [((endpoint,), queries) for endpoint, (_, queries) in tokens.items()],
        ),
    ]


def _kv_event_counters(read: Mapping[str, tuple[int, int]]) -> list[ComputedFamily]:
    """Return the counters of KV events.

    Args:
        read: numbers of applied batches and of gaps, by endpoint.
    """
    return [
        counter_family(
            "penstock_agent_endpoint_kv_event_batches",
            "Batches of KV events of the endpoint's engine that were applied.",
            ("endpoint",),
            lambda: [((endpoint,), batches) for endpoint, (batches, _) in read.items()],
        ),
        counter_family(
            "penstock_agent_endpoint_kv_event_gaps",
            "How often KV events were missed or invalid, or the engine restarted, so that its blocks were read anew.",
            ("endpoint",),
            lambda: [((endpoint,), gaps) for endpoint, (_, gaps) in read.items()],
        ),
    ]


def _gauge(registry: CollectorRegistry, name: str, help_text: str, labels: tuple[str, ...]) -> Gauge:
    return Gauge(f"penstock_agent_{name}", help_text, labels, registry=registry)


def _counter(registry: CollectorRegistry, name: str, help_text: str, labels: tuple[str, ...]) -> Counter:
    return Counter(f"penstock_agent_{name}", help_text, labels, registry=registry)
