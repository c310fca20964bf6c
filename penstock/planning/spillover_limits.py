"""The policy's limits of spillover: demand that could stay where it landed goes nowhere too dear, and only in part.

Limits are of overflow, not of failover. A region that they keep traffic from still takes what no other permitted region
can serve, because those are lost or because there are none; not what they are merely too full for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from penstock.policy.policy import Policy, SpilloverLimit


class Bounds(msgspec.Struct, frozen=True):
    """What holds for one origin's demand for one model."""

    dear: frozenset[str] = frozenset()
    """Regions that take none of it while another can: they cost more than a limit allows."""
    max_away: float = 1.0
    """How much (0-1) of a class's demand may be served elsewhere while the origin serves."""
    closed: Mapping[str, str] = MappingProxyType({})
    """Regions that get what the plan gives them and nothing else, neither as the nearest nor on a credit; by the limit
    that says so. Where so much may leave the plan alone can see to it."""


UNBOUNDED = Bounds()


def bounds(policy: Policy, origin: str, model: str) -> Bounds:
    """The limits on what leaves an origin; worked out once for every policy, for agents ask with every request."""
    if not policy.spillover_limits:
        return UNBOUNDED
    known: dict[tuple[str, str], Bounds] = policy.kept_bounds
    found = known.get((origin, model))
    if found is None:
        found = known[origin, model] = _bounds(policy, origin, model)
    return found


def kept_home(target: Mapping[str, float], origin: str, max_away: float) -> Mapping[str, float]:
    """Wanted shares with no more than `max_away` (0-1) of them elsewhere than at their origin."""
    away = sum(share for server, share in target.items() if server != origin)
    if away <= max_away:
        return target
    part = max_away / away
    kept = {server: share * part for server, share in target.items() if server != origin and share * part > 0.0}
    return {origin: 1.0 - max_away, **kept} if max_away < 1.0 else kept


def cite(limit: SpilloverLimit) -> str:
    """A limit as plans and explanations name it."""
    return f"{limit.name} ({limit.source})" if limit.source else limit.name


def _bounds(policy: Policy, origin: str, model: str) -> Bounds:
    dear: set[str] = set()
    closed: dict[str, str] = {}
    max_away = 1.0
    for limit in policy.spillover_limits:
        if (limit.origins and origin not in limit.origins) or (limit.models and model not in limit.models):
            continue
        for name, region in policy.regions.items():
            ceiling = limit.max_cost_per_gpu_hour
            too_dear = ceiling is not None and region.cost_per_gpu_hour > ceiling
            if name != origin and too_dear:
                dear.add(name)
            if name != origin and (too_dear or limit.max_share is not None):
                closed.setdefault(name, cite(limit))
        if limit.max_share is not None:
            max_away = min(max_away, limit.max_share)
    return Bounds(frozenset(dear), max_away, closed)
