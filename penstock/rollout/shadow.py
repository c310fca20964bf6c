"""The effect of a candidate's plan: compares both plans of one moment by the demand that they serve differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.fleet.snapshot import Demand
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_diff import ArcChange, plan_diff

MAX_CHANGES = 200
"""Maximum number of listed arcs, the largest differences first."""


class Shadow(msgspec.Struct, frozen=True):
    """The difference between the stable policy's plan and the candidate's."""

    number: int
    """Number of the rollout."""
    moved_share: float
    """Share (0-1) of all demand that is served by a different region."""
    changes: tuple[ArcChange, ...]
    """Arcs whose share differs, at most MAX_CHANGES."""


def shadow(
    number: int, before: Mapping[str, RegionPlan], after: Mapping[str, RegionPlan], demands: Iterable[Demand]
) -> Shadow:
    """Compares the two plans, weighted by the demand that they serve."""
    total = moved = 0.0
    for row in demands:
        old, new = _shares(before.get(row.origin), row), _shares(after.get(row.origin), row)
        total += row.requests_per_s
        moved += max(_lost(old, new), _lost(new, old)) * row.requests_per_s
    return Shadow(number, moved / total if total > 0.0 else 0.0, plan_diff(before, after)[:MAX_CHANGES])


def _shares(plan: RegionPlan | None, demand: Demand) -> dict[str, float]:
    entry = plan.lookup(demand.model, demand.residency) if plan is not None else None
    return {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}


def _lost(old: Mapping[str, float], new: Mapping[str, float]) -> float:
    """Returns the sum of shares that `old` gives and `new` does not."""
    return sum(max(0.0, share - new.get(server, 0.0)) for server, share in old.items())
