"""An endpoint for people: what it is, what is believed of it and why, each number with its age."""

from __future__ import annotations

from typing import Any

from penstock.health.outlier_ejection import EjectionState
from regional_agent.endpoints.endpoint import Endpoint


def describe(endpoint: Endpoint, lease_left_s: float | None) -> dict[str, Any]:
    """Everything of one endpoint; `lease_left_s` is None for one that did not register itself."""
    spec, view, ejection, now = endpoint.spec, endpoint.view, endpoint.ejection, endpoint.now()
    return {
        "name": spec.name,
        "url": f"{'https' if spec.address.tls else 'http'}://{spec.address}",
        "engine": endpoint.kind.value,
        "version": spec.version or None,
        "zone": spec.zone or None,
        "accelerator": spec.accelerator or None,
        "models": spec.models,
        "loaded": None if endpoint.loaded is None else sorted(endpoint.loaded),
        "slots": view.slots,
        "queue": spec.queue,
        "in_flight": view.in_flight,
        "ready": view.ready,
        "draining": view.draining,
        "health": endpoint.health.state.value,
        "ejection": ejection.state.value,
        "ejected_for_s": round(max(0.0, ejection.until - now), 1) if ejection.state is EjectionState.EJECTED else None,
        "weight": view.weight,
        "pressure": round(view.pressure, 3),
        "signals": {
            signal.value: {"value": reading.value, "age_s": round(now - reading.received_at, 1)}
            for signal, reading in endpoint.readings.items()
        },
        "signals_problem": endpoint.signals_problem or None,
        "lease_left_s": None if lease_left_s is None else round(lease_left_s, 1),
    }
