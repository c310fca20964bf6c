"""An endpoint on the agent's status page and in the registration API."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from penstock.health.outlier_ejection import EjectionState
from regional_agent.endpoints.endpoint import Endpoint


def endpoint_status(endpoint: Endpoint, lease_left_s: float | None) -> dict[str, Any]:
    """Return the fields of an endpoint.

    Args:
        lease_left_s: remaining time (s) of its lease; None if it is not registered.
    """
    spec, view, ejection, now = endpoint.spec, endpoint.view, endpoint.ejection, endpoint.now()
    return {
        "name": spec.name,
        "url": f"{'https' if spec.address.tls else 'http'}://{spec.address}",
        "engine": endpoint.kind.value,
        "version": spec.version or None,
        "engine_version": endpoint.reported.facts.version or None,
        "served": [asdict(served) for served in endpoint.reported.facts.served],
        "skew": endpoint.reported.skew or None,
        "invalid_facts": endpoint.reported.facts.problems,
        "zone": spec.zone or None,
        "accelerator": spec.accelerator or None,
        "accelerator_problem": endpoint.accelerator_problem or None,
        "models": spec.models,
        "wake_problem": endpoint.reported.wake_problem or None,
        "warm_problem": endpoint.reported.warm_problem or None,
        "loaded": None if endpoint.reported.loaded is None else sorted(endpoint.reported.loaded),
        "adapters": sorted(endpoint.reported.adapters),
        "ejected_adapters": endpoint.adapter_ejections.out(now),
        "burst": spec.burst,
        "slots": view.slots,
        "queue": spec.queue,
        "kv_events": None if endpoint.kv_events is None else endpoint.kv_events.status(),
        "in_flight": view.in_flight,
        "ready": view.ready,
        "draining": view.draining,
        "drained_because": endpoint.drained_because or None,
        "health": endpoint.health.state.value,
        "ejection": ejection.state.value,
        "ejected_for_s": round(max(0.0, ejection.until - now), 1)
        if ejection.state in (EjectionState.EJECTED, EjectionState.SUSPECT)
        else None,
        "suspect_because": endpoint.stall.detail
        if endpoint.stall and ejection.state is EjectionState.SUSPECT
        else None,
        "weight": view.weight,
        "pressure": round(view.pressure, 3),
        "signals": {
            signal.value: {"value": reading.value, "age_s": round(now - reading.received_at, 1)}
            for signal, reading in endpoint.readings.items()
        },
        "signals_problem": endpoint.signals_problem or None,
        "gpus": None if endpoint.reported.gpus is None else asdict(endpoint.reported.gpus),
        "gpu_problem": endpoint.reported.gpu_problem or None,
        "base_path": spec.base_path or None,
        "headers": [name for name, _ in spec.headers],
        "engine_names": dict(spec.engine_names),
        "credential_header": spec.credential_header if spec.credential_file else None,
        "problem": endpoint.problem or endpoint.credential_rejected or None,
        "lease_left_s": None if lease_left_s is None else round(lease_left_s, 1),
    }
