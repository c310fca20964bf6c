"""The leader's metrics of recommended capacity, which autoscalers read, and of cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge

from penstock.scaling.recommender import Recommendation
from penstock.scaling.standby import Takeover

LABELS = ("region", "model")

Labels = TypeVar("Labels", bound=tuple[str, ...])


def replace_series(gauge: Gauge, values: Mapping[Labels, float]) -> None:
    """Set all series of a gauge, by the values of its labels; others are removed."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


class CapacityMetrics:
    """Gauges of the recommendations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._forecast = Gauge(
            "penstock_forecast_requests_per_second",
            "Requests per second for which the region is the nearest permitted one: the highest expected until an"
            " endpoint that is ordered now serves.",
            LABELS,
            registry=registry,
        )
        self._desired = Gauge(
            "penstock_desired_endpoints",
            "Endpoints that the region should have for the model: for forecast demand, and in reserve for the loss of a"
            " region. Models that share endpoints each have their part.",
            LABELS,
            registry=registry,
        )
        self._endpoints = Gauge(
            "penstock_endpoints",
            "Endpoints that the region has for the model, ready or not, without those that drain.",
            LABELS,
            registry=registry,
        )

        self._in_takeover = Gauge(
            "penstock_standby_takeover",
            "1 while standby regions take over from a lost region.",
            registry=registry,
        )
        self._takeover = Gauge(
            "penstock_standby_takeover_seconds",
            "Seconds of the current or last takeover until the endpoints that the loss asks for were ready (`ready`),"
            " and until the lost regions were back (`ended`).",
            ("stage",),
            registry=registry,
        )

        self._signal_age = Gauge(
            "penstock_external_signal_age_seconds",
            "Seconds since the last valid response of a demand signal; infinite before the first one.",
            ("signal",),
            registry=registry,
        )

    def show_signals(self, ages_s: Mapping[str, float]) -> None:
        """Set the age (s) of the demand signals, by name; signals that are absent are removed."""
        replace_series(self._signal_age, {(name,): age_s for name, age_s in ages_s.items()})

    def show(self, recommendations: Iterable[Recommendation]) -> None:
        """Replace all recommendations."""
        rows = {(row.region, row.model): row for row in recommendations}
        replace_series(self._forecast, {key: row.forecast_per_s for key, row in rows.items()})
        replace_series(self._desired, {key: row.desired_endpoints for key, row in rows.items()})
        replace_series(self._endpoints, {key: row.endpoints for key, row in rows.items()})

    def show_takeover(self, takeover: Takeover | None) -> None:
        """Set the times of the current or last takeover; None removes them."""
        self._takeover.clear()
        if takeover is not None:
            for stage, after_s in (("ready", takeover.ready_after_s), ("ended", takeover.ended_after_s)):
                if after_s is not None:
                    self._takeover.labels(stage).set(after_s)
        self._in_takeover.set(takeover is not None and takeover.ended_after_s is None)

    def clear(self) -> None:
        """Remove all values, because another control plane leads; an autoscaler without values keeps its endpoints."""
        self.show(())
        self.show_takeover(None)


class CostMetrics:
    """Gauges of the hourly cost of the fleet."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gpu = Gauge(
            "penstock_gpu_hourly_cost",
            "Price an hour of the GPUs of the region's endpoints for the model, busy or not, in the currency of the"
            " policy; models that share endpoints have equal parts.",
            ("region", "model"),
            registry=registry,
        )
        self._egress = Gauge(
            "penstock_egress_hourly_cost",
            "Price an hour of the traffic that the plan sends from an origin to another region, at the measured demand"
            " and the measured mean sizes, in the currency of the policy.",
            ("origin", "server"),
            registry=registry,
        )

    def show(self, gpu: Mapping[tuple[str, str], float], egress: Mapping[tuple[str, str], float]) -> None:
        """Replace all values: `gpu` by (region, model), `egress` by (origin, server)."""
        replace_series(self._gpu, gpu)
        replace_series(self._egress, egress)

    def clear(self) -> None:
        """Remove all values, because another control plane leads."""
        self.show({}, {})
