"""The time in the notice that an endpoint is about to be removed."""

from __future__ import annotations

import pytest

from penstock.health.preemption_notice import notice_s


@pytest.mark.parametrize(
    ("value", "notice"),
    [
        (b"1", 1.0),
        (b" 120 ", 120.0),
        (b"86400", 86_400.0),
        (b"86401", 86_400.0),
        (b"999999999", 86_400.0),
        # No positive integer: ten minutes.
        (b"1000000000", 600.0),
        (b"0", 600.0),
        (b"-5", 600.0),
        (b"1.5", 600.0),
        (b"soon", 600.0),
        (b"", 600.0),
    ],
)
def test_a_notice_is_a_positive_number_of_seconds_and_at_most_a_day(value: bytes, notice: float) -> None:
    assert notice_s(value) == notice
