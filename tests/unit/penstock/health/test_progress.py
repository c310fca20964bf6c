"""Which endpoints are suspect, by the progress of their requests."""

from math import inf
from random import Random

from penstock.health.outlier_ejection import (
    AttemptOutcome,
    Ejection,
    EjectionRules,
    EjectionState,
    at_time,
    made_no_progress,
    made_progress,
    request_ended,
    request_sent,
)
from penstock.health.progress import (
    DUE_FACTOR,
    IDLE_READINGS,
    ProgressSample,
    ProgressTracker,
    StallReason,
    stall_of,
)

AFTER_S = 10.0
IDLE_SIBLING = ProgressSample()


def overdue(since: float, **more: float) -> ProgressSample:
    return ProgressSample(waiting_since=since, overdue_since=since, **more)


def test_silence_of_an_overdue_request_makes_an_endpoint_suspect() -> None:
    sample = overdue(0.0, progressed_at=1.0)
    assert stall_of(sample, [IDLE_SIBLING], 10.9, AFTER_S) is None
    stall = stall_of(sample, [IDLE_SIBLING], 11.0, AFTER_S)
    assert stall is not None
    assert stall.reason is StallReason.SILENT
    assert "10.0 s" in stall.detail


def test_any_byte_from_the_endpoint_is_progress() -> None:
    assert stall_of(overdue(0.0, progressed_at=95.0), [IDLE_SIBLING], 100.0, AFTER_S) is None


def test_a_long_prefill_is_not_overdue() -> None:
    tracker = ProgressTracker()
    tracker.waits(0.0, 20.0, 20.0 * DUE_FACTOR - 1.0)
    assert tracker.take_sample() == ProgressSample(waiting_since=0.0)
    tracker.waits(0.0, 20.0, 20.0 * DUE_FACTOR)
    assert tracker.take_sample() == ProgressSample(waiting_since=0.0, overdue_since=0.0)
    assert tracker.take_sample() == ProgressSample()


def test_an_endpoint_is_not_blamed_for_what_its_siblings_suffer_too() -> None:
    sample = overdue(0.0)
    silent = ProgressSample(waiting_since=2.0)
    assert stall_of(sample, [silent], 20.0, AFTER_S) is None
    assert stall_of(sample, [], 20.0, AFTER_S) is None
    assert stall_of(sample, [silent, ProgressSample(19.0, 2.0)], 20.0, AFTER_S) is not None


def read(tracker: ProgressTracker, *readings: tuple[float, float]) -> None:
    for at, requests in readings:
        tracker.read_load(requests, at)


def test_an_engine_that_runs_nothing_of_what_waits_for_it_is_suspect_at_once() -> None:
    tracker = ProgressTracker()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    tracker.waits(4.0, 0.1, 8.0)
    stall = stall_of(tracker.take_sample(), [IDLE_SIBLING], 8.0, AFTER_S)
    assert stall is not None
    assert stall.reason is StallReason.IDLE
    assert stall.may_resend(repeatable=False)


def test_readings_from_before_the_request_prove_nothing() -> None:
    tracker = ProgressTracker()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    tracker.waits(5.5, 0.1, 8.0)
    assert stall_of(tracker.take_sample(), [IDLE_SIBLING], 8.0, AFTER_S) is None


def test_a_gauge_that_is_always_zero_proves_nothing() -> None:
    tracker = ProgressTracker()
    read(tracker, *((5.0 + n, 0.0) for n in range(20)))
    tracker.waits(4.0, 0.1, 30.0)
    assert tracker.take_sample().idle_since == inf


def test_a_request_that_may_have_started_is_sent_again_only_if_its_route_permits() -> None:
    stall = stall_of(overdue(0.0), [IDLE_SIBLING], AFTER_S, AFTER_S)
    assert stall is not None
    assert stall.may_resend(repeatable=True)
    assert not stall.may_resend(repeatable=False)


def test_zero_disables() -> None:
    assert stall_of(overdue(0.0), [IDLE_SIBLING], 1e9, 0.0) is None


RULES = EjectionRules(base_s=10.0, max_s=35.0)


def suspect(now: float, ejection: Ejection | None = None) -> Ejection:
    return made_no_progress(ejection or Ejection(), now, RULES, Random(1))


def test_a_suspect_endpoint_returns_by_time_and_one_served_trial() -> None:
    ejection = suspect(100.0)
    assert (ejection.state, ejection.accepts_requests) == (EjectionState.SUSPECT, False)
    old = request_ended(ejection, AttemptOutcome.STALLED, 90.0, 101.0, RULES, Random(1))
    assert old == ejection, "sent before"
    trial = request_sent(at_time(ejection, 110.0))
    assert trial.state is EjectionState.TRIAL_RUNNING
    assert request_ended(trial, AttemptOutcome.SERVED, 110.0, 111.0, RULES, Random(1)).state is EjectionState.NONE


def test_progress_of_an_older_request_gives_the_trial_at_once() -> None:
    ejection = suspect(100.0)
    assert made_progress(ejection, 99.0).state is EjectionState.SUSPECT
    assert made_progress(ejection, 101.0).state is EjectionState.TRIAL


def test_a_trial_without_progress_makes_the_next_one_later() -> None:
    first = suspect(0.0)
    trial = request_sent(at_time(first, first.until))
    assert trial.can_become_suspect
    second = suspect(50.0, trial)
    assert second.state is EjectionState.SUSPECT
    assert second.until - second.since > first.until - first.since
