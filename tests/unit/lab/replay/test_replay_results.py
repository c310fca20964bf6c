"""Results by serving region and by due time of the requests."""

from __future__ import annotations

import msgspec
import pytest

from lab.replay.outcome import Outcome, OutcomeKind, Try, TryResult
from lab.replay.replay_results import summarise


def one(at_s: float, e2e_s: float, region: str = "a", kind: OutcomeKind = OutcomeKind.OK, code: str = "") -> Outcome:
    tries = (Try(region, f"http://{region}", at_s, at_s + e2e_s, TryResult.ANSWERED, 200),)
    return Outcome(
        "1", "s", "t", "m", at_s, at_s, at_s, at_s + e2e_s / 2, at_s + e2e_s, kind, 200, code, tries, region, "", 1
    )


def test_sums_up_by_region_and_over_time() -> None:
    outcomes = [one(number * 0.1, 1.0) for number in range(99)]
    outcomes += [
        one(12.0, 5.0, "b"),
        one(12.5, 9.0, "b", OutcomeKind.FAILED, "reset"),
        one(0.0, 1.0, "", OutcomeKind.REFUSED, "saturated"),
    ]
    results = summarise(outcomes, bucket_s=5.0)
    assert (results.requests.total, results.requests.ok, results.requests.failed, results.requests.refused) == (
        102,
        100,
        1,
        1,
    )
    assert results.by_region["a"].e2e_p99_ms == pytest.approx(1000)
    assert results.by_region["b"].requests == 1
    assert results.by_region["b"].ttft_p50_ms == pytest.approx(2500)
    assert results.codes == {"reset": 1, "saturated": 1}
    assert [(b.from_s, b.counts.total, b.latency.requests) for b in results.timeline] == [
        (0.0, 51, 50),
        (5.0, 49, 49),
        (10.0, 2, 1),
    ]
    assert msgspec.json.decode(msgspec.json.encode(results))["latency"]["requests"] == 100


def test_an_empty_run_has_an_empty_summary() -> None:
    results = summarise([], 5.0)
    assert (results.requests.total, results.latency.e2e_p99_ms, results.timeline) == (0, None, [])
