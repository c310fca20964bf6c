"""The Prometheus metrics of models that are loaded on demand, by model and endpoint."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from regional_agent.on_demand.on_demand_models import OnDemandModels
from regional_agent.telemetry.by_endpoint.endpoint_places import EndpointPlaces
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family


class OnDemandMetrics:
    """Reads the metrics from `models` at a scrape; no series without it."""

    def __init__(self, registry: CollectorRegistry, places: EndpointPlaces) -> None:
        """Register the metrics; only endpoints of `places` have series of their own."""
        self._places = places
        self.models: OnDemandModels | None = None
        registry.register(
            counter_family(
                "penstock_agent_wake_attempts",
                "Attempts of this agent to wake an endpoint or to let one sleep (`action`), by result: `succeeded` or"
                " `failed`.",
                ("model", "action", "result"),
                self._attempts,
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_evictions",
                "Endpoints that this agent has put to sleep so that another model has room in their memory, by the"
                " model that left.",
                ("model",),
                self._evictions,
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_model_without_room_seconds",
                "Seconds in which requests for a model on demand needed an endpoint, and no memory had room for it.",
                ("model",),
                self._without_room,
            )
        )
        registry.register(
            gauge_family(
                "penstock_agent_cold_start_seconds",
                "Expected seconds from a request for a model of which every endpoint sleeps until one is ready: the"
                " longest of the last five, or `cold_start_s` of the policy.",
                ("model",),
                self._cold_starts,
            )
        )
        registry.register(
            gauge_family(
                "penstock_agent_endpoint_asleep",
                "1 for an endpoint that sleeps until requests need it; no series for the others.",
                ("endpoint",),
                self._asleep,
            )
        )

    def _attempts(self) -> list[tuple[tuple[str, ...], float]]:
        counts = {} if self.models is None else self.models.attempts.counts
        return [((model, action.value, result), float(count)) for (model, action, result), count in counts.items()]

    def _evictions(self) -> list[tuple[tuple[str, ...], float]]:
        evicted = {} if self.models is None else self.models.attempts.evicted
        return [((model,), float(count)) for model, count in evicted.items()]

    def _without_room(self) -> list[tuple[tuple[str, ...], float]]:
        without_room_s = {} if self.models is None else self.models.without_room_s
        return [((model,), seconds) for model, seconds in without_room_s.items()]

    def _cold_starts(self) -> list[tuple[tuple[str, ...], float]]:
        cold_starts_s = {} if self.models is None else self.models.cold_starts_s()
        return [((model,), seconds) for model, seconds in cold_starts_s.items()]

    def _asleep(self) -> list[tuple[tuple[str, ...], float]]:
        asleep = frozenset() if self.models is None else self.models.asleep()
        return [((endpoint,), 1.0) for endpoint in sorted(asleep & self._places.named.keys())]
