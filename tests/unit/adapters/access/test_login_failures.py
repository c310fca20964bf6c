"""Failed logins are limited by address, permitted again after a time, and counted in bounded memory."""

from __future__ import annotations

import pytest

from adapters.access.login_failures import BURST, MAX_ADDRESSES, REFILL_S, LoginFailures
from tests.support.clocks import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def failures(clock: SetClock) -> LoginFailures:
    return LoginFailures(clock)


def test_failures_are_limited_by_burst_and_rate(failures: LoginFailures, clock: SetClock) -> None:
    for _ in range(BURST):
        assert failures.wait_s("10.0.0.1") == 0
        failures.note("10.0.0.1")
    wait_s = failures.wait_s("10.0.0.1")
    assert wait_s == REFILL_S
    clock.now += wait_s
    assert failures.wait_s("10.0.0.1") == 0
    failures.note("10.0.0.1")
    assert failures.wait_s("10.0.0.1") > 0
    clock.now += BURST * REFILL_S
    for _ in range(BURST):
        assert failures.wait_s("10.0.0.1") == 0
        failures.note("10.0.0.1")
    assert failures.wait_s("10.0.0.1") > 0


def test_further_failures_do_not_prolong_the_limit(failures: LoginFailures) -> None:
    for _ in range(10 * BURST):
        failures.note("10.0.0.1")
    assert failures.wait_s("10.0.0.1") == REFILL_S


@pytest.mark.parametrize(
    ("failed", "other", "shared"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "10.0.0.1", False),
        ("not an address", "not an address", True),
    ],
)
def test_failures_are_counted_by_address(failures: LoginFailures, failed: str, other: str, shared: bool) -> None:
    for _ in range(BURST):
        failures.note(failed)
    assert (failures.wait_s(other) > 0) is shared


def test_memory_is_bounded(failures: LoginFailures) -> None:
    for number in range(MAX_ADDRESSES + 100):
        failures.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(failures) == MAX_ADDRESSES
