"""The leader's metrics of cost."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from control_plane.planning.capacity_metrics import replace_series


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
