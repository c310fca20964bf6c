from random import Random

import pytest

from penstock.health.outlier_ejection import (
    MEMORY_OUTCOMES,
    EjectionRules,
    Outcome,
    Standing,
    Trust,
    at,
    ended,
    outcome_of,
    panicking,
    room_to_eject,
    taken,
)

RULES = EjectionRules(consecutive_failures=3, base_s=10.0, max_s=35.0, forgive_s=60.0)
FAILURES = (
    Outcome.UNREACHABLE,
    Outcome.GATEWAY_ERROR,
    Outcome.SERVER_ERROR,
    Outcome.BROKEN_OFF,
    Outcome.STALLED,
)


def told(standing: Standing, *outcomes: Outcome, now: float = 0.0, may_eject: bool = True) -> Standing:
    for outcome in outcomes:
        standing = ended(standing, outcome, now, now, RULES, Random(1), may_eject=may_eject)
    return standing


def ejected(now: float = 0.0, standing: Standing | None = None) -> Standing:
    return told(standing or Standing(), *[Outcome.GATEWAY_ERROR] * 3, now=now)


@pytest.mark.parametrize("outcome", FAILURES)
def test_each_kind_of_failure_ejects_when_it_comes_often_enough_in_a_row(outcome: Outcome) -> None:
    standing = told(Standing(), outcome, outcome)
    assert standing.open
    assert not told(standing, outcome).open
    assert told(standing, Outcome.SERVED, outcome, outcome).open


def test_what_is_inconclusive_neither_counts_nor_interrupts() -> None:
    assert told(Standing(), *[Outcome.INCONCLUSIVE] * 100) == Standing()
    assert not told(Standing(), *[Outcome.STALLED, Outcome.INCONCLUSIVE] * 3).open


def test_a_failing_share_ejects_even_with_successes_in_between() -> None:
    half = [Outcome.SERVED, Outcome.SERVER_ERROR]
    few = told(Standing(), *half * (MEMORY_OUTCOMES // 2 - 1))
    assert few.open
    assert not told(few, *half).open
    assert told(Standing(), *[*[Outcome.SERVED] * 9, Outcome.SERVER_ERROR] * 20).open


def test_time_served_leads_to_one_trial_and_its_outcome_decides() -> None:
    standing = ejected()
    assert at(standing, 7.9).trust is Trust.EJECTED
    trial = at(standing, 10.0)
    assert (trial.trust, trial.open, trial.out) == (Trust.TRIAL, True, True)
    trying = taken(trial)
    assert (trying.trust, trying.open) == (Trust.TRYING, False)
    assert told(trying, Outcome.INCONCLUSIVE, now=11.0).trust is Trust.TRIAL
    assert told(trying, Outcome.SERVED, now=11.0).trust is Trust.TRUSTED
    again = told(trying, Outcome.BROKEN_OFF, now=11.0)
    assert again.trust is Trust.EJECTED
    assert 11.0 + 16.0 <= again.until <= 11.0 + 20.0


def test_requests_from_before_the_ejection_say_nothing_after_it() -> None:
    standing = ejected(now=5.0)
    for outcome in Outcome:
        assert ended(standing, outcome, 4.9, 6.0, RULES, Random(1)) is standing
    trying = taken(at(standing, 20.0))
    for outcome in Outcome:
        assert ended(trying, outcome, 4.9, 21.0, RULES, Random(1)) is trying


def test_ejections_in_a_row_grow_to_a_cap_and_are_forgiven_with_time() -> None:
    standing, now, times_s = Standing(), 0.0, []
    for _ in range(6):
        standing = ejected(now, standing) if standing.trust is Trust.TRUSTED else told(standing, *FAILURES[:1], now=now)
        times_s.append(standing.until - now)
        now = standing.until
        standing = taken(at(standing, now))
    caps = [10.0, 20.0, 30.0, 35.0, 35.0, 35.0]
    assert all(0.8 * cap <= time_s <= cap for time_s, cap in zip(times_s, caps, strict=True))
    trusted = told(standing, Outcome.SERVED, now=now)
    assert ejected(now + 59.0, trusted).ejections == 4
    assert ejected(now + 121.0, trusted).ejections == 3
    assert ejected(now + 10_000.0, trusted).ejections == 1


def test_the_cap_leaves_an_outlier_in_until_there_is_room() -> None:
    held = told(Standing(), *[Outcome.STALLED] * 50, may_eject=False)
    assert held.open
    assert not told(held, Outcome.STALLED).open


@pytest.mark.parametrize(("out", "members", "room"), [(0, 1, False), (0, 2, True), (1, 2, False), (1, 3, False)])
def test_half_of_a_pool_at_the_most_and_never_the_last(out: int, members: int, room: bool) -> None:
    assert room_to_eject(out, members, RULES) is room


def test_panic_is_when_too_few_are_left() -> None:
    assert panicking(0, 1, RULES)
    assert panicking(1, 4, RULES)
    assert not panicking(1, 2, RULES)
    assert not panicking(0, 0, RULES)


def test_in_panic_a_request_that_is_served_restores_trust_at_once() -> None:
    standing = ejected()
    assert told(taken(standing), Outcome.SERVED, now=1.0).trust is Trust.TRUSTED
    assert told(standing, Outcome.STALLED, now=1.0).until == standing.until


@pytest.mark.parametrize(
    ("status", "says_when", "has_room", "outcome"),
    [
        (200, False, True, None),
        (302, False, True, None),
        (400, False, True, Outcome.INCONCLUSIVE),
        (404, False, True, Outcome.INCONCLUSIVE),
        (429, False, True, Outcome.INCONCLUSIVE),
        (499, False, True, Outcome.INCONCLUSIVE),
        (500, False, True, Outcome.SERVER_ERROR),
        (502, True, False, Outcome.GATEWAY_ERROR),
        (503, False, True, Outcome.GATEWAY_ERROR),
        (503, True, True, Outcome.INCONCLUSIVE),
        (503, False, False, Outcome.INCONCLUSIVE),
        (504, False, True, Outcome.GATEWAY_ERROR),
    ],
)
def test_a_clients_fault_and_a_full_engine_are_not_failures(
    status: int, says_when: bool, has_room: bool, outcome: Outcome | None
) -> None:
    assert outcome_of(status, says_when=says_when, has_room=has_room, rules=RULES) is outcome


def test_server_errors_may_be_left_to_clients() -> None:
    lenient = EjectionRules(server_errors_count=False)
    assert outcome_of(500, says_when=False, has_room=True, rules=lenient) is Outcome.INCONCLUSIVE
    assert outcome_of(502, says_when=False, has_room=True, rules=lenient) is Outcome.GATEWAY_ERROR
