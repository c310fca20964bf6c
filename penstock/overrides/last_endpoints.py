"""The models that lose their last endpoint in a region when one endpoint is drained."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.overrides.overrides import Override

ACCEPTING = frozenset({EndpointCondition.READY, EndpointCondition.WARMING})
"""The conditions of endpoints that accept new requests."""


def last_of(wanted: Override, endpoints: Iterable[EndpointReport], overrides: Iterable[Override]) -> tuple[str, ...]:
    """Returns the models that no other accepting endpoint serves; none if the endpoint itself accepts no requests.

    Args:
        wanted: the drain of the endpoint.
        endpoints: the endpoints of its region, as reported.
        overrides: those already set, whose drains the reports may not show yet.
    """
    drained = {
        other.endpoint
        for other in overrides
        if other.region == wanted.region and other.begins_at < wanted.ends_at and wanted.begins_at < other.ends_at
    }
    accepting = {endpoint.name: endpoint for endpoint in endpoints if endpoint.condition in ACCEPTING}
    own = accepting.pop(wanted.endpoint or "", None)
    if own is None:
        return ()
    served = {model for endpoint in accepting.values() if endpoint.name not in drained for model in endpoint.models}
    return tuple(model for model in own.models if model not in served)
