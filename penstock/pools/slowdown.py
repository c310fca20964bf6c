"""How slow an endpoint is beside its siblings: a GPU that is throttled or degraded is seen in its learned speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from penstock.cost.work import Speed
from penstock.pools.pool_accounting import EndpointAccount


def decode_time(speed: Speed) -> float:
    """The learned time of a unit of decode alone on the endpoint, relative to the reference accelerator."""
    return speed.decode + speed.crowding


def slowdowns(endpoints: Iterable[tuple[EndpointAccount, object]]) -> Mapping[str, float]:
    """The decode time of each endpoint relative to the median of its siblings, by name; 1.25 is 25 % slower.

    Endpoints whose speed is not learned, and those without a sibling whose speed is learned, have no entry. The speed
    is that of endpoint selection: it loses weight without new completions, so that an old slowdown disappears.

    Args:
        endpoints: each with what makes endpoints siblings, such as their models and accelerator.
    """
    families: dict[object, dict[str, float]] = {}
    for endpoint, family in endpoints:
        speed = endpoint.view.speed
        if speed is not None and endpoint.learner.learned is not None:
            families.setdefault(family, {})[endpoint.name] = decode_time(speed)
    found = {}
    for times in families.values():
        for name, own in times.items():
            others = [time for other, time in times.items() if other != name]
            if others and (usual := median(others)) > 0.0:
                found[name] = own / usual
    return found
