"""The generator is deterministic, and its traces have the documented statistics."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from lab.traces.generate import (
    CHAT_ARRIVALS,
    CHAT_LENGTHS,
    CHAT_PREFIXES,
    Arrivals,
    LengthCluster,
    Prefixes,
    arrival_times,
    generate,
)
from lab.traces.trace import TraceRequest, blocks_of
from tests.support.trace_statistics import cache_hit_ratio, dispersion, fit_lengths, length_misfit


def expected_dispersion(arrivals: Arrivals, window_s: float) -> float:
    x = window_s / arrivals.dwell_s
    excess = 2 * arrivals.rate_per_s * arrivals.rate_cv**2 * arrivals.dwell_s
    return 1 + excess * (1 - (1 - exp(-x)) / x)


def test_the_same_seed_gives_the_same_workload() -> None:
    assert generate(60.0, Random(7)) == generate(60.0, Random(7))
    assert generate(60.0, Random(7)) != generate(60.0, Random(8))


BURSTS = Arrivals(rate_per_s=2.57, rate_cv=2.25, dwell_s=5.0)


def test_arrivals_are_in_order_within_the_duration() -> None:
    times_s = arrival_times(300.0, BURSTS, Random(1))
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0.0
    assert times_s[-1] < 300.0


@pytest.mark.parametrize("arrivals", [CHAT_ARRIVALS, BURSTS, Arrivals(5.0, 0.0, 10.0)])
def test_arrivals_have_the_stated_rate_and_burstiness(arrivals: Arrivals) -> None:
    duration_s = 2000.0 * arrivals.dwell_s if arrivals is not CHAT_ARRIVALS else 50_000.0
    times_s = arrival_times(duration_s, arrivals, Random(5))
    assert len(times_s) / duration_s == pytest.approx(arrivals.rate_per_s, rel=0.15)
    for window_s in (1.0, 10.0):
        expected = expected_dispersion(arrivals, window_s)
        assert dispersion(times_s, window_s) == pytest.approx(expected, rel=0.3)


def test_lengths_follow_the_fitted_clusters() -> None:
    trace = generate(1200.0, Random(2))
    assert max(length_misfit(trace, CHAT_LENGTHS)) < 0.03


def test_prefixes_are_shared_as_stated() -> None:
    trace = generate(1200.0, Random(3))
    assert all(len(r.prefix_blocks) == blocks_of(r.prompt_tokens) for r in trace)
    assert cache_hit_ratio(trace) == pytest.approx(0.19, abs=0.03)
    assert cache_hit_ratio(generate(300.0, Random(3), prefixes=Prefixes(0.0, 0.7, 10.0))) == 0.0


def test_no_prompt_repeats_a_block() -> None:
    assert all(len(set(r.prefix_blocks)) == len(r.prefix_blocks) for r in generate(600.0, Random(4)))


def test_long_prompts_share_as_much_of_themselves_as_in_mooncake() -> None:
    long_prompts = (LengthCluster(1.0, 9.2, 0.1, 5.0, 0.5),)
    trace = generate(2000.0, Random(6), lengths=long_prompts)
    assert cache_hit_ratio(trace) == pytest.approx(CHAT_PREFIXES.follow_share * CHAT_PREFIXES.shared_part, abs=0.03)


def test_the_fit_recovers_a_known_mixture() -> None:
    known = [LengthCluster(0.7, 5.0, 0.3, 4.0, 0.3), LengthCluster(0.3, 8.0, 0.4, 6.0, 0.2)]
    rng = Random(9)
    drawn = [rng.choices(known, [c.weight for c in known])[0] for _ in range(1500)]
    trace = [
        TraceRequest(
            0.0,
            round(rng.lognormvariate(c.prompt_log_mean, c.prompt_log_sd)),
            round(rng.lognormvariate(c.output_log_mean, c.output_log_sd)),
        )
        for c in drawn
    ]
    fitted = sorted(fit_lengths(trace, 2, 30, Random(1)), key=lambda c: c.prompt_log_mean)
    for got, wanted in zip(fitted, known, strict=True):
        assert got.weight == pytest.approx(wanted.weight, abs=0.05)
        assert got.prompt_log_mean == pytest.approx(wanted.prompt_log_mean, abs=0.1)
        assert got.output_log_sd == pytest.approx(wanted.output_log_sd, abs=0.05)
    assert max(length_misfit(trace, fitted)) < 0.05
