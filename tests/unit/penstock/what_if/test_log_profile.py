"""The profile of access logs: arrivals, mix, concurrency and the slots that follow, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.what_if import log_profile
from penstock.what_if.log_profile import LoggedRequest, LogProfiler, Profile, TooMuch

START = 1_000_000_020.0
"""The beginning of a minute."""


def request(at: float, total_s: float = 10.0, **fields: object) -> LoggedRequest:
    given: dict[str, object] = {"tenant": "t", "model": "m", "kind": "home", "server": "eu-de", "outcome": "ok"}
    return LoggedRequest(at=START + at, total_ms=1000 * total_s, **(given | fields))  # type: ignore[arg-type]


def profiled(*requests: LoggedRequest) -> Profile:
    profiler = LogProfiler()
    for each in requests:
        profiler.add(each)
    return profiler.profile()


def test_concurrency_and_slots_follow_from_the_times_without_the_queue() -> None:
    found = profiled(
        *(request(600.0, 600.0, queue_ms=0.0) for _ in range(4)), request(600.0, 600.0, queue_ms=300_000.0)
    )
    (pool,) = found.pools
    assert (pool.region, pool.model, pool.p99, pool.slots) == ("eu-de", "m", 5.0, 7)
    assert pool.mean == pytest.approx(4.5 * 600 / 610)
    assert (found.per_s_max, found.requests) == (5 / 60, 5)


def test_the_reserve_covers_the_largest_region() -> None:
    here = [request(600.0, 600.0, input_tokens=1_000, cached_tokens=600) for _ in range(8)]
    there = [request(600.0, 600.0, server="eu-es", kind="spillover", input_tokens=500, cached_tokens=9_000)] * 4
    (proposal,) = profiled(*here, *there).proposals
    assert (proposal.slots, proposal.reserve, proposal.lost) == (15, 10, "eu-de")
    assert proposal.prefix_reuse == (8 * 600 + 4 * 500) / 10_000
    assert profiled(request(1.0, input_tokens=9)).proposals[0].prefix_reuse is None


def test_forwarded_lines_and_failures_do_not_count_twice_or_as_cost() -> None:
    found = profiled(request(1.0), request(1.0, kind="forwarded"), request(2.0, outcome="refused", total_s=0.1))
    assert (found.requests, found.forwarded, found.outcomes) == (2, 1, {"ok": 1, "refused": 1})
    assert found.distributions["duration_s"].count == 1


def test_requests_that_do_not_complete_hold_slots_too() -> None:
    complete = [request(600.0, 600.0)] * 4
    ended_early = [request(600.0, 600.0, outcome=outcome) for outcome in ("client_left", "engine_cut", "timed_out")]
    without_slot = [
        request(600.0, 600.0, outcome="refused"),
        request(600.0, 600.0, outcome="refused", server="none"),
        request(600.0, 600.0, outcome="cached", server="none"),
        request(600.0, 600.0, outcome="unauthenticated", server="", kind=""),
    ]
    found = profiled(*complete, *ended_early, *without_slot)
    assert [(pool.region, pool.p99, pool.slots) for pool in found.pools] == [("eu-de", 7.0, 9)]
    assert [(row.model, row.slots) for row in found.proposals] == [("m", 9)]
    assert found.distributions["duration_s"].count == 4


def test_a_request_that_ran_long_before_the_log_does_not_dilute_it() -> None:
    """A log of ten minutes in which a session ended that had lasted a day."""
    short = [request(float(at), 60.0) for at in range(0, 600, 10) for _ in range(2)]
    usual = profiled(*short)
    with_session = profiled(*short, request(300.0, 86_400.0))
    assert usual.pools[0].p99 == 12.0
    assert with_session.pools[0].p99 == 13.0
    assert with_session.per_s == pytest.approx(usual.per_s, rel=0.02)
    assert with_session.per_s_p99 == usual.per_s_p99


def test_the_busiest_minute_of_a_shorter_log_is_no_less_than_its_mean() -> None:
    for first in (1, 57):
        found = profiled(*(request(float(at), 0.5) for at in range(first, first + 7)))
        assert found.per_s_max >= found.per_s > 1.0
        assert found.pools[0].mean >= 0.175, "of at most 20 s"


def test_distributions_are_exact_to_five_percent() -> None:
    found = profiled(*(request(float(number), 1.0, input_tokens=number) for number in range(1, 1001)))
    tokens = found.distributions["input_tokens"]
    assert (tokens.count, tokens.mean) == (1000, 500.5)
    assert (tokens.p50, tokens.p90, tokens.p99) == pytest.approx((500, 900, 990), rel=0.05)
    assert "output_tokens" not in found.distributions


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_profile, "MAX_STEPS", 100)
    monkeypatch.setattr(log_profile, "MAX_NAMES", 2)
    found = profiled(*(request(1.0, tenant=name) for name in "aabcd"))
    assert found.tenants == {"a": 2, "b": 1, "other": 2}
    with pytest.raises(TooMuch, match="read fewer logs"):
        profiled(request(5000.0, 5000.0))


@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 900), st.booleans()), min_size=1, max_size=30))
def test_the_busy_time_is_that_of_the_requests(requests: list[tuple[float, float, bool]]) -> None:
    found = profiled(*(request(at, total_s, server="a" if here else "b") for at, total_s, here in requests))
    steps = int(found.ends_at // 10) - int(found.begins_at // 10) + 1
    busy_s = sum(pool.mean for pool in found.pools) * steps * 10
    since = found.begins_at // 10 * 10 - START
    inside_s = [max(0.0, at - max(since, at - total_s)) for at, total_s, _ in requests]
    assert busy_s == pytest.approx(sum(inside_s), rel=1e-6, abs=1e-3)
    assert all(pool.slots >= 1 for pool in found.pools)
