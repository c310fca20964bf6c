"""How two plans differ: which arcs came, went or changed their share, and why each is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.planning.plan import Arc, ArcReason, RegionPlan

MIN_DIFFERENCE = 1e-6
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


ArcKey = tuple[str, str, str, str]
"""Origin, server, model, residency class: what there is one arc of at most."""


def plan_diff(before: Mapping[str, RegionPlan], after: Mapping[str, RegionPlan]) -> tuple[ArcChange, ...]:
    """Every arc whose share differs, the largest differences first.

    Args:
        before: slices by region.
        after: likewise.
    """
    return arc_changes(arcs(before), arcs(after))


def arcs(plans: Mapping[str, RegionPlan]) -> dict[ArcKey, Arc]:
    """Every arc of some slices."""
    return {
        (origin, arc.server, entry.model, entry.residency): arc
        for origin, plan in plans.items()
        for entry in plan.classes
        for arc in entry.arcs
    }


def arc_changes(before: Mapping[ArcKey, Arc], after: Mapping[ArcKey, Arc]) -> tuple[ArcChange, ...]:
    """Every arc whose share differs, the largest differences first."""
    changes = [
        _change(key, before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    ]
    return _moved(changes)


def redone(before: Mapping[ArcKey, Arc], changes: Iterable[ArcChange]) -> dict[ArcKey, Arc]:
    """The arcs once some of them have changed."""
    after = dict(before)
    for one in changes:
        after.pop(_key(one), None)
        if one.why is not None:
            after[_key(one)] = Arc(one.server, one.after, one.why, one.detail)
    return after


def undone(after: Mapping[ArcKey, Arc], changes: Iterable[ArcChange]) -> dict[ArcKey, Arc]:
    """The arcs before some of them changed, without the details of those."""
    before = dict(after)
    for one in changes:
        before.pop(_key(one), None)
        if one.why_before is not None:
            before[_key(one)] = Arc(one.server, one.before, one.why_before)
    return before


def composed(steps: Iterable[Sequence[ArcChange]]) -> tuple[ArcChange, ...]:
    """What several differences, one after the other, come to."""
    whole: dict[ArcKey, ArcChange] = {}
    for changes in steps:
        for one in changes:
            first = whole.get(_key(one), one)
            whole[_key(one)] = msgspec.structs.replace(one, before=first.before, why_before=first.why_before)
    return _moved(whole.values())


def _key(change: ArcChange) -> ArcKey:
    return change.origin, change.server, change.model, change.residency


def _moved(changes: Iterable[ArcChange]) -> tuple[ArcChange, ...]:
    moved = [one for one in changes if abs(one.after - one.before) >= MIN_DIFFERENCE]
    return tuple(
        sorted(moved, key=lambda one: (-abs(one.after - one.before), one.origin, one.model, one.residency, one.server))
    )


def _change(key: ArcKey, before: Arc | None, after: Arc | None) -> ArcChange:
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
