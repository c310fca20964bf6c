from __future__ import annotations

import pytest

from penstock.wire.trace_context import continue_trace, start_trace

GOOD = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_valid_context_is_forwarded_unchanged() -> None:
    assert continue_trace(GOOD) == GOOD.decode()
    assert continue_trace(b"01" + GOOD[2:] + b"-more") == (b"01" + GOOD[2:] + b"-more").decode(), "a later version"


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        GOOD.upper(),
        GOOD[:-1],
        GOOD + b"-more",
        b"ff" + GOOD[2:],
        b"00-" + b"0" * 32 + GOOD[35:],
        GOOD[:36] + b"0" * 16 + b"-01",
        GOOD + b"\n",
        b"01" + GOOD[2:] + b"-" + b"x" * 1000,
    ],
)
def test_a_bad_one_means_nothing(bad: bytes) -> None:
    assert continue_trace(bad) is None


def test_one_that_is_started_can_be_continued() -> None:
    traceparent = start_trace("0af7651916cd43dd8448eb211c80319c")
    assert continue_trace(traceparent.encode()) == traceparent
