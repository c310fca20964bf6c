"""The models that lose their last endpoint in a region when one endpoint is drained."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport

ACCEPTING = frozenset({EndpointCondition.READY, EndpointCondition.WARMING})
"""The conditions of endpoints that accept new requests."""


def last_of(name: str, endpoints: Iterable[EndpointReport]) -> tuple[str, ...]:
    """Returns the models that no other accepting endpoint serves; none if the endpoint itself accepts no requests.

    Args:
        name: name of the endpoint.
        endpoints: the endpoints of its region, as reported.
    """
    accepting = {endpoint.name: endpoint for endpoint in endpoints if endpoint.condition in ACCEPTING}
    own = accepting.pop(name, None)
    if own is None:
        return ()
    served = {model for endpoint in accepting.values() for model in endpoint.models}
    return tuple(model for model in own.models if model not in served)
