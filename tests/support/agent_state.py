"""The state of an agent without its parts, for tests of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import SimpleNamespace
from typing import Any

from penstock.cost.work import Speed
from penstock.health.engines.engine_signals import Signal
from penstock.health.outlier_ejection import EjectionState
from penstock.health.region_health import RegionState
from penstock.meters.endpoint_traffic import EndpointTraffic
from regional_agent.on_demand.wake_hooks import Action

SPEED = Speed(0.0, 1.0, 1.0, 0.02)


class NoBudgets:
    """The budgets of an agent without tenants."""

    refused: Mapping[Any, int] = {}
    is_without_leader = False

    def __len__(self) -> int:
        return 0

    def fullest(self, used: float, now: float) -> list[Any]:
        return []


NEVER_READ: dict[str, Any] = {
    "config": SimpleNamespace(plan=None, age_s=lambda: inf),
    "shared_load": SimpleNamespace(up=False, shared=False, age_s=lambda: 0.0),
}
"""The state of an agent that has read no configuration."""


def endpoint_sample(
    name: str = "gpu-1", *, signals: Mapping[Signal, float] | None = None, signal_age_s: float = 0.5, **changes: Any
) -> Any:
    """Return what metrics read of an endpoint with two requests, at the time `signal_age_s`."""
    fields: dict[str, Any] = {
        "view": SimpleNamespace(in_flight=2, ready=True, draining=False, weight=0.5, slots=4, speed=SPEED),
        "ejection": SimpleNamespace(is_ejected=False, state=EjectionState.NONE),
        "learner": SimpleNamespace(learned=SPEED),
        "reported": SimpleNamespace(gpus=None, skews={}),
        "readings": {each: SimpleNamespace(value=value, received_at=0.0) for each, value in (signals or {}).items()},
        "kv_events": None,
        "traffic": EndpointTraffic(),
        "completions": 0,
        "models": ("m",),
        "spec": SimpleNamespace(accelerator="h100", burst=False),
    }
    return SimpleNamespace(name=name, now=lambda: signal_age_s, **(fields | changes))


def on_demand_sample(model: str) -> Any:
    """Return what metrics read of models on demand, of which `gpu-1` sleeps."""
    return SimpleNamespace(
        attempts=SimpleNamespace(load_s={model: 6.5}, counts={(model, Action.WAKE, "failed"): 3}, evicted={model: 2}),
        without_room_s={model: 1.5},
        cold_starts_s=lambda: {model: 42.0},
        asleep=lambda: frozenset({"gpu-1", "gpu-without-series"}),
    )


def state_sample(*endpoints: Any, pools: Mapping[str, int] | None = None, **changes: Any) -> Any:
    """Return the state of an agent.

    Args:
        pools: the number of waiting requests by model.
    """
    waiting = dict(pools or {})
    discovery = SimpleNamespace(ages_s=lambda: {"dns:gpu.test": 4.0})
    healthy = SimpleNamespace(health=SimpleNamespace(state=RegionState.HEALTHY), rtt_s=0.02)
    spool = SimpleNamespace(lost_records=0, use=SimpleNamespace(total_bytes=0, oldest_at=None))
    fields: dict[str, Any] = {
        "config": SimpleNamespace(plan=SimpleNamespace(epoch=7, generation=41), age_s=lambda: 0.5),
        "endpoints": SimpleNamespace(
            pools=waiting, every=lambda: endpoints, sources=SimpleNamespace(discovery=discovery)
        ),
        "queues": SimpleNamespace(waiting_here=waiting.get),
        "peers": SimpleNamespace(regions={"eu-es": healthy}),
        "tally": SimpleNamespace(objectives={}),
        "file_problems": lambda: {"endpoints": "", "geoip": "it is damaged"},
        "shared_load": SimpleNamespace(up=True, shared=True, age_s=lambda: 0.01),
        "ledger": SimpleNamespace(spool=spool),
        "budgets": NoBudgets(),
        "demand": SimpleNamespace(rows=SimpleNamespace(merged=0, lost=0)),
        "burst": SimpleNamespace(requests={"llama": 2}, used_s={"llama": 3.5}, cost={"llama": 0.07}),
    }
    return SimpleNamespace(**(fields | changes))
