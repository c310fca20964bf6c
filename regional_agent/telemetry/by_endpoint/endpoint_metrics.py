"""The Prometheus metrics of the endpoints of an agent's region: read from the endpoints at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from penstock.health.engines.engine_signals import LOAD_SIGNALS, Signal
from penstock.health.outlier_ejection import FAILURES, AttemptOutcome, EjectionState
from penstock.health.progress import StallReason
from penstock.pools.slowdown import decode_time, slowdowns
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.telemetry.by_endpoint.endpoint_series import MAX_ENDPOINT_SERIES, EndpointSeries
from regional_agent.telemetry.by_endpoint.endpoint_traffic_metrics import register_traffic
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family

Read = Callable[[Endpoint], float | Mapping[str, float] | None]
"""Returns the value of an endpoint, or its values by a further label; None for no series."""


def _work_times(endpoint: Endpoint) -> Mapping[str, float] | None:
    speed = endpoint.learner.learned
    return None if speed is None else {"prefill": speed.prefill, "decode": decode_time(speed)}


def _signals(endpoint: Endpoint) -> Mapping[str, float]:
    readings = endpoint.readings
    return {signal.value: readings[signal].value for signal in LOAD_SIGNALS if signal in readings}


def _signal_age(endpoint: Endpoint) -> float:
    return endpoint.now() - max((reading.received_at for reading in endpoint.readings.values()), default=-inf)


def _prefix_tokens(signal: Signal, endpoint: Endpoint) -> float | None:
    if Signal.PREFIX_QUERIES not in endpoint.readings:
        return None
    reading = endpoint.readings.get(signal)
    return 0.0 if reading is None else reading.value


def _gpu(field: str, endpoint: Endpoint) -> float | None:
    value: float | None = getattr(endpoint.reported.gpus, field, None)
    return value


_GAUGES: Final[dict[str, tuple[str, Read]]] = {
    "endpoint_in_flight": (
        "Requests on the endpoint, including those of the region's other agents while shared load is enabled.",
        lambda endpoint: endpoint.view.in_flight,
    ),
    "endpoint_ready": (
        "1 if the endpoint accepts new requests, else 0.",
        lambda endpoint: endpoint.view.ready and not endpoint.view.draining,
    ),
    "endpoint_draining": (
        "1 while the endpoint receives no new requests because an operator drains it or it is being removed.",
        lambda endpoint: endpoint.view.draining,
    ),
    "endpoint_warmup_weight": (
        "Share (0-1) of the endpoint's capacity in use while it warms up; 1 when warm.",
        lambda endpoint: endpoint.view.weight,
    ),
    "endpoint_ejected": (
        "1 while outlier ejection removes or limits the endpoint, else 0.",
        lambda endpoint: endpoint.ejection.is_ejected,
    ),
    "endpoint_suspect": (
        "1 while the endpoint receives no new requests because its requests make no progress, else 0.",
        lambda endpoint: endpoint.ejection.state is EjectionState.SUSPECT,
    ),
    "endpoint_slots": (
        "Requests that the endpoint runs at once, as configured.",
        lambda endpoint: endpoint.view.slots,
    ),
    "endpoint_work_time_ratio": (
        "Learned time of a unit of prefill and of decode on the endpoint, relative to policy's costs on the"
        " reference accelerator; 2 is half as fast. No series before a few completions.",
        _work_times,
    ),
    "endpoint_gpu_utilisation_ratio": (
        "Mean share (0-1) of the time in which the GPUs ran a kernel.",
        partial(_gpu, "utilisation"),
    ),
    "endpoint_gpu_memory_used_ratio": (
        "Share (0-1) of GPU memory in use, of the endpoint's GPU with the largest.",
        partial(_gpu, "memory_used"),
    ),
    "endpoint_gpu_temperature_celsius": ("Highest temperature of the endpoint's GPUs.", partial(_gpu, "temperature_c")),
    "endpoint_gpu_throttled": (
        "1 while heat, power brakes or hardware slow down one of the endpoint's GPUs.",
        partial(_gpu, "is_throttled"),
    ),
    "endpoint_version_skew": (
        "1 while the endpoint serves another revision than policy expects or than its siblings serve, or runs"
        " another version of the engine than they.",
        lambda endpoint: {skew.against.value: 1.0 for skew in endpoint.reported.skews.values()},
    ),
    "engine_signal": (
        "Last load signals of the endpoint's engine: requests queued and running, share (0-1) of KV cache in use,"
        " and utilisation (0-1).",
        _signals,
    ),
    "engine_signal_age_seconds": (
        "Seconds since the endpoint's engine last reported load signals.",
        _signal_age,
    ),
    "endpoint_kv_events_current": (
        "1 while what the endpoint's cache holds is read from its KV events, 0 while it is estimated.",
        lambda endpoint: None if endpoint.kv_events is None else endpoint.kv_events.current,
    ),
}
"""Help text and value of each gauge, by name."""

_FURTHER_LABELS: Final = {
    "endpoint_work_time_ratio": ("work",),
    "endpoint_version_skew": ("against",),
    "engine_signal": ("signal",),
}

_COUNTERS: Final[dict[str, tuple[str, Read]]] = {
    "engine_prefix_hit_tokens": (
        "Prompt tokens that the engine found in its prefix cache, as it reports them; 0 again when it restarts.",
        partial(_prefix_tokens, Signal.PREFIX_HITS),
    ),
    "engine_prefix_query_tokens": (
        "Prompt tokens that the engine looked up in its prefix cache, as it reports them.",
        partial(_prefix_tokens, Signal.PREFIX_QUERIES),
    ),
}
"""Help text and value of each counter, by name."""


class EndpointMetrics:
    """Gauges and counters by endpoint.

    Args:
        registry: where the metrics are registered.
        max_endpoint_series: number of endpoints with series of their own.
    """

    def __init__(self, registry: CollectorRegistry, max_endpoint_series: int = MAX_ENDPOINT_SERIES) -> None:
        self.series = EndpointSeries(max_endpoint_series)
        """The endpoints with series of their own."""
        self._endpoints: dict[str, Endpoint] = {}
        register_traffic(registry, self.series)
        for family, metrics in ((gauge_family, _GAUGES), (counter_family, _COUNTERS)):
            for name, (help_text, read) in metrics.items():
                labels = ("endpoint", *_FURTHER_LABELS.get(name, ()))
                registry.register(family(f"penstock_agent_{name}", help_text, labels, partial(self._values, read)))
        registry.register(
            gauge_family(
                "penstock_agent_endpoint_slowdown_ratio",
                "Learned time of decode relative to the median of the endpoints with the same models and accelerator;"
                " 1.25 is 25 % slower.",
                ("endpoint",),
                self._slowdowns,
            )
        )
        self._suspicions = Counter(
            "penstock_agent_endpoint_suspicions",
            "Endpoints that became suspect, by the evidence.",
            ("reason",),
            registry=registry,
        )
        self._ejections = Counter(
            "penstock_agent_endpoint_ejections",
            "Outlier ejections of endpoints, by the failure that caused each.",
            ("reason",),
            registry=registry,
        )
        for outcome in FAILURES:
            self._ejections.labels(outcome.value)
        for evidence in StallReason:
            self._suspicions.labels(evidence.value)

    def use(self, endpoints: Iterable[Endpoint]) -> None:
        """Export the endpoints that exist now.

        Args:
            endpoints: every endpoint; one whose address changed is listed twice until requests to the old address end,
                the new address first.
        """
        every = list(endpoints)
        self.series.update(every)
        self._endpoints = {endpoint.name: endpoint for endpoint in reversed(every)}

    def ejected(self, reason: AttemptOutcome) -> None:
        """Count one ejection by its cause."""
        self._ejections.labels(reason.value).inc()

    def became_suspect(self, reason: StallReason) -> None:
        """Count one endpoint that became suspect."""
        self._suspicions.labels(reason.value).inc()

    def _values(self, read: Read) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, endpoint in self._endpoints.items():
            found = read(endpoint) if name in self.series.named else None
            if isinstance(found, Mapping):
                yield from (((name, label), value) for label, value in found.items())
            elif found is not None:
                yield (name,), found

    def _slowdowns(self) -> list[tuple[tuple[str, ...], float]]:
        ratios = slowdowns(
            (each, (each.models, each.spec.accelerator, each.spec.burst)) for each in self._endpoints.values()
        )
        return [((name,), ratio) for name, ratio in ratios.items() if name in self.series.named]
