"""How two plans differ: which arcs came, went or changed their share, and why each is there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.plan import Arc, ArcReason, RegionPlan

LEAST_DIFFERENCE = 1e-6
"""A share that differs by less is the same: arithmetic, not a decision."""


class ArcChange(msgspec.Struct, frozen=True):
    """One arc whose share differs."""

    origin: str
    server: str
    model: str
    residency: str
    """Name of the residency class."""
    before: float
    """Share of the class's demand (0-1); 0 where the arc was not there."""
    after: float
    """As `before`; 0 where the arc is gone."""
    why_before: ArcReason | None
    """None where the arc was not there."""
    why: ArcReason | None
    """None where the arc is gone."""
    detail: str
    """What the reason does not say, of the arc as it is now."""


def plan_diff(before: Mapping[str, RegionPlan], after: Mapping[str, RegionPlan]) -> tuple[ArcChange, ...]:
    """Every arc whose share differs, the largest differences first.

    Args:
        before: slices by region.
        after: likewise.
    """
    old, new = _arcs(before), _arcs(after)
    changes = [
        _change(key, old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)
    ]
    moved = [one for one in changes if abs(one.after - one.before) >= LEAST_DIFFERENCE]
    return tuple(
        sorted(moved, key=lambda one: (-abs(one.after - one.before), one.origin, one.model, one.residency, one.server))
    )


_Key = tuple[str, str, str, str]


def _arcs(plans: Mapping[str, RegionPlan]) -> dict[_Key, Arc]:
    return {
        (origin, arc.server, entry.model, entry.residency): arc
        for origin, plan in plans.items()
        for entry in plan.classes
        for arc in entry.arcs
    }


def _change(key: _Key, before: Arc | None, after: Arc | None) -> ArcChange:
    origin, server, model, residency = key
    return ArcChange(
        origin=origin,
        server=server,
        model=model,
        residency=residency,
        before=before.share if before is not None else 0.0,
        after=after.share if after is not None else 0.0,
        why_before=before.why if before is not None else None,
        why=after.why if after is not None else None,
        detail=after.detail if after is not None else "",
    )
