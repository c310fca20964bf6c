"""The history derives the moves of shares from plan steps, and reports each further move to the leader."""

from __future__ import annotations

import pytest

from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.planning.plan_history import (
    BURST,
    BURST_S,
    MAX_CHANGES,
    MAX_CIRCUMSTANCES,
    PlanHistory,
    PlanStep,
    PlanSummary,
    summary,
)

SETTLING = 3
"""As documented, and not imported: a test fails if a tuned constant changes."""

HOME, SPILL = ArcReason.HOME, ArcReason.SPILLOVER


def slices(generation: int, share: float, *, epoch: int = 1, digest: str = "digest") -> dict[str, RegionPlan]:
    """Two regions, of which the first sends a part of its demand to the second."""
    arcs = (Arc("a", share, HOME), Arc("b", 1.0 - share, SPILL)) if share < 1.0 else (Arc("a", 1.0, HOME),)
    made_at = float(generation)
    first = RegionPlan("a", generation, epoch, digest, made_at, (ClassPlan("m", "all", arcs, ()),))
    return {"a": first, "b": RegionPlan("b", generation, epoch, digest, made_at, ())}


class Leader:
    """Writes the next step as the journal does."""

    def __init__(self, history: PlanHistory) -> None:
        self.history = history
        self.number = 0

    def look(self, plan: dict[str, RegionPlan], circumstances: tuple[str, ...] = ("b is failed",)) -> PlanStep | None:
        now = max(plan_slice.made_at for plan_slice in plan.values())
        step = self.history.next_step(plan, now, "north", circumstances)
        if step is not None:
            self.number += 1
            self.history.keep(self.number, step)
        return step


@pytest.fixture
def leader() -> Leader:
    history = PlanHistory()
    history.begin({})
    return Leader(history)


def shares(history: PlanHistory, generation: int) -> dict[str, float]:
    number = history.find(generation)
    assert number is not None
    (entry,) = history.plan(number).slices["a"].classes
    return {arc.server: arc.share for arc in entry.arcs}


def test_an_empty_history_reports_nothing() -> None:
    assert PlanHistory().next_step(slices(1, 1.0), 1.0, "north", ()) is None
    history = PlanHistory()
    history.begin({})
    assert history.next_step({}, 1.0, "north", ()) is None
    assert history.find(1) is None


def test_an_unchanged_plan_is_no_step(leader: Leader) -> None:
    first = leader.look(slices(1, 1.0))
    assert first is not None
    assert (first.generation, first.previous_generation, first.leader, first.circumstances) == (
        1,
        0,
        "north",
        ("b is failed",),
    )
    assert leader.look(slices(5, 1.0)) is None
    assert [leader.history.find(number) for number in (0, 1, 5)] == [None, 1, None]


def test_plans_are_reconstructed_from_the_changes_of_steps(leader: Leader) -> None:
    for generation, share in ((1, 1.0), (4, 0.75), (9, 0.25)):
        assert leader.look(slices(generation, share)) is not None
    history = leader.history
    assert shares(history, 1) == {"a": 1.0}
    assert shares(history, 4) == shares(history, 8) == {"a": 0.75, "b": 0.25}
    assert shares(history, 9) == {"a": 0.25, "b": 0.75}
    whole = history.diff(1, 3)
    assert (whole.before.generation, whole.after.generation) == (1, 9)
    assert [(change.server, change.before, change.after, change.why) for change in whole.changes] == [
        ("a", 1.0, 0.25, HOME),
        ("b", 0.0, 0.75, SPILL),
    ]
    back = history.diff(3, 1)
    assert [(change.server, change.before, change.after, change.why) for change in back.changes] == [
        ("a", 0.25, 1.0, HOME),
        ("b", 0.75, 0.0, None),
    ]
    assert history.diff(2, 2).changes == ()


def test_a_plan_of_the_past_has_the_slices_of_its_origins_and_a_step_its_time(leader: Leader) -> None:
    for generation, share in ((1, 1.0), (4, 0.75)):
        leader.look(slices(generation, share, epoch=3))
    found = leader.history.plan(2).slices
    assert [(origin, each.region, each.generation, each.epoch, each.made_at) for origin, each in found.items()] == [
        ("a", "a", 4, 3, 4.0)
    ]
    step = leader.history.plan(2).step
    assert summary(step) == PlanSummary(4, 3, "digest", 4.0, 2, "north", ("b is failed",), step.provenance)


def test_a_follower_has_the_same_history_and_continues_as_leader(leader: Leader) -> None:
    follower = PlanHistory()
    for generation, share in ((1, 1.0), (4, 0.75)):
        step = leader.look(slices(generation, share))
        assert step is not None
        follower.keep(generation, step)
        follower.begin(slices(generation, share))
    # The leader fails after a move that it did not report.
    step = follower.next_step(slices(7, 0.5, epoch=2), 7.0, "south", ())
    assert step is not None
    assert (step.previous_generation, step.epoch, [(change.before, change.after) for change in step.changes]) == (
        4,
        2,
        [(0.75, 0.5), (0.25, 0.5)],
    )


def test_another_leader_and_another_policy_are_steps_though_no_share_moves(leader: Leader) -> None:
    leader.look(slices(1, 1.0))
    other = leader.look(slices(2, 1.0, epoch=2))
    assert other is not None
    assert (other.epoch, other.changes) == (2, ())
    assert leader.look(slices(3, 1.0, epoch=2, digest="another")) is not None
    assert leader.look(slices(4, 1.0, epoch=2, digest="another")) is None


def test_shares_that_keep_moving_are_reported_together(leader: Leader) -> None:
    reported = [leader.look(slices(at, 1.0 - at / 100)) for at in range(1, int(BURST_S))]
    assert [step is not None for step in reported] == [True] * BURST + [False] * (int(BURST_S) - 1 - BURST)
    late = leader.look(slices(int(BURST_S) + 1, 0.1))
    assert late is not None
    assert [(change.before, change.after) for change in late.changes if change.server == "a"] == [(0.95, 0.1)]
    assert leader.look(slices(int(BURST_S) + 2, 0.05)) is not None, "as the second of the first ones is old enough"


def test_the_plans_after_a_failure_or_an_override_are_reported_at_once(leader: Leader) -> None:
    for at in range(1, BURST + 1):
        leader.look(slices(at, 1.0 - at / 100))
    assert leader.look(slices(BURST + 1, 0.9)) is None
    drained = ("b is failed", "drain of a by duty: new racks")
    # The plan in force when an override is set is one that was computed without it.
    reported = [leader.look(slices(BURST + 1 + at, 0.9 - at / 10), drained) for at in range(SETTLING + 1)]
    assert [step is not None for step in reported] == [True] * SETTLING + [False]
    assert leader.look(slices(BURST + 9, 0.9)) is not None, "the drain has ended"


def test_steps_are_bounded_and_the_rest_follows_in_later_steps() -> None:
    history = PlanHistory()
    history.begin({})
    leader = Leader(history)
    classes = tuple(ClassPlan("m", f"c{at}", (Arc("a", 1.0, HOME),), ()) for at in range(MAX_CHANGES + 7))
    plan = {"a": RegionPlan("a", 1, 1, "digest", 1.0, classes)}
    first, second = leader.look(plan), leader.look(plan)
    assert first is not None
    assert second is not None
    assert (len(first.changes), first.more_changes, len(second.changes), second.more_changes) == (MAX_CHANGES, 7, 7, 0)
    assert leader.look(plan) is None
    step = history.next_step(slices(9, 0.5), 9.0, "north", ("x",) * 100)
    assert step is not None
    assert len(step.circumstances) == MAX_CIRCUMSTANCES


def test_a_removed_origin_is_reported_and_then_unknown() -> None:
    history = PlanHistory()
    history.begin({})
    leader = Leader(history)
    leader.look(slices(1, 1.0))
    gone = leader.look({"b": slices(2, 1.0)["b"]})
    assert gone is not None
    assert [(change.origin, change.before, change.after) for change in gone.changes] == [("a", 1.0, 0.0)]
    history.forget(1)
    assert (history.find(1), history.find(2)) == (None, 2)
