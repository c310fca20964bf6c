"""Announced events raise forecasts before they begin, and nothing once measured demand contains them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.forecasting.announced_events import factor, with_events
from penstock.planning.share_moves import Key
from penstock.policy.kinds.operations import Event

KEY = Key("eu-de", "llama", "eu-de+eu-es")
LAUNCH = Event("launch", 1000.0, 600.0, 3.0, models=("llama",))


@pytest.mark.parametrize(
    ("now", "horizon_s", "expected"),
    [
        (0.0, 999.0, 10.0),
        (0.0, 1000.0, 30.0),
        (500.0, 800.0, 30.0),
        (500.0, 1100.0, 10.0),
        (1000.0, 100.0, 10.0),
        (5000.0, 100.0, 10.0),
    ],
)
def test_only_an_event_ahead_that_covers_the_time_counts(now: float, horizon_s: float, expected: float) -> None:
    assert with_events({KEY: 10.0}, (LAUNCH,), now, horizon_s) == {KEY: expected}


def test_events_are_limited_to_models_and_origins_and_the_largest_counts() -> None:
    larger = Event("larger", 900.0, 600.0, 5.0, origins=("eu-es",))
    events = (LAUNCH, larger)
    found = [factor(events, key, 0.0, 1100.0) for key in (KEY, KEY._replace(origin="eu-es"), KEY._replace(model="x"))]
    assert found == [3.0, 5.0, 1.0]


@pytest.mark.parametrize(("next_factor", "expected"), [(3.0, 10.0), (6.0, 20.0), (2.0, 10.0)])
@pytest.mark.parametrize("starts_at", [1300.0, 1600.0])
def test_an_event_after_another_counts_once(starts_at: float, next_factor: float, expected: float) -> None:
    """The measured rate contains the first: two days of a launch are no launch of nine times the demand."""
    following = Event("next", starts_at, 600.0, next_factor)
    assert with_events({KEY: 10.0}, (LAUNCH, following), 1200.0, 500.0) == {KEY: expected}
    assert with_events({KEY: 10.0}, (LAUNCH, following), 900.0, 800.0) == {KEY: 10.0 * next_factor}


@given(st.floats(0, 3000), st.floats(0, 3000), st.floats(1, 100))
def test_an_event_never_lowers_a_forecast_and_never_raises_it_above_its_factor(
    now: float, horizon_s: float, times: float
) -> None:
    (raised,) = with_events({KEY: 2.0}, (Event("e", 1500.0, 300.0, times),), now, horizon_s).values()
    assert 2.0 <= raised <= 2.0 * times
