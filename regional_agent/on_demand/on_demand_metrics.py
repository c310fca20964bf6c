"""The Prometheus metrics of models that are loaded on demand, by model and endpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from regional_agent.on_demand.on_demand_models import OnDemandModels
from regional_agent.telemetry.by_endpoint.endpoint_series import EndpointSeries
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family

Values = list[tuple[tuple[str, ...], float]]

_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...], Callable[[OnDemandModels], Values]]]] = {
    "wake_attempts": (
        "Attempts of this agent to wake an endpoint or to let one sleep (`action`), by result: `succeeded` or"
        " `failed`.",
        ("model", "action", "result"),
        lambda models: [((key[0], key[1].value, key[2]), count) for key, count in models.attempts.counts.items()],
    ),
    "model_load_seconds": (
        "Seconds of the successful wakes of this agent, each until its endpoint was ready; divided by their number"
        " (`wake_attempts_total`), the mean time of a load.",
        ("model",),
        lambda models: [((model,), seconds) for model, seconds in models.attempts.load_s.items()],
    ),
    "evictions": (
        "Endpoints that this agent has put to sleep so that another model has room in their memory, by the"
        " model that left.",
        ("model",),
        lambda models: [((model,), count) for model, count in models.attempts.evicted.items()],
    ),
    "model_without_room_seconds": (
        "Seconds in which requests for a model on demand needed an endpoint, and no memory had room for it.",
        ("model",),
        lambda models: [((model,), seconds) for model, seconds in models.without_room_s.items()],
    ),
}
"""Help text, labels and values of each counter, by name."""


class OnDemandMetrics:
    """Reads the metrics from `models` at a scrape; no series without it."""

    def __init__(self, registry: CollectorRegistry, series: EndpointSeries) -> None:
        """Register the metrics; only endpoints of `series` have series of their own."""
        self._series = series
        self.models: OnDemandModels | None = None
        for name, (help_text, labels, read) in _COUNTERS.items():
            registry.register(counter_family(f"penstock_agent_{name}", help_text, labels, partial(self._values, read)))
        registry.register(
            gauge_family(
                "penstock_agent_cold_start_seconds",
                "Expected seconds from a request for a model of which every endpoint sleeps until one is ready: the"
                " longest of the last five, or `cold_start_s` of the policy.",
                ("model",),
                partial(self._values, lambda models: [((name,), s) for name, s in models.cold_starts_s().items()]),
            )
        )
        registry.register(
            gauge_family(
                "penstock_agent_endpoint_asleep",
                "1 for an endpoint that sleeps until requests need it; no series for the others.",
                ("endpoint",),
                partial(self._values, self._asleep),
            )
        )

    def _values(self, read: Callable[[OnDemandModels], Values]) -> Values:
        return [] if self.models is None else read(self.models)

    def _asleep(self, models: OnDemandModels) -> Values:
        return [((endpoint,), 1.0) for endpoint in sorted(models.asleep() & self._series.named.keys())]
