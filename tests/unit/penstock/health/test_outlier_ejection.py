from random import Random

import pytest

from penstock.health.outlier_ejection import (
    AttemptOutcome,
    Ejection,
    EjectionRules,
    EjectionState,
    EndedAttempt,
    at_time,
    outcome_of,
    panicking,
    request_ended,
    request_sent,
    room_to_eject,
)

MEMORY_OUTCOMES = 20
"""As documented, and not imported: a test fails if a tuned constant changes."""

RULES = EjectionRules(consecutive_failures=3, base_s=10.0, max_s=35.0, forgive_s=60.0)
FAILURES = (
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.GATEWAY_ERROR,
    AttemptOutcome.SERVER_ERROR,
    AttemptOutcome.BROKEN_OFF,
    AttemptOutcome.STALLED,
)


def after(ejection: Ejection, *outcomes: AttemptOutcome, now: float = 0.0, may_eject: bool = True) -> Ejection:
    for outcome in outcomes:
        ejection = request_ended(ejection, EndedAttempt(outcome, now), now, RULES, Random(1), may_eject=may_eject)
    return ejection


def ejected(now: float = 0.0, ejection: Ejection | None = None) -> Ejection:
    return after(ejection or Ejection(), *[AttemptOutcome.GATEWAY_ERROR] * 3, now=now)


@pytest.mark.parametrize("outcome", FAILURES)
def test_each_kind_of_failure_ejects_when_it_comes_often_enough_in_a_row(outcome: AttemptOutcome) -> None:
    ejection = after(Ejection(), outcome, outcome)
    assert ejection.accepts_requests
    assert not after(ejection, outcome).accepts_requests
    assert after(ejection, AttemptOutcome.SERVED, outcome, outcome).accepts_requests


def test_what_is_inconclusive_neither_counts_nor_interrupts() -> None:
    assert after(Ejection(), *[AttemptOutcome.INCONCLUSIVE] * 100) == Ejection()
    assert not after(Ejection(), *[AttemptOutcome.STALLED, AttemptOutcome.INCONCLUSIVE] * 3).accepts_requests


def test_a_failing_share_ejects_even_with_successes_in_between() -> None:
    half = [AttemptOutcome.SERVED, AttemptOutcome.SERVER_ERROR]
    few = after(Ejection(), *half * (MEMORY_OUTCOMES // 2 - 1))
    assert few.accepts_requests
    assert not after(few, *half).accepts_requests
    assert after(Ejection(), *[*[AttemptOutcome.SERVED] * 9, AttemptOutcome.SERVER_ERROR] * 20).accepts_requests


def test_a_failure_long_ago_is_forgotten_and_no_state_changes_any_more() -> None:
    failed = after(Ejection(), AttemptOutcome.SERVER_ERROR)
    forgotten = after(failed, *[AttemptOutcome.SERVED] * 200)
    assert (forgotten.failing, forgotten.accepts_requests) == (0.0, True)
    assert after(forgotten, AttemptOutcome.SERVED) == forgotten


def test_time_served_leads_to_one_trial_and_its_outcome_decides() -> None:
    ejection = ejected()
    assert at_time(ejection, 7.9).state is EjectionState.EJECTED
    trial = at_time(ejection, 10.0)
    assert (trial.state, trial.accepts_requests, trial.is_ejected) == (EjectionState.TRIAL, True, True)
    trial_running = request_sent(trial)
    assert (trial_running.state, trial_running.accepts_requests) == (EjectionState.TRIAL_RUNNING, False)
    assert after(trial_running, AttemptOutcome.INCONCLUSIVE, now=11.0).state is EjectionState.TRIAL
    assert after(trial_running, AttemptOutcome.SERVED, now=11.0).state is EjectionState.NONE
    again = after(trial_running, AttemptOutcome.BROKEN_OFF, now=11.0)
    assert again.state is EjectionState.EJECTED
    assert 11.0 + 16.0 <= again.until <= 11.0 + 20.0


def test_requests_from_before_the_ejection_do_not_count_after_it() -> None:
    ejection = ejected(now=5.0)
    for outcome in AttemptOutcome:
        assert request_ended(ejection, EndedAttempt(outcome, 4.9), 6.0, RULES, Random(1)) is ejection
    trial_running = request_sent(at_time(ejection, 20.0))
    for outcome in AttemptOutcome:
        assert request_ended(trial_running, EndedAttempt(outcome, 4.9), 21.0, RULES, Random(1)) is trial_running


def test_ejections_in_a_row_grow_to_a_cap_and_are_forgiven_with_time() -> None:
    ejection, now, times_s = Ejection(), 0.0, []
    for _ in range(6):
        ejection = (
            ejected(now, ejection) if ejection.state is EjectionState.NONE else after(ejection, *FAILURES[:1], now=now)
        )
        times_s.append(ejection.until - now)
        now = ejection.until
        ejection = request_sent(at_time(ejection, now))
    caps = [10.0, 20.0, 30.0, 35.0, 35.0, 35.0]
    assert all(0.8 * cap <= time_s <= cap for time_s, cap in zip(times_s, caps, strict=True))
    trusted = after(ejection, AttemptOutcome.SERVED, now=now)
    assert ejected(now + 59.0, trusted).ejections == 4
    assert ejected(now + 121.0, trusted).ejections == 3
    assert ejected(now + 10_000.0, trusted).ejections == 1


def test_ejections_are_shortened_by_up_to_a_fifth_so_that_agents_do_not_try_at_once() -> None:
    failed = EndedAttempt(AttemptOutcome.GATEWAY_ERROR, 0.0)
    longest: list[float] = []
    for seed in range(200):
        ejection = Ejection()
        for _ in range(3):
            ejection = request_ended(ejection, failed, 0.0, RULES, Random(seed))
        longest.append(ejection.until)
    assert 8.0 <= min(longest) < 8.2
    assert 9.8 < max(longest) <= 10.0


def test_the_cap_leaves_an_outlier_in_until_there_is_room() -> None:
    held = after(Ejection(), *[AttemptOutcome.STALLED] * 50, may_eject=False)
    assert held.accepts_requests
    assert not after(held, AttemptOutcome.STALLED).accepts_requests


@pytest.mark.parametrize(("out", "members", "room"), [(0, 1, False), (0, 2, True), (1, 2, False), (1, 3, False)])
def test_half_of_a_pool_at_the_most_and_never_the_last(out: int, members: int, room: bool) -> None:
    assert room_to_eject(out, members, RULES) is room


def test_panic_is_when_too_few_are_left() -> None:
    assert panicking(0, 1, RULES)
    assert panicking(1, 4, RULES)
    assert not panicking(1, 2, RULES)
    assert not panicking(0, 0, RULES)


def test_in_panic_a_request_that_is_served_restores_trust_at_once() -> None:
    ejection = ejected()
    assert after(request_sent(ejection), AttemptOutcome.SERVED, now=1.0).state is EjectionState.NONE
    assert after(ejection, AttemptOutcome.STALLED, now=1.0).until == ejection.until


@pytest.mark.parametrize(
    ("status", "has_retry_after", "has_room", "outcome"),
    [
        (200, False, True, None),
        (302, False, True, None),
        (400, False, True, AttemptOutcome.INCONCLUSIVE),
        (404, False, True, AttemptOutcome.INCONCLUSIVE),
        (429, False, True, AttemptOutcome.INCONCLUSIVE),
        (499, False, True, AttemptOutcome.INCONCLUSIVE),
        (500, False, True, AttemptOutcome.SERVER_ERROR),
        (501, False, True, AttemptOutcome.INCONCLUSIVE),
        (502, True, False, AttemptOutcome.GATEWAY_ERROR),
        (503, False, True, AttemptOutcome.GATEWAY_ERROR),
        (503, True, True, AttemptOutcome.INCONCLUSIVE),
        (503, False, False, AttemptOutcome.INCONCLUSIVE),
        (504, False, True, AttemptOutcome.GATEWAY_ERROR),
    ],
)
def test_a_clients_fault_and_a_full_engine_are_not_failures(
    status: int, has_retry_after: bool, has_room: bool, outcome: AttemptOutcome | None
) -> None:
    assert outcome_of(status, has_retry_after=has_retry_after, has_room=has_room, rules=RULES) is outcome


def test_server_errors_may_be_left_to_clients() -> None:
    lenient = EjectionRules(server_errors_count=False)
    assert outcome_of(500, has_retry_after=False, has_room=True, rules=lenient) is AttemptOutcome.INCONCLUSIVE
    assert outcome_of(502, has_retry_after=False, has_room=True, rules=lenient) is AttemptOutcome.GATEWAY_ERROR
