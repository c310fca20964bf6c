"""The difference of two plans lists the arcs that differ, and no others."""

from __future__ import annotations

from itertools import pairwise

from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.plan_diff import (
    DEMAND_ENDED,
    ArcChange,
    apply_changes,
    arcs,
    compose_changes,
    plan_diff,
    revert_changes,
)

HOME, SPILL = ArcReason.HOME, ArcReason.SPILLOVER


def slices(*arcs: Arc, region: str = "a", generation: int = 1) -> dict[str, RegionPlan]:
    return {region: RegionPlan(region, generation, 1, "digest", 0.0, (ClassPlan("m", "all", arcs, ()),))}


def test_the_same_shares_are_no_difference() -> None:
    before = slices(Arc("a", 0.5, HOME), Arc("b", 0.5, SPILL))
    after = slices(Arc("b", 0.5, SPILL, "fuller"), Arc("a", 0.5 + 1e-9, HOME), generation=2)
    assert plan_diff(before, after) == ()
    assert plan_diff({}, {}) == ()


def test_a_share_that_moves_by_a_millionth_is_a_difference() -> None:
    before = slices(Arc("a", 0.5, HOME))
    assert len(plan_diff(before, slices(Arc("a", 0.500_001_1, HOME)))) == 1
    assert plan_diff(before, slices(Arc("a", 0.500_000_9, HOME))) == ()


def test_arcs_that_move_come_and_go_the_largest_first() -> None:
    before = slices(Arc("a", 0.9, HOME), Arc("b", 0.1, SPILL))
    after = slices(Arc("a", 0.7, HOME), Arc("c", 0.3, SPILL, "near"))
    assert plan_diff(before, after) == (
        ArcChange("a", "c", "m", "all", 0.0, 0.3, None, SPILL, "near"),
        ArcChange("a", "a", "m", "all", 0.9, 0.7, HOME, HOME, ""),
        ArcChange("a", "b", "m", "all", 0.1, 0.0, SPILL, None, ""),
    )


def test_a_region_that_comes_or_goes() -> None:
    only = slices(Arc("a", 1.0, HOME))
    assert [(change.before, change.after) for change in plan_diff({}, only)] == [(0.0, 1.0)]
    assert [(change.before, change.after) for change in plan_diff(only, {})] == [(1.0, 0.0)]


def test_the_end_of_demand_is_no_move_and_a_class_without_a_region_is_none() -> None:
    only = slices(Arc("a", 1.0, HOME))
    gone = {"a": RegionPlan("a", 2, 1, "digest", 0.0, ())}
    assert [change.detail for change in plan_diff(only, gone)] == [DEMAND_ENDED]
    assert [change.detail for change in plan_diff(only, slices())] == [""]


def test_changes_lead_from_one_plan_to_the_next_and_back() -> None:
    plans = [
        slices(Arc("a", 0.9, HOME), Arc("b", 0.1, SPILL)),
        slices(Arc("a", 0.7, HOME), Arc("c", 0.3, SPILL, "near")),
        slices(Arc("a", 0.9, HOME), Arc("c", 0.1, SPILL, "near")),
    ]
    steps = [plan_diff(before, after) for before, after in pairwise(plans)]
    whole = compose_changes(steps)
    assert whole == plan_diff(plans[0], plans[2])
    assert [(change.server, change.before, change.after) for change in whole] == [("b", 0.1, 0.0), ("c", 0.0, 0.1)]
    known = arcs(plans[0])
    for changes, after in zip(steps, plans[1:], strict=True):
        known = apply_changes(known, changes)
        assert known == arcs(after)
    for changes, before in zip(reversed(steps), reversed(plans[:-1]), strict=True):
        known = revert_changes(known, changes)
        assert {key: (arc.share, arc.why) for key, arc in known.items()} == {
            key: (arc.share, arc.why) for key, arc in arcs(before).items()
        }
