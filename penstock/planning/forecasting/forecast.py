"""Forecast of demand: level, damped trend, daily and weekly season of every series, updated with every measured rate.

Additive Holt-Winters (Winters, Management Science 6, 1960) with exponential weights by elapsed time, since measurements
come at irregular times (Wright, Management Science 32, 1986), and a damped trend (Gardner and McKenzie,
Management Science 31, 1985), since an undamped trend would overshoot after a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.planning.share_moves import Key

LEVEL_S = 10.0
"""Time constant (s) of the level."""

TREND_S = 90.0
"""Time constant (s) of the trend."""

DAMPING_S = 240.0
"""Time constant (s) with which a trend fades."""

SMOOTH_S = 60.0
"""Time constant (s) of the level for capacity: a burst of half a minute is over before an endpoint ordered for it
serves."""

SMOOTH_TREND_S = 300.0
"""Time constant (s) of the trend for capacity. A shorter one takes bursts for growth (`penstock-lab simulate-week`)."""

SMOOTH_DAMPING_S = 480.0
"""Time (s) after which the trend for capacity has its largest effect, and time constant with which it fades. Half an
hour ahead, what grew in the last minutes is no better a forecast than the level (`penstock-lab forecast-errors`)."""

SEASONS = 96
"""Parts of a day, of 15 minutes each."""

DAY_S = 86_400.0

SEASON_WEIGHT = 0.1
"""Weight (0-1) of the newest day in the mean of a part of the day."""

WEEK_HOURS = 168
"""Hours of a week, counted from Thursday 00:00 UTC as Unix time is."""

WEEK_WEIGHT = 0.3
"""Weight (0-1) of each part of a day in the mean deviation of its hour of the week from the day. The means begin at
0."""

COMPARED_PARTS = 8
"""Number of parts of a day (two hours) after which a change that the season foresaw is compared with demand."""

COMPARISON_WEIGHT = 0.99
"""Factor of the weight of earlier comparisons with each new one: half of all are of the last six days."""

MAX_GROWTH = 2.0
"""Maximum ratio of a forecast to the newest rate."""

SILENT_S = 60.0
"""Maximum age (s) of the last measurement of a series that has a forecast."""

FORGET_S = 3 * DAY_S
"""Age (s) of the last measurement above which a series is removed."""

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_PART_S = DAY_S / SEASONS
_HOUR_S = 3600.0
_PARTS_AN_HOUR = int(_HOUR_S / _PART_S)
SERIES = np.dtype(
    [
        ("at", "f8"),  # time of the last measurement (Unix time, s); NaN before the first
        ("newest", "f8"),
        ("season", "f8"),  # the seasonal part of the newest rate
        ("level", "f8"),  # smoothed rate without the seasonal part; the trend is its slope
        ("trend", "f8"),  # requests per second, per second
        ("part", "i8"),  # the part of a day, counted from 1970, that is being averaged
        ("sum", "f8"),
        ("count", "f8"),
        ("smooth", "f8"),  # level for capacity
        ("smooth_trend", "f8"),
        ("due", "f8"),  # the part of a day at whose end a foreseen change is compared
        ("from_mean", "f8"),  # mean rate from which that change was foreseen
        ("foreseen", "f8"),  # that change
        ("products", "f8"),  # sum of foreseen changes times real ones
        ("squares", "f8"),  # sum of squared foreseen changes
        ("seasonal", "?"),  # every part of a day has a mean
    ]
)


class SeriesState(NamedTuple):
    """The state of one series."""

    series: NDArray[np.void]
    """One record of SERIES."""
    profile: NDArray[np.float32]
    """Mean rate by part of a day; NaN without a measurement."""
    week: NDArray[np.float32]
    """Mean deviation from the profile by hour of the week."""


class Forecaster:
    """Keeps the state of all series; two forecasters with the same measurements return the same forecasts."""

    def __init__(self) -> None:
        self._row: dict[Key, int] = {}
        self._series = np.zeros(0, SERIES)
        self._profile = np.zeros((0, SEASONS), np.float32)
        """Mean rate by series and part of a day; NaN without a measurement."""
        self._week = np.zeros((0, WEEK_HOURS), np.float32)
        """Mean deviation from the profile by series and hour of the week."""
        self._pruned_in = 0

    def observe(self, rates: Mapping[Key, float], now: float) -> None:
        """Update every series with its measured rate.

        Args:
            rates: requests per second by key; a missing key has no measurement.
            now: Unix time, in seconds; not before that of the last call.
        """
        self._prune(now)
        self._add([key for key in rates if key not in self._row])
        rows = np.array([self._row[key] for key in rates], dtype=np.intp)
        seen = np.fromiter(rates.values(), dtype=np.float64, count=len(rates))
        new = np.isnan(self._series["at"][rows])
        self._begin(rows[new], seen[new], now)
        later = now > self._series["at"][rows]
        self._follow(rows[later], seen[later], now)

    def ahead(self, now: float, horizon_s: float) -> dict[Key, float]:
        """Expected requests per second by key, `horizon_s` seconds after `now`, of all series with a recent rate."""
        series = self._series
        age_s = now - series["at"]
        every = np.arange(len(series))
        season = self._season(every, now + horizon_s) - series["season"]
        # Based on the newest rate, since the level lags behind a step.
        rest = series["newest"] + series["trend"] * _effective_s(age_s + horizon_s)
        expected = np.clip(rest + season, 0.0, MAX_GROWTH * series["newest"]).tolist()
        recent = (age_s <= SILENT_S).tolist()
        return {key: expected[row] for key, row in self._row.items() if recent[row]}

    def for_capacity(self, now: float, horizon_s: float) -> dict[Key, float]:
        """As `ahead`, for horizons of minutes to hours: from smoothed rates, without the bursts of the newest ones."""
        series = self._series
        ahead_s = now - series["at"] + horizon_s
        trend = series["smooth_trend"] * ahead_s * np.exp(-ahead_s / SMOOTH_DAMPING_S)
        every = np.arange(len(series))
        season = self._season(every, now)
        # The part of the season's changes that came: a service without a regular day has a season of chance.
        share = np.divide(series["products"], series["squares"], out=np.zeros(len(series)), where=series["squares"] > 0)
        change = np.clip(share, 0.0, 1.0) * (self._season(every, now + horizon_s) - season)
        rest = series["smooth"] + trend + season + change
        # In proportion to the newest rate, so that there is no demand after the last request.
        expected = np.clip(rest, 0.0, MAX_GROWTH * series["newest"]).tolist()
        recent = (now - series["at"] <= SILENT_S).tolist()
        return {key: expected[row] for key, row in self._row.items() if recent[row]}

    def rates(self) -> dict[Key, float]:
        """The newest rate (1/s) of every series, by key."""
        newest = self._series["newest"].tolist()
        return {key: newest[row] for key, row in self._row.items()}

    def state_of(self, key: Key) -> SeriesState | None:
        """The state of one series; None for a key without a measurement."""
        row = self._row.get(key)
        return None if row is None else SeriesState(self._series[row : row + 1], self._profile[row], self._week[row])

    def restore(self, rows: Mapping[Key, SeriesState]) -> None:
        """Replace all series by these."""
        self._row = {key: at for at, key in enumerate(rows)}
        states = rows.values()
        self._series = np.concatenate([np.zeros(0, SERIES), *(state.series for state in states)])
        self._profile = np.array([state.profile for state in states], np.float32).reshape(len(rows), SEASONS)
        self._week = np.array([state.week for state in states], np.float32).reshape(len(rows), WEEK_HOURS)

    def _begin(self, rows: Rows, seen: Floats, now: float) -> None:
        series = self._series
        series["level"][rows] = series["smooth"][rows] = series["newest"][rows] = seen
        series["at"][rows], series["part"][rows] = now, int(now // _PART_S)

    def _follow(self, rows: Rows, seen: Floats, now: float) -> None:
        self._learn_season(rows, seen, now)
        series = self._series
        elapsed_s = now - series["at"][rows]
        before, trend = series["level"][rows], series["trend"][rows]
        expected = before + trend * _effective_s(elapsed_s)
        season = self._season(rows, now)
        level = expected + (1.0 - np.exp(-elapsed_s / LEVEL_S)) * (seen - season - expected)
        self._follow_smoothed(rows, seen - season, elapsed_s)
        faded = trend * np.exp(-elapsed_s / DAMPING_S)
        slope = (level - before) / elapsed_s
        series["trend"][rows] = faded + (1.0 - np.exp(-elapsed_s / TREND_S)) * (slope - faded)
        series["level"][rows], series["newest"][rows], series["at"][rows] = level, seen, now
        series["season"][rows] = season

    def _follow_smoothed(self, rows: Rows, rest: Floats, elapsed_s: Floats) -> None:
        """Update level and trend for capacity with the rates without season."""
        before, fade = self._series["smooth"][rows], np.exp(-elapsed_s / SMOOTH_DAMPING_S)
        faded = self._series["smooth_trend"][rows] * fade
        expected = before + faded * elapsed_s
        level = expected + (1.0 - np.exp(-elapsed_s / SMOOTH_S)) * (rest - expected)
        slope = (level - before) / elapsed_s
        self._series["smooth_trend"][rows] = faded + (1.0 - np.exp(-elapsed_s / SMOOTH_TREND_S)) * (slope - faded)
        self._series["smooth"][rows] = level

    def _learn_season(self, rows: Rows, seen: Floats, now: float) -> None:
        """Average the current part of the day; when it is over, mix it into the mean of that part of earlier days."""
        series, part = self._series, int(now // _PART_S)
        over = rows[(series["part"][rows] != part) & (series["count"][rows] > 0.0)]
        if len(over):
            at = series["part"][over] % SEASONS
            mean = series["sum"][over] / series["count"][over]
            known, hour = self._profile[over, at], series["part"][over] // _PARTS_AN_HOUR % WEEK_HOURS
            weekly = self._week[over, hour]
            before = self._season(over, now)
            self._week[over, hour] = weekly + np.where(np.isnan(known), 0.0, WEEK_WEIGHT * (mean - known - weekly))
            daily = mean - weekly
            self._profile[over, at] = np.where(np.isnan(known), mean, known + SEASON_WEIGHT * (daily - known))
            series["seasonal"][over] = ~np.isnan(self._profile[over]).any(axis=1)
            # The levels exclude the season, so a change of the season changes them by the opposite amount.
            changed = self._season(over, now) - before
            series["level"][over] -= changed
            series["smooth"][over] -= changed
            self._compare_change(
                over[series["part"][over] == part - 1], mean[series["part"][over] == part - 1], part - 1
            )
            series["sum"][over] = series["count"][over] = 0.0
        series["part"][rows] = part
        series["sum"][rows] += seen
        series["count"][rows] += 1.0

    def _compare_change(self, rows: Rows, mean: Floats, part: int) -> None:
        """Compare the change that the season foresaw with the means of a part that has ended, and foresee the next."""
        series = self._series
        due = rows[series["due"][rows] == part]
        foreseen = series["foreseen"][due]
        real = mean[series["due"][rows] == part] - series["from_mean"][due]
        series["products"][due] = COMPARISON_WEIGHT * series["products"][due] + foreseen * real
        series["squares"][due] = COMPARISON_WEIGHT * series["squares"][due] + foreseen**2
        free = series["seasonal"][rows] & (series["due"][rows] <= part)
        begun, middle_s = rows[free], (part + 0.5) * _PART_S
        series["due"][begun], series["from_mean"][begun] = part + COMPARED_PARTS, mean[free]
        later = self._season(begun, middle_s + COMPARED_PARTS * _PART_S)
        series["foreseen"][begun] = later - self._season(begun, middle_s)

    def _season(self, rows: Rows, when: float) -> Floats:
        """The seasonal part of demand, interpolated between the middles of the parts of a day, and of its hours."""
        drawn = _between(self._profile, rows, when / _PART_S) + _between(self._week, rows, when / _HOUR_S)
        return np.where(self._series["seasonal"][rows], drawn, 0.0)

    def _add(self, keys: list[Key]) -> None:
        if not keys:
            return
        for key in keys:
            self._row[key] = len(self._row)
        fresh = np.zeros(len(keys), SERIES)
        fresh["at"] = np.nan
        self._series = np.concatenate([self._series, fresh])
        self._profile = np.concatenate([self._profile, np.full((len(keys), SEASONS), np.nan, np.float32)])
        self._week = np.concatenate([self._week, np.zeros((len(keys), WEEK_HOURS), np.float32)])

    def _prune(self, now: float) -> None:
        """Remove series without recent measurements, once in every part of a day."""
        part = int(now // _PART_S)
        if part == self._pruned_in:
            return
        self._pruned_in = part
        kept = np.flatnonzero(now - self._series["at"] <= FORGET_S)
        names = list(self._row)
        self._row = {names[row]: at for at, row in enumerate(kept.tolist())}
        self._series, self._profile, self._week = self._series[kept], self._profile[kept], self._week[kept]


def _between(means: NDArray[np.float32], rows: Rows, at: float) -> Floats:
    """Interpolate cyclic means at a time in intervals; each mean stands for the middle of its interval."""
    left, along = divmod(at - 0.5, 1.0)
    first, second = int(left) % means.shape[1], (int(left) + 1) % means.shape[1]
    drawn: Floats = (1.0 - along) * means[rows, first] + along * means[rows, second]
    return drawn


def _effective_s(elapsed_s: Floats) -> Floats:
    """The time (s) after which an undamped trend has the effect of a damped trend after `elapsed_s`."""
    effective: Floats = DAMPING_S * (1.0 - np.exp(-elapsed_s / DAMPING_S))
    return effective
