"""Endpoints always recover from failed probes and ejection, and ejection never removes more of a pool than its cap."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.endpoint_health import (
    DEFAULT_THRESHOLDS,
    EndpointHealth,
    EndpointState,
    ProbeOutcome,
    connection_failed,
    probed,
)
from penstock.health.outlier_ejection import (
    AttemptOutcome,
    Ejection,
    EjectionRules,
    EjectionState,
    EndedAttempt,
    at_time,
    made_no_progress,
    made_progress,
    request_ended,
    request_sent,
    room_to_eject,
)

RULES = EjectionRules()

outcomes = st.sampled_from(AttemptOutcome)
sends = st.sampled_from(["nothing", "request", "request that makes no progress", "progress"])
steps = st.lists(st.tuples(st.floats(0.0, 40.0), sends, outcomes, st.floats(0.0, 60.0)), max_size=60)


def lived(
    ejection: Ejection, now: float, passes_s: float, sends: str, outcome: AttemptOutcome, lasted_s: float
) -> Ejection:
    ejection = at_time(ejection, now + passes_s)
    if "request" in sends:
        ejection = request_sent(ejection)
    if "no progress" in sends and ejection.can_become_suspect:
        ejection = made_no_progress(ejection, now + passes_s, RULES, Random(1))
        assert not ejection.accepts_requests
    if sends == "progress":
        ejection = made_progress(ejection, now + passes_s)
    return request_ended(ejection, EndedAttempt(outcome, now + passes_s - lasted_s), now + passes_s, RULES, Random(1))


@given(st.lists(st.sampled_from([*ProbeOutcome, None]), max_size=60))
def test_from_any_history_enough_good_probes_make_an_endpoint_ready(history: list[ProbeOutcome | None]) -> None:
    health = EndpointHealth()
    for outcome in history:
        health = connection_failed(health) if outcome is None else probed(health, outcome)
    for _ in range(DEFAULT_THRESHOLDS.healthy):
        health = probed(health, ProbeOutcome.GOOD)
    assert health.state is EndpointState.READY


@given(steps)
def test_from_any_history_time_and_one_served_trial_end_an_ejection(
    history: list[tuple[float, str, AttemptOutcome, float]],
) -> None:
    ejection, now = Ejection(), 0.0
    for passes_s, sends, outcome, lasted_s in history:
        ejection = lived(ejection, now, passes_s, sends, outcome, lasted_s)
        now += passes_s
    if ejection.state is EjectionState.TRIAL_RUNNING:
        ejection = request_ended(ejection, EndedAttempt(AttemptOutcome.INCONCLUSIVE, now), now, RULES, Random(1))
    now += RULES.max_s
    ejection = at_time(ejection, now)
    assert ejection.accepts_requests
    assert (
        request_ended(
            request_sent(ejection), EndedAttempt(AttemptOutcome.SERVED, now), now + 1.0, RULES, Random(1)
        ).state
        is EjectionState.NONE
    )


@given(steps)
def test_no_ejection_exceeds_the_maximum_duration(history: list[tuple[float, str, AttemptOutcome, float]]) -> None:
    ejection, now = Ejection(), 0.0
    for passes_s, sends, outcome, lasted_s in history:
        ejection = lived(ejection, now, passes_s, sends, outcome, lasted_s)
        now += passes_s
        assert ejection.until <= now + RULES.max_s
        assert 0.0 <= ejection.failing <= 1.0


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 11), st.one_of(outcomes, st.none()), st.floats(0.0, 20.0)), max_size=150),
    st.floats(0.0, 1.0),
)
def test_never_more_of_a_pool_is_ejected_than_the_cap(
    members: int, history: list[tuple[int, AttemptOutcome | None, float]], share: float
) -> None:
    rules = EjectionRules(max_ejected_share=share)
    pool, now = [Ejection() for _ in range(members)], 0.0
    for which, outcome, passes_s in history:
        now += passes_s
        pool = [at_time(ejection, now) for ejection in pool]
        index = which % members
        ejection = request_sent(pool[index]) if pool[index].accepts_requests else pool[index]
        may_eject = room_to_eject(sum(member.is_ejected for member in pool), members, rules)
        if outcome is not None:
            pool[index] = request_ended(
                ejection, EndedAttempt(outcome, now), now, rules, Random(1), may_eject=may_eject
            )
        elif may_eject and ejection.can_become_suspect:
            pool[index] = made_no_progress(ejection, now, rules, Random(1))
        assert sum(member.is_ejected for member in pool) <= members * share
