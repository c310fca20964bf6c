"""Drills step by step: the end of each phase, the reasons to abort, and the effects of each phase."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from penstock.drills.drill_progress import LiftOverride, Observed, SetOverride, StepDown, on_tick
from penstock.drills.drill_state import (
    FINAL_PHASES,
    TRANSITIONS,
    Drill,
    DrillEvent,
    DrillPhase,
    DrillRequest,
    DrillStep,
    first_phase,
    transition,
)
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.overrides.overrides import Override, OverrideKind, lifted
from penstock.policy.kinds.operations import Exercise
from penstock.rollout.canary_analysis import AgentObservation
from penstock.rollout.objective_analysis import ObjectiveCounts

EVACUATE_WITHIN_S, RETURN_WITHIN_S, SET_WITHIN_S, TAKE_OVER_WITHIN_S = 900.0, 300.0, 60.0, 60.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

RAMP_S, HOLD_S = 8.0, 30.0


def begun(exercise: Exercise = Exercise.EVACUATE_REGION) -> Drill:
    region = "eu-de" if exercise is Exercise.EVACUATE_REGION else None
    request = DrillRequest(exercise, region, HOLD_S, 2.0, "a test", "duty")
    drill = Drill(1, request, (DrillStep(first_phase(exercise), 0.0, "a test"),), 7, "north", 70, 5)
    return on_tick(drill, seen(0.0), 0.0)[0]


def drain(**fields: Any) -> Override:
    whole = Override("drill-1", OverrideKind.DRAIN, "a test", "duty", 0.0, "eu-de", expires_at=5000.0)
    return msgspec.structs.replace(whole, **fields)


def agent(failed: int = 0, ended: int = 0, late: int = 0) -> AgentObservation:
    objective = ObjectiveCounts("chat", 1.0, 0.99, ended, ended - late)
    return AgentObservation("eu-es", 1, "", "", "", RequestCounts(ended, failed, ended - failed, 1.0), (objective,))


def seen(now: float, **fields: Any) -> Observed:
    usual = {"ramp_s": RAMP_S, "reported_at": now, "agents": {"eu-es/a": agent()}}
    return Observed(**({"epoch": 7, "leader": "north", "plan_epoch": 70, "audit_seq": 5} | usual | fields))


def stepped(drill: Drill, now: float, **fields: Any) -> Drill:
    return on_tick(drill, seen(now, **fields), now)[0]


def holding() -> Drill:
    drill = stepped(begun(), 1.0, override=drain(), share=0.5, in_flight=3)
    return stepped(drill, 11.0, override=drain())


def test_a_region_is_evacuated_held_and_brought_back() -> None:
    drill, effects = on_tick(begun(), seen(0.0), 0.0)
    (set_drain,) = effects
    assert isinstance(set_drain, SetOverride)
    assert (set_drain.override.id, set_drain.override.region, set_drain.override.author) == ("drill-1", "eu-de", "duty")
    assert set_drain.override.ends_at > EVACUATE_WITHIN_S + HOLD_S
    drill = stepped(drill, 1.0, override=drain(), share=0.5, in_flight=3)
    assert drill.phase is DrillPhase.EVACUATING
    for kept in ({"share": 0.01}, {"in_flight": 1}, {"reported_at": 1.0}):
        assert stepped(drill, 5.0, override=drain(), **kept).phase is DrillPhase.EVACUATING
    drill = stepped(drill, 11.0, override=drain())
    assert (drill.phase, drill.rto_s) == (DrillPhase.HOLDING, 11.0)
    assert stepped(drill, 11.0 + HOLD_S - 0.1, override=drain()).phase is DrillPhase.HOLDING
    drill, effects = on_tick(drill, seen(41.0, override=drain()), 41.0)
    assert drill.phase is DrillPhase.RETURNING
    (lift,) = effects
    assert isinstance(lift, LiftOverride)
    ended = lifted(drain(), "north", 41.0)
    drill, effects = on_tick(drill, seen(42.0, override=ended), 42.0)
    assert (drill.phase, effects) == (DrillPhase.RETURNING, ())
    assert stepped(drill, 50.0, override=ended, is_healthy=False).phase is DrillPhase.RETURNING
    drill = stepped(drill, 50.0, override=ended)
    assert (drill.phase, drill.return_s, drill.marks) == (DrillPhase.DONE, 9.0, {})


@pytest.mark.parametrize(
    ("observed", "says"),
    [
        ({"agents": {"eu-es/a": agent(ended=1000, late=40)}}, "error budget of chat burns at 4.0 times"),
        ({"agents": {"eu-es/a": agent(ended=100, failed=6)}}, "6.0% of requests fail"),
        ({"failed": ("eu-es",)}, "eu-es failed"),
        ({"override": None}, "the drain was lifted or has expired"),
        ({"override": lifted(drain(), "operator", 12.0)}, "the drain was lifted or has expired"),
    ],
)
def test_a_drill_that_hurts_or_was_overruled_is_aborted(observed: dict[str, Any], says: str) -> None:
    drill, effects = on_tick(holding(), seen(13.0, **({"override": drain()} | observed)), 13.0)
    assert DrillPhase.ABORTING in [step.phase for step in drill.steps]
    assert any(says in step.why for step in drill.steps)
    assert bool(effects) is ("override" not in observed)
    assert stepped(drill, 40.0).phase is DrillPhase.ABORTED


def test_a_few_late_answers_within_the_budget_abort_nothing() -> None:
    for counted in (agent(ended=1000, late=19), agent(ended=10, late=4), agent(ended=100, failed=5)):
        assert stepped(holding(), 13.0, override=drain(), agents={"eu-es/a": counted}).phase is DrillPhase.HOLDING


def test_counters_of_before_the_drill_do_not_count() -> None:
    drill = msgspec.structs.replace(begun(), marks={})
    drill = stepped(drill, 0.5, agents={"eu-es/a": agent(ended=1000, late=500, failed=500)})
    drill = stepped(drill, 1.0, override=drain(), agents={"eu-es/a": agent(ended=1010, late=500, failed=500)})
    assert (drill.phase, drill.requests.ended, drill.requests.failed) == (DrillPhase.EVACUATING, 10, 0)


def test_each_phase_has_a_time_limit() -> None:
    setting = stepped(begun(), SET_WITHIN_S - 1, is_healthy=False)
    assert setting.phase is begun().phase
    assert stepped(begun(), SET_WITHIN_S + 1, is_healthy=False).phase is DrillPhase.ABORTING
    evacuating = stepped(begun(), 1.0, override=drain(), share=0.5)
    assert stepped(evacuating, EVACUATE_WITHIN_S, override=drain(), share=0.5).phase is evacuating.phase
    late = 1.0 + EVACUATE_WITHIN_S + 1.0
    assert stepped(evacuating, late, override=drain(), share=0.5).phase is DrillPhase.ABORTING
    returning = stepped(holding(), 50.0, override=drain())
    assert stepped(returning, 50.0 + RAMP_S + RETURN_WITHIN_S - 1.0, is_healthy=False).phase is returning.phase
    overdue = 50.0 + RAMP_S + RETURN_WITHIN_S + 1.0
    assert stepped(returning, overdue, is_healthy=False).phase is DrillPhase.ABORTED


def test_the_leader_steps_down_until_another_plan_is_in_force() -> None:
    drill = begun(Exercise.STEP_DOWN)
    drill, effects = on_tick(drill, seen(1.0), 1.0)
    assert (drill.phase, effects) == (DrillPhase.STEPPING_DOWN, (StepDown(),))
    waiting, effects = on_tick(drill, seen(2.0, epoch=9, leader="south"), 2.0)
    assert (waiting.phase, effects) == (DrillPhase.STEPPING_DOWN, ())
    drill = stepped(drill, 3.0, epoch=9, leader="south", plan_epoch=90, audit_seq=4)
    assert (drill.phase, drill.rto_s, drill.lost_changes) == (DrillPhase.DONE, 3.0, 1)


def test_a_failover_that_nobody_takes_over_is_aborted() -> None:
    drill = begun(Exercise.STEP_DOWN)
    assert stepped(drill, 3.0, epoch=9, plan_epoch=90).phase is DrillPhase.ABORTED
    assert stepped(drill, TAKE_OVER_WITHIN_S - 1).phase is drill.phase
    assert stepped(drill, TAKE_OVER_WITHIN_S + 1).phase is DrillPhase.ABORTED


def test_a_transition_that_the_table_lacks_is_an_error() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(DrillPhase) - FINAL_PHASES
    with pytest.raises(KeyError):
        transition(begun(), DrillEvent.HELD, 1.0, why="a test")


@pytest.mark.parametrize("seed", range(50))
def test_every_evacuation_ends_and_leaves_no_drain_behind(seed: int) -> None:
    rng, drill, override, now = Random(seed), begun(), None, 0.0
    for _ in range(60):
        now += rng.choice([1.0, 10.0, 400.0])
        failed = rng.choice([(), (), (), ("eu-es",)])
        observed = seen(
            now, override=override, share=rng.choice([0.0, 0.5]), failed=failed, is_healthy=rng.random() < 0.5
        )
        drill, effects = on_tick(drill, observed, now)
        for effect in effects:
            if isinstance(effect, SetOverride):
                override = effect.override
            elif isinstance(effect, LiftOverride):
                assert override is not None
                override = lifted(override, "north", now)
        if drill.is_over:
            break
    assert drill.is_over
    assert override is None or not override.holds(now)
