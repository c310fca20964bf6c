"""When endpoints of a model on demand wake and sleep, and when a failed attempt is repeated."""

from __future__ import annotations

from random import Random

from penstock.on_demand.pool_size import PoolLimits, PoolSeen, PoolSize
from penstock.on_demand.wake_history import MAX_RETRY_S, Attempts, ColdStarts, overdue_after_s

LIMITS = PoolLimits(least=0, most=8, target_utilisation=0.8, idle_s=100.0, keeps_last=True)


def seen(awake: int, load: float, waking: int = 0) -> PoolSeen:
    return PoolSeen(awake, waking, load, slots=10.0)


def test_one_request_wakes_one_endpoint_and_many_wake_what_they_need() -> None:
    assert PoolSize().change(seen(0, 1.0), LIMITS, 0.0) == 1
    assert PoolSize().change(seen(0, 24.0), LIMITS, 0.0) == 3
    assert PoolSize().change(seen(0, 24.0, waking=3), LIMITS, 0.0) == 0
    assert PoolSize().change(seen(0, 900.0), LIMITS, 0.0) == 8, "max_endpoints"
    assert PoolSize().change(seen(0, 0.0), LIMITS._replace(least=2), 0.0) == 2, "min_endpoints"


def test_an_endpoint_sleeps_after_a_whole_quiet_time_and_the_last_only_if_another_copy_exists() -> None:
    size = PoolSize()
    assert size.change(seen(2, 12.0), LIMITS, 0.0) == 0
    assert size.change(seen(2, 0.0), LIMITS, 50.0) == 0
    assert size.change(seen(2, 0.0), LIMITS, 100.1) == -1
    assert size.change(seen(1, 0.0), LIMITS, 300.0) == 0
    assert size.change(seen(1, 0.0), LIMITS._replace(keeps_last=False), 301.0) == -1
    assert size.change(seen(1, 0.0), LIMITS._replace(keeps_last=False, idle_s=0.0), 302.0) == 0


def test_a_load_that_fits_only_without_margin_lets_no_endpoint_sleep() -> None:
    size = PoolSize()
    for now in range(0, 500, 10):
        assert size.change(seen(2, 7.5), LIMITS, float(now)) == 0
    for now in range(500, 590, 10):
        assert size.change(seen(2, 6.0), LIMITS, float(now)) == 0
    assert size.change(seen(2, 6.0), LIMITS, 601.0) == -1


def test_failed_attempts_are_repeated_ever_later() -> None:
    tried, delays = Attempts(), []
    for _ in range(40):
        tried = tried.failed("500", 10.0, Random(1))
        delays.append(tried.not_before - 10.0)
    assert delays[0] <= 1.2 < 1.6 <= delays[1] <= 2.4
    assert 0.8 * MAX_RETRY_S <= delays[-1] <= 1.2 * MAX_RETRY_S
    assert (tried.failures, tried.problem) == (40, "500")


def test_the_longest_of_the_last_cold_starts_is_expected() -> None:
    starts = ColdStarts()
    assert starts.expected_s(300.0) == 300.0
    for took_s in (90.0, 20.0, 30.0, 25.0, 20.0):
        starts.add(took_s)
    assert starts.expected_s(300.0) == 90.0
    starts.add(21.0)
    assert starts.expected_s(300.0) == 30.0


def test_a_wake_is_overdue_after_twice_the_expected_cold_start_and_ten_seconds_at_least() -> None:
    assert [overdue_after_s(expected_s) for expected_s in (0.5, 5.0, 60.0)] == [10.0, 10.0, 120.0]
