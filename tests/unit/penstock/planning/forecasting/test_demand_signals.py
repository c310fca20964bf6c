"""Demand signals: whatever a URL responds is read or refused, and a forecast only rises, up to its limit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.forecasting.demand_signals import (
    SignalPoint,
    factor_at,
    read_points,
    with_signals,
)
from penstock.planning.share_moves import Key
from penstock.policy.kinds.external_sources import DemandSignal

MAX_POINTS = 1_000
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEY, OTHER = Key("eu-de", "llama", "all"), Key("eu-es", "mistral", "all")
MATCH = DemandSignal("match", "https://signal.example/", max_factor=4.0, models=("llama",))
POINTS = (SignalPoint(1000.0, 1.0), SignalPoint(2000.0, 3.0), SignalPoint(3000.0, 1.0))


@pytest.mark.parametrize(
    ("at", "factor"),
    [(0.0, 1.0), (1000.0, 1.0), (1500.0, 2.0), (2000.0, 3.0), (2750.0, 1.5), (3000.0, 1.0)],
)
def test_between_points_the_factor_is_interpolated(at: float, factor: float) -> None:
    assert factor_at(POINTS, at) == pytest.approx(factor)


@pytest.mark.parametrize(("at", "factor"), [(999.0, 1.0), (1000.0, 5.0), (1001.0, 1.0)])
def test_outside_its_points_a_signal_changes_nothing(at: float, factor: float) -> None:
    assert factor_at((SignalPoint(1000.0, 5.0),), at) == factor
    assert factor_at((), at) == 1.0


@pytest.mark.parametrize(
    ("now", "horizon_s", "expected"),
    [(500.0, 1500.0, 30.0), (1500.0, 500.0, 15.0), (2000.0, 500.0, 10.0), (500.0, 100.0, 10.0)],
)
def test_a_forecast_rises_by_the_change_from_now(now: float, horizon_s: float, expected: float) -> None:
    found = with_signals({KEY: 10.0, OTHER: 5.0}, (MATCH,), {"match": POINTS}, now, horizon_s)
    assert found == {KEY: pytest.approx(expected), OTHER: 5.0}


def test_the_largest_signal_counts_and_no_response_changes_nothing() -> None:
    wide = DemandSignal("wide", "https://signal.example/", max_factor=2.0, origins=("eu-de", "eu-es"))
    found = with_signals({KEY: 1.0, OTHER: 1.0}, (MATCH, wide), {"match": POINTS, "wide": POINTS}, 500.0, 1500.0)
    assert found == {KEY: 3.0, OTHER: 2.0}
    assert with_signals({KEY: 1.0}, (MATCH,), {}, 500.0, 1500.0) == {KEY: 1.0}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"[]", "not valid"),
        (b"{}", "not valid"),
        (b'{"points": [{"at": 1, "factor": -1}]}', r"points\[0\].factor is not from 0 to 1e\+06"),
        (b'{"points": [{"at": 1, "factor": 1e300}]}', "factor is not"),
        (b'{"points": [{"at": 1, "factor": NaN}]}', "not valid"),
        (b'{"points": [{"at": 2, "factor": 1}, {"at": 2, "factor": 1}]}', r"points\[1\].at is not after"),
        (msgspec.json.encode({"points": [{"at": n, "factor": 1} for n in range(MAX_POINTS + 1)]}), "1001 points"),
        (b"[" * 100_000, "not valid"),
    ],
)
def test_an_invalid_response_is_refused_with_its_field(body: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_points(body)


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e6)), max_size=5, unique_by=lambda point: point[0]),
    st.floats(-1e9, 1e9),
    st.floats(0, 1e5),
)
def test_a_signal_never_lowers_a_forecast_and_never_raises_it_above_its_limit(
    points: list[tuple[float, float]], now: float, horizon_s: float
) -> None:
    body = msgspec.json.encode({"points": [{"at": at, "factor": factor} for at, factor in sorted(points)]})
    (rate,) = with_signals({KEY: 2.0}, (MATCH,), {"match": read_points(body)}, now, horizon_s).values()
    assert 2.0 <= rate <= 8.0
