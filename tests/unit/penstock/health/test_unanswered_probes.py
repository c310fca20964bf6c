"""Whether requests explain that an endpoint answers no probe."""

import pytest

from penstock.health.unanswered_probes import Occupation

PROGRESS_S = 10.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

BUSY_S = 120.0
NEVER = float("-inf")


def explains(occupation: Occupation, now: float, in_flight: int = 1, **more: float) -> bool:
    progressed_at, longest_s = more.get("progressed_at", NEVER), more.get("longest_s", 0.0)
    busy_s, refused = more.get("busy_s", BUSY_S), bool(more.get("refused", False))
    return occupation.explains_silence(in_flight, progressed_at, busy_s, longest_s, now, refused=refused)


def running_since(at: float) -> Occupation:
    occupation = Occupation()
    occupation.answered(at - 1.0, busy=False, while_running=False)
    occupation.tick(1, at)
    return occupation


def test_an_idle_endpoint_has_no_excuse() -> None:
    occupation = Occupation()
    occupation.tick(0, 0.0)
    assert not explains(occupation, 1.0, in_flight=0)


def test_a_request_explains_silence_for_a_bounded_time() -> None:
    for refused in (0.0, 1.0):
        occupation = running_since(0.0)
        assert explains(occupation, 60.0, refused=refused)
        assert explains(occupation, BUSY_S - 0.1, refused=refused)
        assert not explains(occupation, BUSY_S, refused=refused)


def test_longer_responses_explain_longer_silence() -> None:
    occupation = running_since(0.0)
    assert explains(occupation, 1199.0, longest_s=600.0)
    assert not explains(occupation, 1200.0, longest_s=600.0)


def test_each_answer_and_each_byte_begins_the_time_anew() -> None:
    occupation = running_since(0.0)
    occupation.tick(1, 100.0)
    occupation.answered(100.0, busy=True, while_running=False)
    assert explains(occupation, 219.0)
    assert explains(occupation, 269.0, progressed_at=150.0)
    assert not explains(occupation, 270.0, progressed_at=150.0)


def test_a_server_that_answers_probes_during_requests_has_that_excuse_no_longer() -> None:
    occupation = running_since(0.0)
    for _ in range(6):
        occupation.answered(1.0, busy=False, while_running=True)
    assert explains(occupation, 5.0)
    occupation.answered(1.0, busy=False, while_running=True)
    assert not explains(occupation, 5.0)
    assert explains(occupation, 5.0, progressed_at=1.0), "its streams go on"
    assert explains(occupation, 0.9 + PROGRESS_S, progressed_at=1.0)
    assert not explains(occupation, 5.0, progressed_at=1.0, refused=1.0), "it would accept connections"
    assert not explains(occupation, 1.0 + PROGRESS_S, progressed_at=1.0)
    occupation.not_answered(explained=False)
    assert occupation.answers == pytest.approx(1.0 - 0.9**7)
    for missed in range(1, 4):
        occupation.not_answered(explained=True)
        assert occupation.answers == pytest.approx((1.0 - 0.9**7) * 0.9**missed)
    assert explains(occupation, 5.0)


def test_engines_that_answer_while_they_run_are_known() -> None:
    assert not explains(running_since(0.0), 1.0, busy_s=0.0)
    assert explains(running_since(0.0), 1.0, busy_s=0.0, progressed_at=0.5)


def test_a_request_that_was_given_up_may_still_run() -> None:
    occupation = running_since(0.0)
    occupation.abandoned(10.0)
    occupation.tick(0, 10.2)
    assert explains(occupation, 60.0, in_flight=0)
    assert not explains(occupation, 10.0 + BUSY_S, in_flight=0)
    assert not explains(occupation, 60.0, in_flight=0, refused=1.0), "its process may have ended"
    occupation.answered(61.0, busy=False, while_running=False)
    assert not explains(occupation, 62.0, in_flight=0)


def test_a_server_that_answers_that_it_is_busy_runs_one_request_at_a_time() -> None:
    occupation = running_since(0.0)
    for second in range(1, 100):
        occupation.answered(float(second), busy=True, while_running=True)
    assert occupation.is_serial(BUSY_S)
    assert explains(occupation, 100.0)
