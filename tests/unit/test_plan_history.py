"""The history holds each plan that was another than the one before, under the number it came with."""

from __future__ import annotations

from control_plane.plan_history import MOST_PLANS, PlanHistory
from penstock.plan import Arc, ArcReason, ClassPlan, RegionPlan


def slice_(region: str, generation: int, share: float = 1.0, epoch: int = 1) -> RegionPlan:
    arcs = (Arc("a", share, ArcReason.HOME), Arc("b", 1.0 - share, ArcReason.SPILLOVER))
    return RegionPlan(region, generation, epoch, "digest", float(generation), (ClassPlan("m", "all", arcs, ()),))


def both(a: RegionPlan, b: RegionPlan) -> dict[str, RegionPlan]:
    return {"a": a, "b": b}


def test_what_is_written_again_unchanged_is_the_same_plan() -> None:
    history = PlanHistory()
    assert history.note({}) is None
    first = history.note(both(slice_("a", 1), slice_("b", 1)))
    assert first is not None
    assert (first.generation, first.changes) == (1, ())
    assert history.note(both(slice_("a", 5), slice_("b", 1))) is None
    assert history.plans == (first,)
    assert [history.find(number) for number in (0, 1, 4, 5, 6)] == [None, first, first, first, None]


def test_what_changed_is_a_new_plan_with_its_difference() -> None:
    history = PlanHistory()
    first = history.note(both(slice_("a", 1), slice_("b", 1)))
    second = history.note(both(slice_("a", 2, 0.75), slice_("b", 1)))
    assert second is not None
    assert [(one.origin, one.server, one.before, one.after) for one in second.changes] == [
        ("a", "a", 1.0, 0.75),
        ("a", "b", 0.0, 0.25),
    ]
    assert (history.find(1), history.find(2)) == (first, second)


def test_slices_of_one_generation_come_one_by_one() -> None:
    history = PlanHistory()
    history.note(both(slice_("a", 1), slice_("b", 1)))
    history.note(both(slice_("a", 2, 0.5), slice_("b", 1)))
    whole = history.note(both(slice_("a", 2, 0.5), slice_("b", 2, 0.5)))
    assert whole is not None
    assert [plan.generation for plan in history.plans] == [1, 2]
    assert {one.origin for one in whole.changes} == {"a", "b"}


def test_it_is_bounded_and_begins_anew_with_the_store() -> None:
    history = PlanHistory()
    for number in range(1, MOST_PLANS + 10):
        history.note({"a": slice_("a", number, 0.5 if number % 2 else 1.0)})
    assert len(history.plans) == MOST_PLANS
    assert history.find(1) is None
    history.note({"a": slice_("a", 1)})
    assert [plan.generation for plan in history.plans] == [1]
    assert history.find(MOST_PLANS) is None
