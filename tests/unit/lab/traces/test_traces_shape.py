"""Cutting and scaling: each function changes the arrival process as documented, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lab.traces.generate import Arrivals, arrival_times
from lab.traces.shape import cap_tokens, compress_time, first_seconds, scale_rate, superpose, thin
from lab.traces.trace import TraceRequest, blocks_of
from tests.support.trace_statistics import cache_hit_ratio, dispersion

PERIOD_S = 4000.0
BURSTY = [
    TraceRequest(at_s, 1000, 100, (index % 50, 50 + index))
    for index, at_s in enumerate(arrival_times(PERIOD_S, Arrivals(5.0, 1.0, 4.0), Random(1)))
]


def times(trace: list[TraceRequest]) -> list[float]:
    return [request.at_s for request in trace]


def test_first_seconds_cuts_and_changes_nothing() -> None:
    cut = first_seconds(BURSTY, 100.0)
    assert cut == BURSTY[: len(cut)]
    assert BURSTY[len(cut)].at_s >= 100.0


def test_compressing_time_keeps_counts_per_scaled_window() -> None:
    fast = compress_time(BURSTY, 4.0)
    assert times(fast)[-1] == pytest.approx(BURSTY[-1].at_s / 4)
    assert dispersion(times(fast), 2.5) == pytest.approx(dispersion(times(BURSTY), 10.0), rel=0.02)


def test_thinning_scales_excess_dispersion() -> None:
    thinned = thin(BURSTY, 0.25, Random(2))
    assert len(thinned) == pytest.approx(len(BURSTY) / 4, rel=0.05)
    excess = dispersion(times(BURSTY), 10.0) - 1
    assert dispersion(times(thinned), 10.0) - 1 == pytest.approx(excess * 0.25, rel=0.2)


def test_superposing_keeps_dispersion_and_shares_no_prefixes() -> None:
    heavy = superpose(BURSTY, 4, PERIOD_S, Random(3))
    assert len(heavy) == 4 * len(BURSTY)
    assert times(heavy) == sorted(times(heavy))
    assert max(times(heavy)) < PERIOD_S
    assert dispersion(times(heavy), 10.0) == pytest.approx(dispersion(times(BURSTY), 10.0), rel=0.3)
    assert cache_hit_ratio(heavy) == pytest.approx(cache_hit_ratio(BURSTY), rel=0.001)


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0, 3.7])
def test_scaling_the_rate(factor: float) -> None:
    scaled = scale_rate(BURSTY, factor, PERIOD_S, Random(4))
    assert len(scaled) == pytest.approx(factor * len(BURSTY), rel=0.05)
    assert times(scaled) == sorted(times(scaled))


def test_scaling_by_one_changes_nothing() -> None:
    assert scale_rate(BURSTY, 1.0, PERIOD_S, Random(4)) == BURSTY


def test_capping_shortens_prompt_output_and_prefix_together() -> None:
    long = TraceRequest(1.0, 5000, 900, tuple(range(blocks_of(5000))))
    short = TraceRequest(2.0, 100, 10, (7,))
    capped, same = cap_tokens([long, short], 1024, 256)
    assert capped == TraceRequest(1.0, 1024, 256, (0, 1))
    assert same == short


@pytest.mark.parametrize(
    "call",
    [
        lambda: compress_time(BURSTY, 0.0),
        lambda: thin(BURSTY, 1.5, Random(1)),
        lambda: superpose(BURSTY, 0, PERIOD_S, Random(1)),
        lambda: scale_rate(BURSTY, -1.0, PERIOD_S, Random(1)),
        lambda: cap_tokens(BURSTY, 0, 1),
    ],
)
def test_refuses_invalid_arguments(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()
