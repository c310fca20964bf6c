"""Health and trust are never stuck, and ejection never takes more of a pool than its cap."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.health.endpoint_health import RISE_AFTER, EndpointHealth, EndpointState, ProbeOutcome, broke, probed
from penstock.health.outlier_ejection import EjectionRules, Outcome, Standing, Trust, at, ended, room_to_eject, taken

RULES = EjectionRules()
MAX_RISE = max(RISE_AFTER.values())

outcomes = st.sampled_from(Outcome)
steps = st.lists(st.tuples(st.floats(0.0, 40.0), st.booleans(), outcomes, st.floats(0.0, 60.0)), max_size=60)


def lived(standing: Standing, now: float, passes_s: float, takes: bool, outcome: Outcome, lasted_s: float) -> Standing:
    standing = at(standing, now + passes_s)
    if takes:
        standing = taken(standing)
    return ended(standing, outcome, now + passes_s - lasted_s, now + passes_s, RULES, Random(1))


@given(st.lists(st.sampled_from([*ProbeOutcome, None]), max_size=60))
def test_from_any_history_enough_good_probes_make_an_endpoint_ready(history: list[ProbeOutcome | None]) -> None:
    health = EndpointHealth()
    for outcome in history:
        health = broke(health) if outcome is None else probed(health, outcome)
    for _ in range(MAX_RISE):
        health = probed(health, ProbeOutcome.GOOD)
    assert health.state is EndpointState.READY


@given(steps)
def test_from_any_history_time_and_one_served_trial_restore_trust(
    history: list[tuple[float, bool, Outcome, float]],
) -> None:
    standing, now = Standing(), 0.0
    for passes_s, takes, outcome, lasted_s in history:
        standing = lived(standing, now, passes_s, takes, outcome, lasted_s)
        now += passes_s
    if standing.trust is Trust.TRYING:
        standing = ended(standing, Outcome.INCONCLUSIVE, now, now, RULES, Random(1))
    now += RULES.max_s
    standing = at(standing, now)
    assert standing.open
    assert ended(taken(standing), Outcome.SERVED, now, now + 1.0, RULES, Random(1)).trust is Trust.TRUSTED


@given(steps)
def test_no_ejection_outlasts_its_longest(history: list[tuple[float, bool, Outcome, float]]) -> None:
    standing, now = Standing(), 0.0
    for passes_s, takes, outcome, lasted_s in history:
        standing = lived(standing, now, passes_s, takes, outcome, lasted_s)
        now += passes_s
        assert standing.until <= now + RULES.max_s
        assert 0.0 <= standing.failing <= 1.0


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 11), outcomes, st.floats(0.0, 20.0)), max_size=150),
    st.floats(0.0, 1.0),
)
def test_never_more_of_a_pool_is_out_than_the_cap(
    members: int, history: list[tuple[int, Outcome, float]], share: float
) -> None:
    rules = EjectionRules(max_ejected_share=share)
    pool, now = [Standing() for _ in range(members)], 0.0
    for which, outcome, passes_s in history:
        now += passes_s
        pool = [at(one, now) for one in pool]
        index = which % members
        one = taken(pool[index]) if pool[index].open else pool[index]
        may_eject = room_to_eject(sum(each.out for each in pool), members, rules)
        pool[index] = ended(one, outcome, now, now, rules, Random(1), may_eject=may_eject)
        assert sum(each.out for each in pool) <= members * share
