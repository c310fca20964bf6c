"""A stored forecast continues where it was, and whatever is stored, no series is impossible."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.forecasting import forecast_state
from penstock.planning.forecasting.forecast import Forecaster
from penstock.planning.forecasting.forecast_state import (
    FIELDS,
    PROFILE_BYTES,
    WEEK_BYTES,
    SavedSeries,
    by_rate,
    restore,
    saved,
)
from penstock.planning.share_moves import Key

DAY_S = 86_400.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEY = Key("eu-de", "m", "eu-de+eu-es")
OTHER = Key("eu-es", "m", "eu-de+eu-es")
START = 1_700_000_000.0


def taught(days: float = 2.0) -> tuple[Forecaster, float]:
    forecaster, now = Forecaster(), START
    while now < START + days * DAY_S:
        hour = now % DAY_S / 3600
        forecaster.observe({KEY: 10.0 + (8.0 if 9 <= hour < 17 else 0.0), OTHER: 3.0}, now)
        now += 300.0
    return forecaster, now - 300.0


def handed_over(forecaster: Forecaster, now: float) -> Forecaster:
    stored = msgspec.json.encode(saved(forecaster, by_rate(forecaster)))
    after = Forecaster()
    assert restore(after, msgspec.json.decode(stored, type=tuple[SavedSeries, ...]), now) == 0
    return after


@pytest.mark.parametrize("days", [0.1, 1.5, 3.0])
def test_a_restored_forecast_is_the_same_now_and_after_more_measurements(days: float) -> None:
    before, now = taught(days)
    after = handed_over(before, now + 4.0)
    for _ in range(3):
        for ahead_s in (10.0, 3600.0, 6 * 3600.0):
            assert after.ahead(now, ahead_s) == pytest.approx(before.ahead(now, ahead_s), rel=1e-5)
        now += 300.0
        for forecaster in (before, after):
            forecaster.observe({KEY: 11.0, OTHER: 4.0, Key("x", "y", "z"): 1.0}, now)


def test_a_series_with_one_measurement_is_restored() -> None:
    forecaster = Forecaster()
    forecaster.observe({KEY: 3.0}, START)
    assert [(each.profile, each.week) for each in saved(forecaster, [KEY])] == [(b"", b"")]
    assert handed_over(forecaster, START).rates() == {KEY: 3.0}


def test_the_series_with_the_highest_rates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_state, "MAX_SERIES", 1)
    forecaster, _ = taught(0.1)
    assert by_rate(forecaster) == [KEY]
    assert [each.key for each in saved(forecaster, by_rate(forecaster))] == [KEY]


def test_a_clock_behind_that_of_the_last_leader_ignores_no_measurement() -> None:
    before, now = taught(0.1)
    after = handed_over(before, now - 30.0)
    after.observe({KEY: 500.0}, now - 29.0)
    assert after.rates()[KEY] == 500.0


def test_a_clock_may_be_a_minute_behind_that_of_the_last_leader() -> None:
    assert restore(Forecaster(), [series(at=START + 60.0)], START) == 0


def series(**fields: float) -> SavedSeries:
    usual = {"at": START, "newest": 1.0, "season": 0.0, "level": 1.0, "trend": 0.0, "sum": 1.0, "count": 1.0}
    usual |= {"smooth": 1.0} | dict.fromkeys(FIELDS[8:], 0.0)
    return SavedSeries(*KEY, 5, tuple((usual | fields)[name] for name in FIELDS), b"")


@pytest.mark.parametrize(
    "impossible",
    [
        series(at=START + 61.0),
        series(at=-1.0),
        series(newest=-1.0),
        series(level=inf),
        series(trend=nan),
        series(smooth_trend=nan),
        series(squares=-1.0),
        series(products=inf),
        series(count=1e12),
        msgspec.structs.replace(series(), numbers=(1.0,)),
        msgspec.structs.replace(series(), profile=b"x"),
        msgspec.structs.replace(series(), week=b"x"),
        msgspec.structs.replace(series(), part=-1),
        msgspec.structs.replace(series(), model="m" * 5000),
    ],
)
def test_impossible_series_are_left_out(impossible: SavedSeries) -> None:
    forecaster = Forecaster()
    assert restore(forecaster, [impossible, msgspec.structs.replace(series(), origin="eu-es")], START) == 1
    assert [key.origin for key in forecaster.rates()] == ["eu-es"]


@given(
    numbers=st.lists(st.floats(), min_size=len(FIELDS), max_size=len(FIELDS)),
    profile=st.binary(min_size=PROFILE_BYTES, max_size=PROFILE_BYTES) | st.just(b""),
    week=st.binary(min_size=WEEK_BYTES, max_size=WEEK_BYTES) | st.just(b""),
    part=st.integers(-5, 10**12),
)
def test_whatever_is_stored_forecasts_are_finite_and_not_negative(
    numbers: list[float], profile: bytes, week: bytes, part: int
) -> None:
    forecaster = Forecaster()
    restore(forecaster, [SavedSeries(*KEY, part, tuple(numbers), profile, week)], START)
    for _ in range(2):
        forecaster.observe({KEY: 2.0}, START + 10.0)
        for ahead_s in (1.0, 3600.0, DAY_S):
            for expected in (forecaster.ahead(START + 10.0, ahead_s), forecaster.for_capacity(START + 10.0, ahead_s)):
                assert all(0.0 <= rate <= 1e10 for rate in expected.values())
