"""The Prometheus metrics of burst endpoints, by model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from regional_agent.routing.burst_targets import BurstTargets
from regional_agent.telemetry.metric_primitives import SeriesValues, counter_family


class BurstMetrics:
    """Reads the metrics from `targets` at a scrape; no series without it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        self.targets: BurstTargets | None = None
        registry.register(
            counter_family(
                "penstock_agent_burst_requests",
                "Requests that this agent has sent to burst endpoints.",
                ("model",),
                self._values(lambda targets: targets.requests),
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_burst_seconds",
                "Seconds of ended requests at burst endpoints, cold starts included.",
                ("model",),
                self._values(lambda targets: targets.used_s),
            )
        )
        registry.register(
            counter_family(
                "penstock_agent_burst_cost",
                "Cost of ended requests at burst endpoints, in the currency of the policy, by the region's price per"
                " second.",
                ("model",),
                self._values(lambda targets: targets.cost),
            )
        )

    def _values(self, by_model: Callable[[BurstTargets], Mapping[str, float]]) -> SeriesValues:
        def values() -> list[tuple[tuple[str, ...], float]]:
            found = {} if self.targets is None else by_model(self.targets)
            return [((model,), float(value)) for model, value in found.items()]

        return values
