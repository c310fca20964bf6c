"""The difference of two plans: arcs added, removed, or with another share, each with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from penstock.planning.plan import Arc, ArcReason, RegionPlan

MIN_DIFFERENCE = 1e-6
"""Minimum difference (0-1) at which two shares count as different."""


DEMAND_ENDED = "the demand of the traffic class ended"
"""Detail of a removed arc whose share did not move to another region."""


class ArcChange(msgspec.Struct, frozen=True):
    """One arc whose share differs between two plans."""

    origin: str
    server: str
    model: str
    residency: str
    """Name of the residency class."""
    before: float
    """Share (0-1) of the class's demand before the change; 0 for an added arc."""
    after: float
    """Share (0-1) of the class's demand after the change; 0 for a removed arc."""
    why_before: ArcReason | None
    """Reason of the arc before the change; None for an added arc."""
    why: ArcReason | None
    """Reason of the arc after the change; None for a removed arc."""
    detail: str
    """The detail of the arc after the change; `DEMAND_ENDED` where the later plan lacks the traffic class."""


ArcKey = tuple[str, str, str, str]
"""Origin, server, model and residency class, which identify an arc."""


def plan_diff(before: Mapping[str, RegionPlan], after: Mapping[str, RegionPlan]) -> tuple[ArcChange, ...]:
    """Every arc whose share differs, the largest differences first.

    Args:
        before: slices by region, before the change.
        after: slices by region, after the change.
    """
    return arc_changes(arcs(before), arcs(after), traffic_classes(after))


def arcs(plans: Mapping[str, RegionPlan]) -> dict[ArcKey, Arc]:
    """Every arc of these slices."""
    return {
        (origin, arc.server, entry.model, entry.residency): arc
        for origin, plan in plans.items()
        for entry in plan.classes
        for arc in entry.arcs
    }


def traffic_classes(plans: Mapping[str, RegionPlan]) -> set[tuple[str, str, str]]:
    """Origin, model and residency class of every traffic class of these slices."""
    return {(origin, entry.model, entry.residency) for origin, plan in plans.items() for entry in plan.classes}


def arc_changes(
    before: Mapping[ArcKey, Arc], after: Mapping[ArcKey, Arc], classes: Set[tuple[str, str, str]]
) -> tuple[ArcChange, ...]:
    """Every arc whose share differs, the largest differences first.

    Args:
        before: arcs before the change.
        after: arcs after the change.
        classes: the traffic classes of the later plan.
    """
    changes = [
        _change(key, before.get(key), after.get(key), "" if (key[0], *key[2:]) in classes else DEMAND_ENDED)
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    ]
    return _moved(changes)


def apply_changes(before: Mapping[ArcKey, Arc], changes: Iterable[ArcChange]) -> dict[ArcKey, Arc]:
    """The arcs after these changes."""
    after = dict(before)
    for change in changes:
        after.pop(_key(change), None)
        if change.why is not None:
            after[_key(change)] = Arc(change.server, change.after, change.why, change.detail)
    return after


def revert_changes(after: Mapping[ArcKey, Arc], changes: Iterable[ArcChange]) -> dict[ArcKey, Arc]:
    """The arcs before these changes; the details of changed arcs are lost."""
    before = dict(after)
    for change in changes:
        before.pop(_key(change), None)
        if change.why_before is not None:
            before[_key(change)] = Arc(change.server, change.before, change.why_before)
    return before


def compose_changes(steps: Iterable[Sequence[ArcChange]]) -> tuple[ArcChange, ...]:
    """Merge consecutive differences into one."""
    whole: dict[ArcKey, ArcChange] = {}
    for changes in steps:
        for change in changes:
            first = whole.get(_key(change), change)
            whole[_key(change)] = msgspec.structs.replace(change, before=first.before, why_before=first.why_before)
    return _moved(whole.values())


def _key(change: ArcChange) -> ArcKey:
    return change.origin, change.server, change.model, change.residency


def _moved(changes: Iterable[ArcChange]) -> tuple[ArcChange, ...]:
    moved = [change for change in changes if abs(change.after - change.before) >= MIN_DIFFERENCE]
    return tuple(
        sorted(
            moved,
            key=lambda change: (
                -abs(change.after - change.before),
                change.origin,
                change.model,
                change.residency,
                change.server,
            ),
        )
    )


def _change(key: ArcKey, before: Arc | None, after: Arc | None, removed: str) -> ArcChange:
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
        detail=after.detail if after is not None else removed,
    )
