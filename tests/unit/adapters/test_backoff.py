from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from adapters.backoff import full_jitter_s


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_wait_stays_between_zero_and_its_bound(attempt: int, seed: int) -> None:
    wait_s = full_jitter_s(attempt, base_s=0.1, cap_s=2.0, rng=Random(seed))
    assert 0.0 <= wait_s <= min(2.0, 0.1 * 2 ** min(attempt, 100))


def test_waits_are_spread_over_the_whole_range() -> None:
    rng = Random(1)
    waits = [full_jitter_s(9, base_s=0.1, cap_s=2.0, rng=rng) for _ in range(1000)]
    assert min(waits) < 0.1
    assert max(waits) > 1.9
