"""When a second attempt is sent: the percentile of recent requests, and the budget."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.hedging import (
    GROWTH,
    MAX_BURST,
    MAX_HISTOGRAMS,
    MEMORY_SAMPLES,
    MIN_S,
    MIN_SAMPLES,
    PERCENTILE,
    SHARE,
    HedgeBudget,
    HedgeDelays,
    LatencyHistogram,
)


@given(st.lists(st.floats(MIN_S, 100.0), min_size=MIN_SAMPLES, max_size=MEMORY_SAMPLES - 1))
def test_the_percentile_is_exact_up_to_the_width_of_a_bucket(times_s: list[float]) -> None:
    histogram = LatencyHistogram()
    for took_s in times_s:
        histogram.record(took_s)
    percentile_s = histogram.percentile_s()
    assert percentile_s is not None
    below = sum(took_s <= percentile_s * (1 + 1e-9) for took_s in times_s)
    assert below >= PERCENTILE * len(times_s) - 1e-6
    too_short = percentile_s / GROWTH / GROWTH
    assert sum(took_s <= too_short for took_s in times_s) < PERCENTILE * len(times_s)


def test_there_is_no_delay_before_enough_requests_have_completed() -> None:
    delays = HedgeDelays()
    for _ in range(MIN_SAMPLES - 1):
        delays.record("embeddings", "m", 0.1)
    assert delays.delay_s("embeddings", "m") is None
    delays.record("embeddings", "m", 0.1)
    assert delays.delay_s("embeddings", "m") == pytest.approx(0.1, rel=GROWTH - 1)
    assert delays.delay_s("rerank", "m") is None


def test_the_delay_follows_a_change() -> None:
    histogram = LatencyHistogram()
    for took_s in [0.01] * (10 * MEMORY_SAMPLES) + [1.0] * MEMORY_SAMPLES:
        histogram.record(took_s)
    assert histogram.percentile_s() == pytest.approx(1.0, rel=GROWTH - 1)


def test_memory_is_bounded() -> None:
    delays = HedgeDelays()
    for number in range(MAX_HISTOGRAMS + 50):
        for _ in range(MIN_SAMPLES if number in (0, MAX_HISTOGRAMS + 49) else 1):
            delays.record("embeddings", f"m-{number}", 0.1)
    assert len(delays._histograms) == MAX_HISTOGRAMS
    assert delays.delay_s("embeddings", "m-0") is None
    assert delays.delay_s("embeddings", f"m-{MAX_HISTOGRAMS + 49}") is not None


@given(st.integers(0, 2**32))
def test_no_history_exceeds_the_budget(seed: int) -> None:
    rng, budget = Random(seed), HedgeBudget()
    requests = sent = 0
    for _ in range(2_000):
        if rng.random() < 0.6:
            budget.request()
            requests += 1
        elif budget.allows_one:
            budget.withdraw()
            sent += 1
        assert sent <= SHARE * requests + 1e-6


def test_a_long_time_without_second_attempts_saves_up_a_bounded_burst() -> None:
    budget = HedgeBudget()
    for _ in range(100_000):
        budget.request()
    sent = 0
    while budget.allows_one:
        budget.withdraw()
        sent += 1
    assert sent == MAX_BURST
