"""Which endpoints are suspect, by the progress of their requests."""

from math import inf
from random import Random

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
)
from penstock.health.progress import AwaitedResponse, ProgressSample, ProgressTracker, Stall, StallReason, stall_of

DUE_FACTOR, HISTORY_FACTOR, HISTORY_SHARE, IDLE_READINGS, MIN_RESPONSES, WINDOW_RESPONSES = 4.0, 2.0, 0.5, 3, 3, 32
LONG_ANSWER_S, UNLEARNED_S = 60.0, 120.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

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
    tracker.waits(AwaitedResponse(0.0, 20.0), 20.0 * DUE_FACTOR - 1.0)
    assert tracker.take_sample() == ProgressSample(waiting_since=0.0)
    tracker.waits(AwaitedResponse(0.0, 20.0), 20.0 * DUE_FACTOR)
    assert tracker.take_sample() == ProgressSample(waiting_since=0.0, overdue_since=0.0)
    assert tracker.take_sample() == ProgressSample()


def test_an_endpoint_is_not_blamed_for_what_its_siblings_suffer_too() -> None:
    sample = overdue(0.0)
    silent = ProgressSample(waiting_since=2.0)
    assert stall_of(sample, [silent], 20.0, AFTER_S) is None
    assert stall_of(sample, [], 20.0, AFTER_S) is None
    assert stall_of(sample, [silent, ProgressSample(19.0, 2.0)], 20.0, AFTER_S) is not None
    # A sibling that is silent for half of the time suffers too.
    assert stall_of(sample, [ProgressSample(15.1, 2.0)], 20.0, AFTER_S) is not None
    assert stall_of(sample, [ProgressSample(15.0, 2.0)], 20.0, AFTER_S) is None


def read(tracker: ProgressTracker, *readings: tuple[float, float]) -> None:
    for at, requests in readings:
        tracker.read_load(requests, at)


def test_an_engine_that_runs_nothing_of_what_waits_for_it_is_suspect_at_once() -> None:
    tracker = ProgressTracker()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    tracker.waits(AwaitedResponse(4.0, 0.1), 8.0)
    stall = stall_of(tracker.take_sample(), [IDLE_SIBLING], 8.0, AFTER_S)
    assert stall is not None
    assert stall.reason is StallReason.IDLE
    assert stall.detail == "3 readings show no request; one has waited for 4.0 s"
    assert stall.may_resend(repeatable=False)


def test_readings_from_before_the_request_prove_nothing() -> None:
    tracker = ProgressTracker()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    tracker.waits(AwaitedResponse(5.5, 0.1), 8.0)
    assert stall_of(tracker.take_sample(), [IDLE_SIBLING], 8.0, AFTER_S) is None


def test_a_gauge_that_is_always_zero_proves_nothing() -> None:
    tracker = ProgressTracker()
    read(tracker, *((5.0 + n, 0.0) for n in range(20)))
    tracker.waits(AwaitedResponse(4.0, 0.1), 30.0)
    assert tracker.take_sample().idle_since == inf


def test_a_request_that_may_have_started_is_sent_again_only_if_its_route_permits() -> None:
    stall = stall_of(overdue(0.0), [IDLE_SIBLING], AFTER_S, AFTER_S)
    assert stall is not None
    assert stall.may_resend(repeatable=True)
    assert not stall.may_resend(repeatable=False)


def test_zero_disables() -> None:
    assert stall_of(overdue(0.0), [IDLE_SIBLING], 1e9, 0.0) is None
    assert stall_of(overdue(0.0, idle_since=1.0, unusual_since=0.0), [IDLE_SIBLING], 1e9, 0.0) is None


def with_history(*waits_s: float, streaming: bool = True) -> ProgressTracker:
    tracker = ProgressTracker()
    for wait_s in waits_s:
        if streaming:
            tracker.began(wait_s)
        else:
            tracker.completed(wait_s, streaming=False)
    return tracker


def stall_at(tracker: ProgressTracker, now: float, expected_s: float = 0.1, *, streaming: bool = True) -> Stall | None:
    """The evidence about an endpoint without siblings, whose only request was sent at 0."""
    tracker.waits(AwaitedResponse(0.0, expected_s, streaming), now)
    return stall_of(tracker.take_sample(), [], now, AFTER_S)


def test_an_endpoint_without_siblings_is_judged_by_its_own_responses() -> None:
    tracker = with_history(0.2, 0.1, 0.3)
    least_s = AFTER_S * HISTORY_SHARE
    assert stall_at(tracker, least_s - 0.1) is None
    stall = stall_at(tracker, least_s)
    assert stall is not None
    assert (stall.reason, stall.is_certain) == (StallReason.UNUSUAL, True)
    assert stall.detail == f"nothing has arrived for {least_s} s, which recent responses do not explain"
    assert not stall.may_resend(repeatable=False)


def test_what_its_own_responses_explain_is_no_stall() -> None:
    tracker = with_history(60.0, 1.0, 2.0)
    assert stall_at(tracker, 60.0 * HISTORY_FACTOR - 0.1) is None
    assert stall_at(tracker, 60.0 * HISTORY_FACTOR) is not None
    assert stall_at(with_history(0.1, 0.1, 0.1), 79.0, expected_s=20.0) is None, "a request with much work"


def test_too_few_responses_are_no_history() -> None:
    assert stall_at(with_history(*[0.1] * (MIN_RESPONSES - 1)), 1000.0) is None


def test_whole_responses_are_compared_with_whole_responses() -> None:
    assert stall_at(with_history(0.1, 0.1, 0.1), 1000.0, streaming=False) is None
    assert stall_at(with_history(0.1, 0.1, 0.1, streaming=False), 6.0, streaming=False) is not None


def test_durations_of_the_other_kind_are_the_history_of_an_endpoint_without_one() -> None:
    tracker = with_history(0.1, 0.1, 0.1)
    for duration_s in (1.0, 60.0, 2.0):
        tracker.completed(duration_s, streaming=True)
    assert stall_at(tracker, 60.0 * HISTORY_FACTOR - 0.1, streaming=False) is None
    assert stall_at(tracker, 60.0 * HISTORY_FACTOR, streaming=False) is not None
    assert stall_at(with_history(60.0, 1.0, 1.0, streaming=False), 60.0 * HISTORY_FACTOR - 0.1) is None
    assert stall_at(with_history(60.0, 1.0, 1.0, streaming=False), 60.0 * HISTORY_FACTOR) is not None


def test_an_image_is_compared_with_images_and_not_with_chats() -> None:
    """A uvicorn server of images, new or after chats and embeddings: a job of a minute is no stall."""

    def stall(tracker: ProgressTracker, now: float, *siblings: ProgressSample) -> Stall | None:
        tracker.waits(AwaitedResponse(0.0, 5.0, False, longest_s=inf, is_text=False), now)
        return stall_of(tracker.take_sample(), siblings, now, AFTER_S)

    for history in (with_history(), with_history(0.1, 0.1, 0.1), with_history(0.1, 0.1, 0.1, streaming=False)):
        assert stall(history, UNLEARNED_S - 0.1, ProgressSample(UNLEARNED_S - 1.0)) is None
        assert stall(history, UNLEARNED_S, ProgressSample(UNLEARNED_S - 1.0)) is not None
    images = with_history(0.1, 0.1, 0.1, streaming=False)
    for duration_s in (50.0, 40.0, 60.0):
        images.completed(duration_s, streaming=False, is_text=False)
    assert stall(images, 60.0 * HISTORY_FACTOR - 0.1) is None
    assert stall(images, 60.0 * HISTORY_FACTOR) is not None
    assert images.longest_s == 60.0
    assert stall_at(images, 6.0, streaming=False) is not None, "a chat is compared with chats"


def test_a_larger_batch_of_embeddings_may_take_as_many_times_longer() -> None:
    tracker = ProgressTracker()
    for _ in range(MIN_RESPONSES):
        tracker.completed(0.5, streaming=False, prefill_s=0.01)

    def stall(now: float) -> Stall | None:
        tracker.waits(AwaitedResponse(0.0, 0.1, False, 0.2), now)
        return stall_of(tracker.take_sample(), [], now, AFTER_S)

    assert stall(0.5 * 20 * HISTORY_FACTOR - 0.1) is None
    assert stall(0.5 * 20 * HISTORY_FACTOR) is not None


def of_long_answers(
    now: float, *since: float, longest_s: float = inf, siblings: tuple[ProgressSample, ...] = (), elsewhere: bool = True
) -> Stall | None:
    """The evidence at `now` (s) from whole answers without a limit that were sent at these times, after short ones."""
    tracker = with_history(0.1, 0.1, 0.1, streaming=False)
    for at in since:
        tracker.waits(AwaitedResponse(at, 0.1, False, longest_s=longest_s), now)
    return stall_of(tracker.take_sample(), siblings, now, AFTER_S, serves_elsewhere=elsewhere)


def test_one_long_answer_is_no_stall_and_several_at_once_are() -> None:
    assert of_long_answers(LONG_ANSWER_S - 0.1, 0.0) is None
    assert of_long_answers(LONG_ANSWER_S, 0.0) is not None
    assert of_long_answers(20.0, 0.0, 14.0) is not None
    assert of_long_answers(20.0, 0.0, 19.7) is None, "the second one is not overdue"
    assert of_long_answers(20.0, 0.0, longest_s=19.0) is not None, "its limit permits no such length"


def test_long_answers_are_no_stall_if_nothing_could_give_them_sooner() -> None:
    progresses, silent = ProgressSample(19.0, 2.0), ProgressSample(0.0, 2.0)
    assert of_long_answers(20.0, 0.0, 14.0, siblings=(silent, progresses)) is not None
    assert of_long_answers(20.0, 0.0, 14.0, siblings=(silent, silent)) is None, "they have long answers, too"
    assert of_long_answers(20.0, 0.0, 14.0, siblings=(IDLE_SIBLING,)) is None, "an idle one shows nothing"
    assert of_long_answers(20.0, 0.0, 14.0, elsewhere=False) is None
    assert of_long_answers(300.0, 0.0, 1.0, siblings=(silent,)) is None
    assert of_long_answers(300.0, 0.0, elsewhere=False) is None
    assert of_long_answers(LONG_ANSWER_S, 0.0, siblings=(ProgressSample(LONG_ANSWER_S - 1.0),)) is not None


def test_a_stream_beside_a_long_answer_is_a_witness_and_so_is_an_idle_engine() -> None:
    tracker = with_history(0.1, 0.1, 0.1)
    tracker.waits(AwaitedResponse(0.0, 0.1, False, longest_s=inf), 20.0)
    tracker.waits(AwaitedResponse(1.0, 0.1), 20.0)
    assert stall_of(tracker.take_sample(), [], 20.0, AFTER_S) is not None
    assert tracker.take_sample() == ProgressSample()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    tracker.waits(AwaitedResponse(4.0, 0.1, False, longest_s=inf), 8.0)
    stall = stall_of(tracker.take_sample(), [], 8.0, AFTER_S)
    assert stall is not None
    assert stall.reason is StallReason.IDLE


def test_a_larger_prompt_than_before_may_take_as_many_times_longer() -> None:
    def stalled(now: float, prefill_s: float) -> bool:
        tracker = ProgressTracker()
        for recent_s in (0.001, 0.01, 0.002):
            tracker.began(0.5, recent_s)
        tracker.waits(AwaitedResponse(0.0, 0.1, prefill_s=prefill_s), now)
        return stall_of(tracker.take_sample(), [IDLE_SIBLING], now, AFTER_S) is not None

    assert not stalled(0.5 * 100 * HISTORY_FACTOR - 0.1, 1.0)
    assert stalled(0.5 * 100 * HISTORY_FACTOR, 1.0)
    assert stalled(AFTER_S * HISTORY_SHARE, 0.01)


def test_more_requests_at_once_than_before_may_take_as_many_times_longer() -> None:
    def stalled(now: float, streams: int, streaming: bool) -> bool:
        tracker = ProgressTracker()
        for recent in (1, 2, 1):
            tracker.began(1.5, streams=recent)
            tracker.completed(1.5, streaming=False, streams=recent)
        tracker.waits(AwaitedResponse(0.0, 0.1, streaming, streams=streams), now)
        return stall_of(tracker.take_sample(), [], now, AFTER_S) is not None

    for streaming in (True, False):
        assert not stalled(1.5 * 5 * HISTORY_FACTOR - 0.1, 10, streaming)
        assert stalled(1.5 * 5 * HISTORY_FACTOR, 10, streaming)
        assert stalled(AFTER_S * HISTORY_SHARE, 2, streaming)


def test_old_waits_are_forgotten() -> None:
    longest = [with_history(60.0, *[0.1] * later).longest_s for later in range(2 * WINDOW_RESPONSES + 1)]
    assert longest == [60.0] * 2 * WINDOW_RESPONSES + [0.1], "the wait and those of two windows after it"


def test_a_stream_that_stops_is_a_stall_unless_its_gaps_were_as_long() -> None:
    tracker, stopped = with_history(0.1, 0.1, 0.1), 1_000.0
    tracker.progressed_at = stopped

    def stall_after(silent_s: float) -> Stall | None:
        tracker.waits_for_chunk(stopped, 0.1, stopped + silent_s)
        return stall_of(tracker.take_sample(), [], stopped + silent_s, AFTER_S)

    stall = stall_after(5.0)
    assert stall is not None
    assert stall.reason is StallReason.UNUSUAL
    tracker.resumed(8.0)
    assert stall_after(15.9) is None
    assert stall_after(16.0) is not None


def with_tool_calls(now: float, *since: float, first_bytes: tuple[float, ...] = ()) -> Stall | None:
    """The evidence at `now` (s) from streams with tools that are silent since these times, after short ones.

    `first_bytes`: when requests with tools were sent whose streams have not begun.
    """
    tracker = with_history(0.1, 0.1, 0.1)
    for at in since:
        tracker.waits_for_chunk(at, 0.1, now, may_pause=True)
    for at in first_bytes:
        tracker.waits(AwaitedResponse(at, 0.1, longest_s=inf), now)
    return stall_of(tracker.take_sample(), [], now, AFTER_S)


def test_tool_calls_that_an_engine_holds_back_are_no_stall() -> None:
    assert with_tool_calls(20.0, 0.0) is None
    assert with_tool_calls(20.0, 0.0, 0.0, 3.0) is None, "agents that began together"
    assert with_tool_calls(LONG_ANSWER_S - 0.1, 0.0) is None
    assert with_tool_calls(LONG_ANSWER_S, 0.0) is not None


def test_a_request_that_does_not_begin_beside_a_silent_tool_call_is_a_stall() -> None:
    assert with_tool_calls(20.0, first_bytes=(14.0,)) is None, "the call may be all that is sent"
    assert with_tool_calls(20.0, 0.0, first_bytes=(14.0,)) is not None
    assert with_tool_calls(20.0, 0.0, first_bytes=(19.7,)) is None, "the second one is not overdue"
    tracker = with_history(0.1, 0.1, 0.1)
    tracker.waits_for_chunk(0.0, 0.1, 20.0, may_pause=True)
    tracker.waits_for_chunk(1.0, 0.1, 20.0)
    assert stall_of(tracker.take_sample(), [], 20.0, AFTER_S) is not None, "a stream without tools is silent, too"
    tracker.waits_for_chunk(0.0, 0.1, 20.0, may_pause=True)
    tracker.take_sample()
    tracker.waits(AwaitedResponse(14.0, 0.1, longest_s=inf), 20.0)
    assert stall_of(tracker.take_sample(), [], 20.0, AFTER_S) is None, "each sample stands alone"


def test_a_stream_that_stops_is_a_stall_if_a_sibling_goes_on() -> None:
    tracker = ProgressTracker()
    tracker.progressed_at = 0.0
    tracker.waits_for_chunk(0.0, 0.1, AFTER_S)
    stall = stall_of(tracker.take_sample(), [IDLE_SIBLING], AFTER_S, AFTER_S)
    assert stall is not None
    assert (stall.reason, stall.is_certain) == (StallReason.SILENT, False)


def test_an_idle_engine_needs_no_sibling() -> None:
    tracker = ProgressTracker()
    read(tracker, (0.0, 2.0), *((5.0 + n, 0.0) for n in range(IDLE_READINGS)))
    stall = stall_at(tracker, 8.0)
    assert stall is not None
    assert (stall.reason, stall.is_certain) == (StallReason.IDLE, True)


RULES = EjectionRules(base_s=10.0, max_s=35.0)


def suspect(now: float, ejection: Ejection | None = None) -> Ejection:
    return made_no_progress(ejection or Ejection(), now, RULES, Random(1))


def test_a_suspect_endpoint_returns_by_time_and_one_served_trial() -> None:
    ejection = suspect(100.0)
    assert (ejection.state, ejection.accepts_requests) == (EjectionState.SUSPECT, False)
    old = request_ended(ejection, EndedAttempt(AttemptOutcome.STALLED, 90.0), 101.0, RULES, Random(1))
    assert old == ejection, "sent before"
    trial = request_sent(at_time(ejection, 110.0))
    assert trial.state is EjectionState.TRIAL_RUNNING
    assert (
        request_ended(trial, EndedAttempt(AttemptOutcome.SERVED, 110.0), 111.0, RULES, Random(1)).state
        is EjectionState.NONE
    )


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
