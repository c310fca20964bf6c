"""How many sessions a change of shares moves, for any plan."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.routing.session_home import home_of

SESSIONS = range(1, 3001)

weights = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6)


def shares_of(parts: list[float]) -> dict[str, float]:
    return {f"region-{number}": part / sum(parts) for number, part in enumerate(parts)}


def moved_part(before: dict[str, float], after: dict[str, float], seed: int) -> float:
    keys = [session * 0x9E3779B1 + seed & 0xFFFFFFFF for session in SESSIONS]
    return sum(home_of(key, before) != home_of(key, after) for key in keys) / len(keys)


def expected_part(before: dict[str, float], after: dict[str, float]) -> float:
    """The part of sessions that moves: a session stays in a region that wins under both shares."""
    return 1.0 - sum(
        1.0 / sum(max(before[other] / share, after[other] / after[region]) for other in before)
        for region, share in before.items()
    )


@given(weights, st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
@example([0.6, 0.4], 0.17, 0)
def test_a_shift_between_two_regions_moves_its_part(parts: list[float], part: float, seed: int) -> None:
    before = shares_of(parts)
    first, second, *others = before
    shift = min(0.1, part * before[first] * 0.9)
    after = {**before, first: before[first] - shift, second: before[second] + shift}
    of_others = sum(before[other] for other in others)
    bound = shift + of_others * shift / (1.0 + shift)
    assert expected_part(before, after) == pytest.approx(bound, abs=1e-9)
    # Four standard deviations of a sample.
    noise = 4 * sqrt(max(bound, 0.001) / len(SESSIONS))
    assert moved_part(before, after, seed) == pytest.approx(bound, abs=noise)


@given(weights, st.integers(0, 2**32 - 1))
def test_the_loss_of_a_region_moves_only_its_sessions(parts: list[float], seed: int) -> None:
    before = shares_of(parts)
    lost, *_ = before
    after = {region: share for region, share in before.items() if region != lost}
    for session in range(200):
        home = home_of(session + seed, before)
        assert home == lost or home_of(session + seed, after) == home


@given(weights, st.floats(0.01, 100.0), st.integers(0, 2**62))
def test_only_the_proportions_of_shares_count(parts: list[float], factor: float, session: int) -> None:
    before = shares_of(parts)
    assert home_of(session, before) == home_of(session, {region: share * factor for region, share in before.items()})
    assert home_of(session, dict(reversed(before.items()))) == home_of(session, before)
