"""When a job store counts as silent, and what is tried at it meanwhile."""

from __future__ import annotations

from penstock.jobs import store_silence
from penstock.jobs.store_silence import StoreSilence

BULK_S = 45.0


def test_the_limits() -> None:
    assert (store_silence.SILENT_S, store_silence.TRY_S, store_silence.BULK_S) == (8.0, 2.0, BULK_S)


def test_a_store_is_silent_after_eight_seconds_without_a_response() -> None:
    silence = StoreSilence()
    assert not silence.is_over(100.0, 107.9)
    assert not silence.is_over(None, 107.9)
    assert silence.may_start(107.9, has_thread=False)
    assert silence.is_over(100.0, 108.0)
    assert silence.is_silent
    # What waits for a thread fails with it.
    assert silence.is_over(None, 108.0)


def test_a_response_to_another_operation_lets_a_long_one_go_on() -> None:
    silence = StoreSilence()
    silence.responded(105.0)
    assert not silence.is_over(100.0, 112.9)
    assert silence.is_over(100.0, 113.0)


def test_a_large_transfer_has_more_time_and_does_not_make_a_store_silent() -> None:
    silence = StoreSilence()
    assert not silence.is_over(100.0, 144.0, BULK_S)
    assert not silence.is_silent
    assert silence.is_over(100.0, 145.0, BULK_S)


def test_one_operation_each_two_seconds_is_tried_at_a_silent_store() -> None:
    silence = StoreSilence()
    assert silence.is_over(100.0, 108.0)
    assert not silence.may_start(108.1, has_thread=False)
    assert silence.may_start(108.1, has_thread=True)
    assert not silence.may_start(110.0, has_thread=True)
    assert silence.may_start(110.1, has_thread=True)


def test_any_response_ends_the_silence() -> None:
    silence = StoreSilence()
    assert silence.is_over(100.0, 108.0)
    silence.responded(108.5)
    assert not silence.is_silent
    assert silence.may_start(108.6, has_thread=False)
    assert not silence.is_over(None, 108.6)
    # An operation that hangs since before the response has its time again.
    assert not silence.is_over(100.0, 116.4)
