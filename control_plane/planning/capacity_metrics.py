"""The leader's metrics of recommended capacity, which autoscalers read."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge

from penstock.scaling.recommender import Recommendation

LABELS = ("region", "model")


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

    def show(self, recommendations: Iterable[Recommendation]) -> None:
        """Replace all values."""
        self.clear()
        for row in recommendations:
            self._forecast.labels(row.region, row.model).set(row.forecast_per_s)
            self._desired.labels(row.region, row.model).set(row.desired_endpoints)
            self._endpoints.labels(row.region, row.model).set(row.endpoints)

    def clear(self) -> None:
        """Remove all values, because another control plane leads; an autoscaler without values keeps its endpoints."""
        for gauge in (self._forecast, self._desired, self._endpoints):
            gauge.clear()
