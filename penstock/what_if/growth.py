"""Growth of demand on the side after: factors for the whole demand, a model, or the clients of a region."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec

from penstock.what_if.demand_outcomes import DemandGroup


class Growth(msgspec.Struct, frozen=True):
    """A factor of the groups that match."""

    factor: float
    model: str = ""
    """Requested model; empty: all."""
    origin: str = ""
    """Region that receives the requests; empty: all."""


def grown(demand: Sequence[DemandGroup], growth: Sequence[Growth]) -> Sequence[DemandGroup]:
    """Return the demand with the rate of each group multiplied by every factor that matches it."""
    if not growth:
        return demand
    return [
        msgspec.structs.replace(group, requests_per_s=group.requests_per_s * prod(_factors(group, growth)))
        for group in demand
    ]


def _factors(group: DemandGroup, growth: Sequence[Growth]) -> list[float]:
    return [each.factor for each in growth if each.model in ("", group.model) and each.origin in ("", group.origin)]
