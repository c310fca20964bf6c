"""The policy's spillover limits: the regions closed to an origin's overflow, and the share of demand that may leave.

The limits apply to spillover, not to failover. A region over the price cap still serves demand if the other permitted
regions are lost or absent, but not if they are full.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.policy import Policy


class Bounds(msgspec.Struct, frozen=True):
    """The spillover limits of one origin's demand for one model."""

    over_price_cap: frozenset[str] = frozenset()
    """Regions that cost more than a limit allows; they serve the demand only if no other region can."""
    max_away: float = 1.0
    """Maximum share (0-1) of a class's demand that may be served elsewhere while the origin serves."""
    closed: Mapping[str, str] = MappingProxyType({})
    """By region that receives no traffic beyond the plan's shares (not as the nearest region, nor on a spill credit),
    the limit that closes it. Only the planner can enforce a maximum share."""


UNBOUNDED = Bounds()


def bounds(policy: Policy, origin: str, model: str) -> Bounds:
    """The limits on an origin's demand for a model; cached in the policy, as agents look them up for every request."""
    if not policy.spillover_limits:
        return UNBOUNDED
    known: dict[tuple[str, str], Bounds] = policy.kept_bounds
    found = known.get((origin, model))
    if found is None:
        found = known[origin, model] = _bounds(policy, origin, model)
    return found


def kept_home(target: Mapping[str, float], origin: str, max_away: float) -> Mapping[str, float]:
    """Target shares with at most `max_away` (0-1) of them outside their origin."""
    away = sum(share for server, share in target.items() if server != origin)
    if away <= max_away:
        return target
    part = max_away / away
    kept = {server: share * part for server, share in target.items() if server != origin and share * part > 0.0}
    return {origin: 1.0 - max_away, **kept} if max_away < 1.0 else kept


def cite(limit: SpilloverLimit) -> str:
    """The name of a limit in plans and explanations."""
    return f"{limit.name} ({limit.source})" if limit.source else limit.name


def _bounds(policy: Policy, origin: str, model: str) -> Bounds:
    over_price_cap: set[str] = set()
    closed: dict[str, str] = {}
    max_away = 1.0
    for limit in policy.spillover_limits:
        if (limit.origins and origin not in limit.origins) or (limit.models and model not in limit.models):
            continue
        for name, region in policy.regions.items():
            cap = limit.max_cost_per_gpu_hour
            over_cap = cap is not None and region.cost_per_gpu_hour > cap
            if name != origin and over_cap:
                over_price_cap.add(name)
            if name != origin and (over_cap or limit.max_share is not None):
                closed.setdefault(name, cite(limit))
        if limit.max_share is not None:
            max_away = min(max_away, limit.max_share)
    return Bounds(frozenset(over_price_cap), max_away, closed)
