"""Arrivals are limited by address and by prefix, in bounded memory, and other networks are not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.address_rate_limits import (
    ArrivalRates,
)
from penstock.admission.leaky_buckets import LeakyBuckets

RATE = 10.0


def admitted(rates: ArrivalRates, address: str, tries: int, now: float = 0.0) -> int:
    count = 0
    for _ in range(tries):
        if rates.admits(address, now):
            rates.add(address, now)
            count += 1
    return count


def test_an_address_has_a_burst_and_a_rate() -> None:
    rates = ArrivalRates(RATE)
    assert admitted(rates, "192.0.2.1", 1000) == 100
    assert admitted(rates, "192.0.2.1", 1000, now=1.0) == RATE
    assert admitted(rates, "192.0.2.2", 1) == 1, "another address"


def test_one_request_is_admitted_at_any_rate() -> None:
    slow = ArrivalRates(0.01)
    assert admitted(slow, "192.0.2.1", 3) == 1
    assert admitted(slow, "192.0.2.2", 3) == 0, "of the prefix, too"
    assert admitted(slow, "192.0.2.2", 3, now=25.1) == 1


def test_the_addresses_of_a_prefix_share_a_larger_rate() -> None:
    rates = ArrivalRates(RATE)
    total = sum(admitted(rates, f"192.0.2.{host}", 1000) for host in range(20))
    assert total == 400
    assert admitted(rates, "192.0.3.1", 1) == 1, "another prefix"
    total = sum(admitted(rates, f"2001:db8:0:{subnet:x}::1", 1000) for subnet in range(20))
    assert total == 400
    assert admitted(rates, "2001:db8:1::1", 1) == 1


def test_requests_that_were_served_count_too() -> None:
    rates = ArrivalRates(RATE)
    rates.add("192.0.2.1", 0.0, 100_000)
    assert not rates.admits("192.0.2.1", 9.9), "more than the burst has to wait"
    assert rates.admits("192.0.2.1", 10.2), "but not longer"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.floats(0.0, 5.0)), max_size=40))
def test_a_bucket_never_admits_more_than_its_size_and_rate(steps: list[tuple[int, int, float]]) -> None:
    buckets, now = LeakyBuckets(20, 0.5, 4), 0.0
    counted: dict[str, float] = {}
    for key_number, count, pause_s in steps:
        now += pause_s
        key = str(key_number % 3)
        for _ in range(count):
            if buckets.wait_s(key, now) <= 0:
                buckets.add(key, now)
                counted[key] = counted.get(key, 0) + 1
    assert all(total <= 20 + now / 0.5 + 1 for total in counted.values())


def test_memory_is_bounded() -> None:
    buckets = LeakyBuckets(2, 1.0, 10)
    for number in range(100):
        buckets.add(str(number), 0.0, 2)
    assert len(buckets) == 10
    assert buckets.wait_s("99", 0.0) > 0
    assert buckets.wait_s("0", 0.0) == 0
