"""For any order of actions of agents, operators and the source, one of two policies is in force, with a way back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.policy.kinds.operations import RolloutRules
from penstock.rollout.canary_analysis import AgentObservation, Evidence, observe
from penstock.rollout.policy_rollout import (
    TRANSITIONS,
    OfferedPolicy,
    Phase,
    Rollout,
    RolloutEvent,
    begin,
    first_rollout,
    on_source_policy,
    restore,
    transition,
)

REGIONS = ("a", "b", "c")
POLICIES = ("one", "two", "three", "four")
ORDERS = (RolloutEvent.HALT, RolloutEvent.RESUME, RolloutEvent.PROMOTE, RolloutEvent.ROLL_BACK)

seconds = st.sampled_from([0.0, 1.0, 5.0, 60.0])
rules = st.builds(
    RolloutRules,
    shadow_s=seconds,
    max_moved_share=st.sampled_from([0.0, 0.5, 1.0]),
    canary_s=seconds,
    acknowledge_timeout_s=st.sampled_from([1.0, 10.0]),
    min_requests=st.sampled_from([0, 10]),
    max_failure_increase=st.sampled_from([0.0, 0.5]),
    max_latency_factor=st.sampled_from([1.0, 2.0]),
    watch_s=seconds,
)
counters = st.integers(0, 100).flatmap(
    lambda ended: st.builds(
        RequestCounts, st.just(ended), st.integers(0, ended), st.integers(0, ended), st.sampled_from([0.0, 1.0, 50.0])
    )
)
agents = st.dictionaries(
    st.sampled_from([f"{region}/{number}" for region in REGIONS for number in (1, 2)]),
    st.tuples(st.integers(1, 2), st.sampled_from(["", *POLICIES]), st.sampled_from(["", *POLICIES]), counters),
)
evidence = st.builds(
    lambda said, moved: Evidence(
        {
            name: AgentObservation(name[0], epoch, runs, refuses, "no", reported)
            for name, (epoch, runs, refuses, reported) in said.items()
        },
        moved,
    ),
    agents,
    st.none() | st.sampled_from([0.0, 0.3, 1.0]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("sees"), evidence),
        st.tuples(st.just("offers"), st.sampled_from(POLICIES)),
        st.tuples(st.just("orders"), st.sampled_from(ORDERS)),
        st.tuples(st.just("restores"), st.sampled_from(POLICIES)),
    ),
    max_size=20,
)


def holds(rollout: Rollout) -> None:
    applied = {region: rollout.digest_for(region) for region in REGIONS}
    assert set(applied.values()) <= {rollout.stable, rollout.candidate}
    if rollout.phase in (Phase.CANARY, Phase.CANARY_HELD):
        assert {region for region, digest in applied.items() if digest == rollout.candidate} <= set(rollout.canary)
    elif rollout.phase is not Phase.WATCH:
        assert set(applied.values()) == {rollout.stable}
    if not rollout.is_over:
        assert transition(rollout, RolloutEvent.ROLL_BACK, 0.0, why="").digest_for("a") == rollout.stable


@given(rules, steps, st.sets(st.sampled_from(REGIONS)), st.lists(seconds, min_size=20, max_size=20))
def test_there_is_one_stable_policy_and_rollback_is_always_possible(
    by: RolloutRules, story: list[tuple[str, object]], canary: set[str], waits_s: list[float]
) -> None:
    rollout, now = first_rollout("one", None, 0.0), 0.0
    for (what, value), wait_s in zip(story, waits_s, strict=False):
        now += wait_s
        before = rollout
        if what == "sees":
            assert isinstance(value, Evidence)
            rollout = observe(rollout, by, value, now)
            assert observe(rollout, by, value, now) == rollout, "looking twice sees no more"
        elif what == "offers":
            assert isinstance(value, str)
            rollout, may_begin = on_source_policy(rollout, value, now)
            if may_begin:
                assert rollout.is_over
                assert value not in (rollout.stable, rollout.ignored)
                assert value not in rollout.dismissed
                rollout = begin(rollout, OfferedPolicy(value), tuple(sorted(canary)), now)
        elif what == "orders":
            assert isinstance(value, RolloutEvent)
            if (rollout.phase, value) in TRANSITIONS:
                rollout = transition(rollout, value, now, why="so", by="ann")
        elif rollout.is_over:
            assert isinstance(value, str)
            rollout = restore(rollout, OfferedPolicy(value, None, "ann", "so", "four"), now)
        holds(rollout)
        if rollout.phase is Phase.ROLLED_BACK and before.phase is not Phase.ROLLED_BACK:
            assert rollout.stable == before.stable
        if rollout.phase is Phase.DONE and before.number == rollout.number and not before.is_over:
            assert rollout.stable == before.candidate
