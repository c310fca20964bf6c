"""Forecasts: steady demand stays, a trend continues for a while, a day repeats, and no data gives no forecast."""

from __future__ import annotations

from math import exp, isnan, nan, pi, sin
from random import Random

import pytest

from penstock.planning.forecasting.forecast import FORGET_S, Forecaster
from penstock.planning.share_moves import Key

MAX_GROWTH, SEASONS, WEEK_HOURS = 2.0, 96, 168
DAMPING_S, LEVEL_S, SEASON_WEIGHT, SILENT_S, TREND_S, WEEK_WEIGHT = 240.0, 10.0, 0.1, 60.0, 90.0, 0.3
SMOOTH_DAMPING_S, SMOOTH_S, SMOOTH_TREND_S = 480.0, 60.0, 300.0
DAY_S = 86_400.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEY, OTHER = Key("de", "m", "de+es"), Key("es", "m", "de+es")


def taught(rates: list[tuple[float, float]]) -> Forecaster:
    forecaster = Forecaster()
    for now, rate in rates:
        forecaster.observe({KEY: rate}, now)
    return forecaster


def test_what_is_steady_stays() -> None:
    forecaster = taught([(float(now), 7.0) for now in range(300)])
    assert forecaster.ahead(299.0, 30.0) == {KEY: pytest.approx(7.0)}


def test_nothing_is_known_before_anything_is_seen() -> None:
    assert Forecaster().ahead(0.0, 10.0) == {}


def test_a_ramp_continues() -> None:
    forecaster = taught([(float(now), 10.0 + 0.5 * now) for now in range(120)])
    ahead = forecaster.ahead(119.0, 10.0)[KEY]
    assert 10.0 + 0.5 * 119.0 < ahead <= 10.0 + 0.5 * 131.0


def test_a_step_is_not_taken_for_a_trend_that_lasts() -> None:
    forecaster = taught([(float(now), 10.0 if now < 60 else 30.0) for now in range(180)])
    assert forecaster.ahead(179.0, 10.0)[KEY] == pytest.approx(30.0, rel=0.1)
    highest = 0.0
    forecaster = taught([(float(now), 10.0) for now in range(60)])
    for now in range(60, 180):
        forecaster.observe({KEY: 30.0}, float(now))
        highest = max(highest, forecaster.ahead(float(now), 10.0)[KEY])
    assert highest < 30.0 * 1.35


def test_irregular_times_make_little_difference() -> None:
    rng = Random(1)
    times = sorted(rng.uniform(0.0, 200.0) for _ in range(150))
    even = taught([(float(now), 20.0 + 0.1 * now) for now in range(201)])
    uneven = taught([(now, 20.0 + 0.1 * now) for now in times] + [(200.0, 40.0)])
    assert uneven.ahead(200.0, 10.0)[KEY] == pytest.approx(even.ahead(200.0, 10.0)[KEY], rel=0.03)


def test_a_forecast_is_within_zero_and_its_bound() -> None:
    falling = taught([(float(now), max(0.0, 60.0 - now)) for now in range(62)])
    assert falling.ahead(61.0, 120.0)[KEY] >= 0.0
    rising = taught([(float(now), 1.0 + now**2) for now in range(30)])
    assert rising.ahead(29.0, 600.0)[KEY] <= MAX_GROWTH * (1.0 + 29.0**2)


def test_for_capacity_a_burst_of_seconds_fades_and_a_ramp_of_minutes_too() -> None:
    steady = [(float(now), 10.0) for now in range(600)]
    assert taught([*steady, (600.0, 30.0)]).for_capacity(600.0, 240.0)[KEY] == pytest.approx(10.0, rel=0.1)
    ramp = taught([*steady, *((600.0 + now, 10.0 + 0.05 * now) for now in range(300))])
    level = ramp.for_capacity(899.0, 1e6)[KEY]
    assert 22.0 < level < 25.0
    assert ramp.for_capacity(899.0, 240.0)[KEY] > 1.05 * 25.0
    assert ramp.for_capacity(899.0, 7200.0)[KEY] == pytest.approx(level, rel=0.01)
    rare = taught([(at, rate / 100.0) for at, rate in steady])
    assert rare.for_capacity(599.0, 240.0)[KEY] == pytest.approx(0.1, rel=0.01)
    ended = taught([*steady, (600.0, 0.0)])
    assert ended.for_capacity(600.0, 240.0) == {KEY: 0.0}


def daily(now: float) -> float:
    return 100.0 + 80.0 * sin(2 * pi * now / DAY_S)


def test_a_day_that_was_seen_is_expected_again() -> None:
    rng = Random(2)
    times = [300.0 * step for step in range(int(3 * DAY_S / 300.0))]
    forecaster = Forecaster()
    for now in times:
        # Another series is not known for a day yet, and so has no season.
        others = {OTHER: 3.0} if now > 2.5 * DAY_S else {}
        forecaster.observe({KEY: daily(now) * rng.uniform(0.97, 1.03), **others}, now)
    start, worst_seasonal, worst_naive = 3 * DAY_S, 0.0, 0.0
    for step in range(96):
        now = start + 900.0 * step
        forecaster.observe({KEY: daily(now), OTHER: 3.0}, now)
        ahead = forecaster.ahead(now, 3600.0)[KEY]
        worst_seasonal = max(worst_seasonal, abs(ahead - daily(now + 3600.0)))
        worst_naive = max(worst_naive, abs(daily(now) - daily(now + 3600.0)))
    assert worst_seasonal < 0.5 * worst_naive


def test_for_capacity_a_season_counts_as_far_as_it_came() -> None:
    rng, regular, chance = Random(4), Forecaster(), Forecaster()
    level = 100.0
    for step in range(int(4 * DAY_S / 300.0)):
        now = 300.0 * step
        level = min(200.0, max(50.0, level + rng.gauss(0.0, 3.0)))
        regular.observe({KEY: daily(now)}, now)
        chance.observe({KEY: level}, now)
    for ahead_s in (3600.0, 7200.0):
        assert regular.for_capacity(now, ahead_s)[KEY] == pytest.approx(daily(now + ahead_s), rel=0.1)
        assert chance.for_capacity(now, ahead_s)[KEY] == pytest.approx(chance.for_capacity(now, 60.0)[KEY], rel=0.1)


def test_a_weekend_that_was_seen_is_expected_again() -> None:
    def weekly(now: float) -> float:
        return daily(now) + 200.0 if now // DAY_S % 7 in (2, 3) else daily(now) + 400.0

    forecaster = Forecaster()
    for step in range(int(5 * 7 * DAY_S / 900.0)):
        forecaster.observe({KEY: weekly(900.0 * step)}, 900.0 * step)
    friday = (5 * 7 + 2) * DAY_S - 1800.0
    forecaster.observe({KEY: weekly(friday)}, friday)
    falls = forecaster.ahead(friday, 5400.0)[KEY] - weekly(friday)
    assert falls == pytest.approx(weekly(friday + 5400.0) - weekly(friday), rel=0.03)


def test_a_season_does_not_jump_when_it_is_first_known() -> None:
    forecaster = Forecaster()
    for step in range(int(1.5 * DAY_S / 300.0)):
        now = 300.0 * step
        forecaster.observe({KEY: daily(now)}, now)
        assert forecaster.ahead(now, 10.0)[KEY] == pytest.approx(daily(now), rel=0.12)


def test_a_silent_series_is_not_forecast_and_in_the_end_forgotten() -> None:
    forecaster = Forecaster()
    forecaster.observe({KEY: 5.0, OTHER: 6.0}, 0.0)
    forecaster.observe({OTHER: 6.0}, SILENT_S + 1.0)
    assert forecaster.ahead(SILENT_S + 1.0, 1.0) == {OTHER: pytest.approx(6.0)}
    forecaster.observe({OTHER: 6.0}, FORGET_S + 1.0)
    forecaster.observe({KEY: 1.0}, FORGET_S + 2.0)
    assert forecaster.ahead(FORGET_S + 2.0, 0.0) == {KEY: pytest.approx(1.0), OTHER: pytest.approx(6.0)}


def test_the_same_moment_twice_changes_nothing() -> None:
    forecaster = taught([(0.0, 5.0), (1.0, 6.0)])
    before = forecaster.ahead(1.0, 10.0)
    forecaster.observe({KEY: 500.0}, 1.0)
    assert forecaster.ahead(1.0, 10.0) == before


class Written:
    """The forecast of one series as the module's sources write it, number by number."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.level = self.trend = self.newest = self.newest_season = self.smooth = self.smooth_trend = 0.0
        self.means = [nan] * SEASONS
        self.week = [0.0] * WEEK_HOURS
        self.part, self.rates = 0, list[float]()
        self.due, self.mean, self.foreseen, self.products, self.squares = 0, 0.0, 0.0, 0.0, 0.0

    def season(self, when: float) -> float:
        if any(map(isnan, self.means)):
            return 0.0
        found = 0.0
        for means, middle in ((self.means, when / (DAY_S / SEASONS) - 0.5), (self.week, when / 3600.0 - 0.5)):
            left = int(middle // 1)
            along = middle - left
            found += (1.0 - along) * means[left % len(means)] + along * means[(left + 1) % len(means)]
        return found

    def observe(self, rate: float, now: float) -> None:
        part = int(now // (DAY_S / SEASONS))
        if self.at is None:
            self.level, self.newest, self.at, self.part = rate, rate, now, part
            self.smooth = rate
            return
        if part != self.part and self.rates:
            old, mean, before = self.means[self.part % SEASONS], sum(self.rates) / len(self.rates), self.season(now)
            hour = self.part // 4 % WEEK_HOURS
            weekly = self.week[hour]
            if not isnan(old):
                self.week[hour] += WEEK_WEIGHT * (mean - old - weekly)
            self.means[self.part % SEASONS] = mean if isnan(old) else old + SEASON_WEIGHT * (mean - weekly - old)
            self.level += before - self.season(now)
            self.smooth += before - self.season(now)
            if part == self.part + 1:
                self.compare(mean)
            self.rates = []
        self.part = part
        self.rates.append(rate)
        elapsed_s, season = now - self.at, self.season(now)
        expected = self.level + self.trend * DAMPING_S * (1.0 - exp(-elapsed_s / DAMPING_S))
        level = expected + (1.0 - exp(-elapsed_s / LEVEL_S)) * (rate - season - expected)
        faded = self.trend * exp(-elapsed_s / DAMPING_S)
        self.trend = faded + (1.0 - exp(-elapsed_s / TREND_S)) * ((level - self.level) / elapsed_s - faded)
        faded = self.smooth_trend * exp(-elapsed_s / SMOOTH_DAMPING_S)
        expected = self.smooth + faded * elapsed_s
        smooth = expected + (1.0 - exp(-elapsed_s / SMOOTH_S)) * (rate - season - expected)
        slope = (smooth - self.smooth) / elapsed_s
        self.smooth_trend = faded + (1.0 - exp(-elapsed_s / SMOOTH_TREND_S)) * (slope - faded)
        self.level, self.newest, self.newest_season, self.at, self.smooth = level, rate, season, now, smooth

    def compare(self, mean: float) -> None:
        if self.part == self.due:
            self.products = 0.99 * self.products + self.foreseen * (mean - self.mean)
            self.squares = 0.99 * self.squares + self.foreseen**2
        if self.part >= self.due and not any(map(isnan, self.means)):
            middle, self.due, self.mean = (self.part + 0.5) * 900.0, self.part + 8, mean
            self.foreseen = self.season(middle + 8 * 900.0) - self.season(middle)

    def ahead(self, now: float, horizon_s: float) -> float:
        assert self.at is not None
        effective_s = DAMPING_S * (1.0 - exp(-(now - self.at + horizon_s) / DAMPING_S))
        expected = self.newest + self.trend * effective_s + self.season(now + horizon_s) - self.newest_season
        return min(max(expected, 0.0), MAX_GROWTH * self.newest)

    def for_capacity(self, now: float, horizon_s: float) -> float:
        assert self.at is not None
        ahead_s = now - self.at + horizon_s
        trend = self.smooth_trend * ahead_s * exp(-ahead_s / SMOOTH_DAMPING_S)
        share = min(max(self.products / self.squares, 0.0), 1.0) if self.squares else 0.0
        season = self.season(now) + share * (self.season(now + horizon_s) - self.season(now))
        return min(max(self.smooth + trend + season, 0.0), MAX_GROWTH * self.newest)


@pytest.mark.parametrize(("step_s", "steps"), [(7.0, 60), (290.0, 700)], ids=["within minutes", "over two days"])
def test_forecasts_are_those_of_the_written_formulas(step_s: float, steps: int) -> None:
    rng, written, forecaster = Random(3), Written(), Forecaster()
    now = 5000.0
    for step in range(steps):
        rate = daily(now) + 2.0 * step + rng.uniform(-5.0, 5.0)
        forecaster.observe({OTHER: 3.0, KEY: rate}, now)
        written.observe(rate, now)
        if step % 9 == 0:
            for horizon_s in (0.0, 30.0, 700.0):
                ahead = forecaster.ahead(now + 3.0, horizon_s)
                assert ahead[KEY] == pytest.approx(written.ahead(now + 3.0, horizon_s), rel=1e-4)
                assert ahead[OTHER] == pytest.approx(3.0, rel=1e-4)
                later = forecaster.for_capacity(now + 3.0, horizon_s)
                assert later[KEY] == pytest.approx(written.for_capacity(now + 3.0, horizon_s), rel=1e-4)
        now += step_s * rng.uniform(0.5, 1.0)


def test_for_capacity_a_season_counts_by_the_written_comparisons() -> None:
    """Some of the season comes: neither none nor all of it counts, so each comparison changes the forecast."""
    rng, written, forecaster, now = Random(3), Written(), Forecaster(), 0.0
    while now < 3 * DAY_S:
        wave = (40.0 if now < DAY_S else 20.0) * sin(2.0 * pi * now / DAY_S)
        rate = 100.0 + wave + rng.uniform(-5.0, 5.0)
        forecaster.observe({KEY: rate}, now)
        written.observe(rate, now)
        if now > 2.5 * DAY_S:
            later = forecaster.for_capacity(now, 7_200.0)[KEY]
            assert later == pytest.approx(written.for_capacity(now, 7_200.0), rel=1e-5)
            assert 0.1 < written.products / written.squares < 0.9
        now += 850.0


def test_a_series_is_kept_until_it_is_old() -> None:
    for age_s, kept in ((FORGET_S, True), (FORGET_S + 1000.0, False)):
        forecaster = Forecaster()
        forecaster.observe({KEY: 5.0, OTHER: 1.0}, 0.0)
        forecaster.observe({OTHER: 1.0}, age_s)
        # A series that was kept follows the new rate; one that was removed begins with it.
        forecaster.observe({KEY: 50.0}, age_s + 1.0)
        forecaster.observe({KEY: 60.0}, age_s + 2.0)
        begun = taught([(age_s + 1.0, 50.0), (age_s + 2.0, 60.0)]).ahead(age_s + 2.0, 60.0)[KEY]
        assert (forecaster.ahead(age_s + 2.0, 60.0)[KEY] != pytest.approx(begun)) == kept


def test_a_silent_series_has_a_forecast_until_its_age_is_reached() -> None:
    forecaster = taught([(0.0, 5.0)])
    assert forecaster.ahead(SILENT_S, 0.0) == {KEY: pytest.approx(5.0)}
    assert forecaster.ahead(SILENT_S + 0.5, 0.0) == {}
