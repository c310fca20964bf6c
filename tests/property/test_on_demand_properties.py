"""Properties of models on demand: no oscillation, and always a copy in the fleet."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.on_demand.pool_size import PoolLimits, PoolSeen, PoolSize, PoolView, may_be_last

IDLE_S = 30.0
SETTLED_S = 400
SERVICE_S = 4.0


def directions(steps: list[float], slots: int, cold_start_s: int, target: float) -> list[list[int]]:
    """The changes of the number of awake endpoints, +1 or -1 each, in reply to each step of demand.

    Requests are a fluid: those that no slot serves wait, so that a cold start leaves a queue behind.
    """
    size, limits = PoolSize(), PoolLimits(0, 50, target, IDLE_S, keeps_last=False)
    awake, waking, requests, found = 0, [], 0.0, []
    for number, concurrency in enumerate(steps):
        moves: list[int] = []
        for second in range(number * SETTLED_S, (number + 1) * SETTLED_S):
            requests += (concurrency - min(requests, awake * slots)) / SERVICE_S
            requests = 0.0 if requests < 1e-3 else requests
            awake += sum(ready <= second for ready in waking)
            waking = [ready for ready in waking if ready > second]
            change = size.change(PoolSeen(awake, len(waking), requests, slots), limits, float(second))
            if change > 0:
                waking += [second + cold_start_s] * change
            else:
                awake += change
            moves += [1 if change > 0 else -1] * bool(change)
        found.append(moves)
    return found


@given(
    steps=st.lists(st.sampled_from([0.0, 1.0, 3.0, 7.5, 20.0, 40.0]), min_size=1, max_size=4),
    slots=st.integers(2, 16),
    cold_start_s=st.integers(1, 60),
    target=st.sampled_from([0.5, 0.8, 1.0]),
)
def test_a_step_of_demand_causes_at_most_one_reversal(
    steps: list[float], slots: int, cold_start_s: int, target: float
) -> None:
    for moves in directions(steps, slots, cold_start_s, target):
        assert sum(earlier != later for earlier, later in pairwise(moves)) <= 1


@given(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
def test_regions_that_decide_by_old_views_never_let_the_last_copy_sleep(regions: list[str]) -> None:
    """Every region sees all others as ready as at the beginning, the worst of old views."""
    ready = frozenset(regions)
    asleep = {region for region in regions if not may_be_last(PoolView(region, ready - {region}))}
    assert ready - asleep == {min(regions)}
