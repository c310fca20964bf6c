"""The rollout of a version: its steps, its judgement by both versions at the same time, and its table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.counts.version_counts import VersionCounts
from penstock.policy.kinds.model_rollouts import ModelRollout, QualityHook, ShadowRequests
from penstock.rollout.model_rollout import (
    FINAL_PHASES,
    TRANSITIONS,
    ModelEvent,
    ModelPhase,
    ModelRolloutState,
    VersionMark,
    begin,
    transition,
)
from penstock.rollout.version_analysis import VersionEvidence, compared, conditions, observe, waits_s

ROLLOUT = ModelRollout("chat", "v2", (10.0, 100.0), prepare_s=10, step_s=20, watch_s=30, min_requests=100)
NONE = VersionCounts()


def counts(
    ended: int, failed: int = 0, first_byte_s: float = 0.2, token_s: float = 0.02, length: int = 100
) -> VersionCounts:
    good = ended - failed
    return VersionCounts(
        RequestCounts(ended, failed, good, good * first_byte_s), good, good * token_s, good, good * length
    )


def evidence(old: VersionCounts, new: VersionCounts, slots: int = 100, in_flight: int = 20) -> VersionEvidence:
    return VersionEvidence({"eu-de/one": VersionMark(1, old, new)}, 2 if slots else 0, slots, in_flight)


def begun(rollout: ModelRollout = ROLLOUT) -> ModelRolloutState:
    """A rollout whose agents are marked at 0 s."""
    return observe(begin(rollout, "v1", 0.0, 0.0), rollout, evidence(NONE, NONE), 0.0)


def at_first_step() -> ModelRolloutState:
    state = observe(begun(), ROLLOUT, evidence(counts(500), NONE), 10.0)
    return observe(state, ROLLOUT, evidence(counts(500), NONE), 10.0)


def test_a_rollout_without_a_ready_endpoint_of_the_new_version_states_where_the_reasons_are() -> None:
    waits_for = [
        each.text for each in conditions(begun(), ROLLOUT, evidence(NONE, NONE, slots=0), 20.0) if not each.is_met
    ]
    assert waits_for == ["the new version has no ready endpoint for 10 %; `penstock endpoints` has the reasons"]


def following(state: ModelRolloutState) -> float | None:
    share = state.share(ROLLOUT)
    return None if share is None else share.next_percent


def test_a_rollout_waits_from_the_least_time_of_its_phase_on_unless_it_is_over() -> None:
    state = at_first_step()
    assert [waits_s(state, ROLLOUT, state.since + later_s) for later_s in (0.0, ROLLOUT.step_s, 90.0)] == [
        0.0,
        0.0,
        90.0 - ROLLOUT.step_s,
    ]
    held = transition(state, ModelEvent.HALT, ROLLOUT, 20.0, why="")
    assert waits_s(held, ROLLOUT, 25.0) == 5.0
    over = transition(state, ModelEvent.ROLL_BACK, ROLLOUT, 20.0, why="")
    assert waits_s(over, ROLLOUT, 1e6) == 0.0


def test_a_good_version_goes_through_its_steps() -> None:
    state = begun()
    assert following(state) == 10.0, "for which endpoints that sleep wake before"
    assert following(transition(state, ModelEvent.HALT, ROLLOUT, 5.0, why="")) == 0.0
    assert (state.phase, state.percent) == (ModelPhase.PREPARING, 0.0)
    assert observe(state, ROLLOUT, evidence(counts(500), NONE), 9.0) == state
    state = observe(state, ROLLOUT, evidence(counts(500), NONE), 10.0)
    assert (state.phase, state.percent, following(state)) == (ModelPhase.STEP, 10.0, 100.0)
    state = observe(state, ROLLOUT, evidence(counts(500), NONE), 11.0)
    assert observe(state, ROLLOUT, evidence(counts(1500), counts(99)), 40.0) == state, "too few requests"
    assert observe(state, ROLLOUT, evidence(counts(1500), counts(100)), 29.0) == state, "too early"
    assert observe(state, ROLLOUT, evidence(counts(1500), counts(100), slots=19), 40.0) == state, "too few slots"
    assert observe(state, ROLLOUT, evidence(counts(1500), counts(100), slots=0, in_flight=0), 40.0) == state
    state = observe(state, ROLLOUT, evidence(counts(1500), counts(100)), 40.0)
    assert (state.phase, state.percent, following(state)) == (ModelPhase.WATCH, 100.0, 0.0)
    state = observe(state, ROLLOUT, evidence(counts(1500), counts(100)), 41.0)
    state = observe(state, ROLLOUT, evidence(counts(1500), counts(1100)), 70.0)
    assert (state.phase, state.percent) == (ModelPhase.DONE, 100.0)
    share = state.share(ROLLOUT)
    assert share is not None
    assert share.percent == 100.0


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (counts(1000, failed=160), "16.0% of requests fail, 10.0% of the old version at the same time"),
        (counts(100, first_byte_s=0.31), "mean time to first byte is 0.310 s, 0.200 s"),
        (counts(111, failed=11, token_s=0.031), "mean time per output token is 0.0310 s, 0.0200 s"),
        (counts(111, failed=11, length=49), "mean length of an answer is 49 tokens, 100"),
        (counts(111, failed=11, length=201), "mean length of an answer is 201 tokens, 100"),
        (counts(30, failed=30), "100.0% of requests fail"),
    ],
)
def test_a_worse_version_is_rolled_back_with_its_evidence(new: VersionCounts, reason: str) -> None:
    after = observe(at_first_step(), ROLLOUT, evidence(counts(1500, failed=100), new), 12.0)
    assert (after.phase, after.percent) == (ModelPhase.ROLLED_BACK, 0.0)
    assert reason in after.why
    assert after.share(ROLLOUT) is None


@pytest.mark.parametrize(
    "new",
    [
        counts(100, failed=11),
        counts(100, failed=13),
        counts(100, failed=0, first_byte_s=0.29, token_s=0.029, length=51),
        counts(99, first_byte_s=9.0, token_s=9.0, length=1),
        counts(11, failed=11),
    ],
)
def test_what_chance_or_the_limits_permit_is_no_regression(new: VersionCounts) -> None:
    state = at_first_step()
    assert observe(state, ROLLOUT, evidence(counts(1500, failed=100), new), 12.0) == state


def few_timed(ended: int, of_these: int, time_s: float, length: float) -> VersionCounts:
    """Requests of which few are streams, and of which the engine reports the lengths of few answers."""
    timed, spread = of_these, 1.01
    requests = RequestCounts(ended, 0, timed, timed * time_s, timed * time_s**2 * spread)
    tokens = timed * length
    return VersionCounts(
        requests, timed, timed * time_s / 9, timed, round(tokens), timed * (time_s / 9) ** 2 * spread, tokens * length
    )


def test_times_and_lengths_are_judged_however_few_of_the_requests_have_them() -> None:
    state, usual = at_first_step(), counts(500)
    usual += few_timed(1000, 50, 0.2, 100.0)
    slow = evidence(usual, few_timed(100, 20, 0.9, 100.0))
    after = observe(state, ROLLOUT, slow, 40.0)
    assert after.why == "mean time to first byte is 0.900 s, 0.200 s of the old version at the same time"
    only_long = observe(state, ROLLOUT, evidence(usual, few_timed(100, 20, 0.2, 900.0)), 40.0)
    assert only_long.why == "mean length of an answer is 900 tokens, 100 of the old version at the same time"
    one_slow = evidence(usual, few_timed(100, 1, 0.9, 100.0))
    assert observe(state, ROLLOUT, one_slow, 40.0) == state, "one stream decides nothing, and no step follows it"
    unmet = [each.text for each in conditions(state, ROLLOUT, one_slow, 40.0) if not each.is_met]
    assert unmet[0].startswith("mean time to first byte is 0.900 s")
    alike = observe(state, ROLLOUT, evidence(usual, few_timed(100, 20, 0.2, 100.0)), 40.0)
    assert alike.phase is ModelPhase.WATCH


def test_a_step_waits_for_requests_that_decide_whether_a_difference_is_chance() -> None:
    state, slightly_worse = at_first_step(), evidence(counts(1500, failed=100), counts(100, failed=13))
    assert observe(state, ROLLOUT, slightly_worse, 60.0) == state
    (unmet,) = (each.text for each in conditions(state, ROLLOUT, slightly_worse, 60.0) if not each.is_met)
    assert unmet.startswith("13.0% of requests fail, 10.0% of the old version at the same time: further requests")
    decided = observe(state, ROLLOUT, evidence(counts(1500, failed=100), counts(1100, failed=113)), 61.0)
    assert decided.percent == 100.0


def test_a_blue_green_change_is_judged_by_the_requests_before_it() -> None:
    rollout = replace(ROLLOUT, steps=(100.0,))
    state = observe(begun(rollout), rollout, evidence(counts(99), NONE), 20.0)
    assert state.phase is ModelPhase.PREPARING, "without a baseline, there is no judgement"
    state = observe(state, rollout, evidence(counts(400), NONE), 20.0)
    assert (state.phase, state.percent) == (ModelPhase.WATCH, 100.0)
    state = observe(state, rollout, evidence(counts(400), NONE), 21.0)
    slow = observe(state, rollout, evidence(counts(401), counts(200, first_byte_s=0.4)), 22.0)
    assert slow.phase is ModelPhase.ROLLED_BACK
    assert slow.why == "mean time to first byte is 0.400 s, 0.200 s of the old version before"
    few = observe(state, rollout, evidence(counts(401), counts(3, failed=3)), 60.0)
    assert few.phase is ModelPhase.WATCH, "three requests, all of which fail, settle nothing"
    (unmet,) = (
        each.text for each in conditions(few, rollout, evidence(counts(401), counts(3)), 60.0) if not each.is_met
    )
    assert unmet == "3 of 100 requests of the new version ended"
    done = observe(state, rollout, evidence(counts(401), counts(200)), 60.0)
    assert done.phase is ModelPhase.DONE
    assert transition(done, ModelEvent.ROLL_BACK, rollout, 99.0, why="wrong", by="me").percent == 0.0


def test_a_step_that_the_policy_adds_later_is_taken_from_the_last_share() -> None:
    half, whole = replace(ROLLOUT, steps=(10.0,)), ROLLOUT
    done = transition(
        transition(begun(half), ModelEvent.PROMOTE, half, 1.0, why=""), ModelEvent.SETTLED, half, 2.0, why=""
    )
    assert (done.phase, done.percent) == (ModelPhase.DONE, 10.0)
    assert observe(done, half, evidence(counts(500), counts(50)), 3.0) == done
    extended = observe(done, whole, evidence(counts(500), counts(50)), 4.0)
    assert (extended.phase, extended.percent, extended.since) == (ModelPhase.PREPARING, 10.0, 4.0)
    state = observe(extended, whole, evidence(counts(500), counts(50)), 5.0)
    state = observe(state, whole, evidence(counts(900), counts(90)), 15.0)
    assert (state.phase, state.percent) == (ModelPhase.WATCH, 100.0)


def test_copies_judge_a_version_before_its_first_step() -> None:
    rollout = replace(ROLLOUT, shadow=ShadowRequests(percent=5.0, min_requests=20))
    state = begun(rollout)
    share = state.share(rollout)
    assert share is not None
    assert (share.percent, share.shadow_percent) == (0.0, 5.0)
    assert observe(state, rollout, evidence(counts(500), counts(19)), 20.0) == state
    bad = observe(state, rollout, evidence(counts(500), counts(20, failed=5)), 5.0)
    assert bad.phase is ModelPhase.ROLLED_BACK
    good = observe(state, rollout, evidence(counts(500), counts(20)), 20.0)
    share = good.share(rollout)
    assert share is not None
    assert (share.percent, share.shadow_percent) == (10.0, 0.0)


def test_a_held_rollout_keeps_its_share_and_is_still_judged() -> None:
    held = transition(at_first_step(), ModelEvent.HALT, ROLLOUT, 12.0, why="wait", by="me")
    held = observe(held, ROLLOUT, evidence(counts(500), NONE), 13.0)
    assert observe(held, ROLLOUT, evidence(counts(9500), counts(900)), 9999.0) == held
    assert held.percent == 10.0
    assert observe(held, ROLLOUT, evidence(counts(9500), counts(900, failed=400)), 20.0).percent == 0.0
    resumed = transition(held, ModelEvent.RESUME, ROLLOUT, 30.0, why="go on", by="me")
    assert (resumed.phase, resumed.percent) == (ModelPhase.PREPARING, 10.0)


def test_counters_of_a_restarted_agent_count_from_zero() -> None:
    state = at_first_step()
    state = observe(state, ROLLOUT, evidence(counts(500), counts(90)), 12.0)
    restarted = VersionEvidence({"eu-de/one": VersionMark(2, counts(300), counts(100))}, 2, 100, 20)
    assert conditions(state, ROLLOUT, restarted, 99.0)[1].text == "100 of 100 requests of the new version ended"


def test_counters_that_an_agent_began_again_count_from_zero() -> None:
    marked = observe(begin(ROLLOUT, "v1", 0.0, 0.0), ROLLOUT, evidence(counts(9000), counts(9000)), 0.0)
    # The agent had a policy without the rollout in between.
    assert compared(marked, evidence(counts(150), counts(120, 60))).new.requests.ended == 120


def test_without_reports_nothing_changes() -> None:
    state = at_first_step()
    assert observe(state, ROLLOUT, VersionEvidence({}, 0, 0, 0), 1e6) == state


def test_each_phase_can_be_rolled_back_and_only_operators_and_policies_leave_the_last_ones() -> None:
    for phase in ModelPhase:
        assert phase is ModelPhase.ROLLED_BACK or (phase, ModelEvent.ROLL_BACK) in TRANSITIONS
    leaving = {event for (phase, event) in TRANSITIONS if phase in FINAL_PHASES}
    assert leaving == {ModelEvent.ROLL_BACK, ModelEvent.RESUME, ModelEvent.EXTENDED}
    assert (ModelPhase.ROLLED_BACK, ModelEvent.EXTENDED) not in TRANSITIONS


QUALITY = QualityHook("https://scorer.internal:8443/pairs", "eu-de", min_pairs=50, max_decrease=0.1)
SCORED = replace(ROLLOUT, shadow=ShadowRequests(min_requests=0, quality=QUALITY))


def scores(scored: int, mean: float, unscored: int = 0) -> VersionCounts:
    """Counts of a version of which part of the pairs have a score of -1 or 1, and the others 0."""
    return replace(counts(60), scored=scored, score=mean * scored, score2=abs(mean) * scored, unscored=unscored)


def test_a_version_whose_answers_are_worse_is_rolled_back_with_the_score() -> None:
    state = begun(SCORED)
    after = observe(state, SCORED, evidence(counts(500), scores(50, -0.7)), 2.0)
    assert after.phase is ModelPhase.ROLLED_BACK
    assert after.why == "mean score of 50 pairs of answers is -0.700, the least permitted is -0.1"


@pytest.mark.parametrize("new", [scores(50, -0.1), scores(50, -0.2), scores(50, 0.9), scores(49, -1.0)])
def test_scores_that_limits_or_chance_explain_roll_nothing_back(new: VersionCounts) -> None:
    assert observe(begun(SCORED), SCORED, evidence(counts(500), new), 2.0).phase is ModelPhase.PREPARING


def test_a_quality_hook_that_fails_delays_the_first_step_and_is_seen() -> None:
    state, down = begun(SCORED), evidence(counts(500), scores(3, 0.0, unscored=70))
    assert observe(state, SCORED, down, 600.0) == state
    (unmet,) = (each.text for each in conditions(state, SCORED, down, 600.0) if not each.is_met)
    assert unmet == "3 of 50 pairs of answers scored; the quality hook failed for 70 others"
    good = evidence(counts(500), scores(50, 0.0))
    assert observe(state, SCORED, good, 600.0).phase is ModelPhase.STEP


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "0.0.0.0"])
def test_a_quality_hook_at_a_reserved_address_is_refused(host: str) -> None:
    assert replace(QUALITY, url=f"https://{host}:443/").conflict() is not None
    assert QUALITY.conflict() is None
