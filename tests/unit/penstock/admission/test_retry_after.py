"""When refused clients retry: neither too early nor too late, and not all at once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.retry_after import retry_after_s, spread_retry_after_s, stated_retry_after_s


def test_a_client_retries_when_the_wait_has_fallen_to_half_of_the_maximum() -> None:
    assert retry_after_s(2.0) == 1.0
    assert retry_after_s(20.0) == 10.0
    assert retry_after_s(90.0, 60.0) == 60.0
    assert retry_after_s(float("inf")) == 120.0


@pytest.mark.parametrize(
    ("value", "stated_s"),
    [
        (b"0", 0.0),
        (b"7", 7.0),
        (b"1" * 9, 111_111_111.0),
        (b"1" * 10, 0.0),
        (b"", 0.0),
        (b"-1", 0.0),
        (b"1.5", 0.0),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_a_stated_time_is_read_and_a_date_is_none(value: bytes, stated_s: float) -> None:
    assert stated_retry_after_s(value) == stated_s


@given(st.floats(0.0, 1e6), st.integers())
def test_retry_after_is_neither_too_early_nor_too_late(wait_s: float, seed: int) -> None:
    times_s = spread_retry_after_s(wait_s, Random(seed))
    assert max(1.0, wait_s) <= times_s <= max(wait_s + 3, min(1.5 * wait_s + 2, wait_s + 61))


@pytest.mark.parametrize(("wait_s", "times_s"), [(0.0, {1, 2, 3}), (1.2, {2, 3, 4}), (10.0, set(range(10, 16)))])
def test_requests_refused_together_get_spread_retry_times(wait_s: float, times_s: set[int]) -> None:
    rng = Random(1)
    assert {spread_retry_after_s(wait_s, rng) for _ in range(200)} == times_s


def test_the_end_of_a_month_is_postponed_by_a_minute_at_most() -> None:
    rng = Random(1)
    assert {spread_retry_after_s(1e6, rng) for _ in range(2000)} == set(range(1_000_000, 1_000_061))
