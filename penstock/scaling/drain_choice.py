"""The endpoints to drain when a region has more than it needs for a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport

USELESS = frozenset(
    {
        EndpointCondition.NEW,
        EndpointCondition.DOWN,
        EndpointCondition.SUSPECT,
        EndpointCondition.EJECTED,
        EndpointCondition.UNLOADED,
    }
)
"""Conditions of endpoints that cannot serve now; such endpoints are drained first."""


def endpoints_to_drain(endpoints: Iterable[EndpointReport], surplus: Mapping[str, int]) -> tuple[EndpointReport, ...]:
    """The endpoints of one region to drain, in this order.

    An endpoint is drained only if every model that it serves has a surplus. The order is: endpoints that cannot
    serve now, endpoints of the zone with the most endpoints, endpoints with the fewest requests.

    Args:
        endpoints: the endpoints of the region.
        surplus: number of endpoints that are not needed, by model.
    """
    candidates = [endpoint for endpoint in endpoints if endpoint.condition is not EndpointCondition.DRAINING]
    left = dict(surplus)
    in_zone = Counter(endpoint.zone for endpoint in candidates)
    drained: list[EndpointReport] = []
    while True:
        spare = [
            endpoint
            for endpoint in candidates
            if endpoint.models and all(left.get(model, 0) > 0 for model in endpoint.models)
        ]
        if not spare:
            return tuple(drained)
        chosen = min(
            spare,
            key=lambda endpoint: (
                endpoint.condition not in USELESS,
                -in_zone[endpoint.zone],
                endpoint.in_flight,
                endpoint.name,
            ),
        )
        candidates.remove(chosen)
        in_zone[chosen.zone] -= 1
        drained.append(chosen)
        for model in chosen.models:
            left[model] -= 1
