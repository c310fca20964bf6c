"""Forecast of demand: level, damped trend and daily season of every series, updated with every measured rate.

Additive Holt-Winters (Winters, Management Science 6, 1960) with exponential weights by elapsed time, since measurements
come at irregular times (Wright, Management Science 32, 1986), and a damped trend (Gardner and McKenzie,
Management Science 31, 1985), since an undamped trend would overshoot after a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from penstock.planning.share_moves import Key

LEVEL_S = 10.0
"""Time constant (s) of the level."""

TREND_S = 90.0
"""Time constant (s) of the trend."""

DAMPING_S = 600.0
"""Time constant (s) with which a trend fades."""

SEASONS = 96
"""Parts of a day, of 15 minutes each."""

DAY_S = 86_400.0

SEASON_WEIGHT = 0.3
"""Weight (0-1) of the newest day in the mean of a part of the day."""

MAX_GROWTH = 2.0
"""Maximum ratio of a forecast to the newest rate."""

SILENT_S = 60.0
"""Maximum age (s) of the last measurement of a series that has a forecast."""

FORGET_S = 3 * DAY_S
"""Age (s) of the last measurement above which a series is removed."""

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_PART_S = DAY_S / SEASONS
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
        ("seasonal", "?"),  # every part of a day has a mean
    ]
)


class Forecaster:
    """Keeps the state of all series; two forecasters with the same measurements return the same forecasts."""

    def __init__(self) -> None:
        self._row: dict[Key, int] = {}
        self._series = np.zeros(0, SERIES)
        self._profile = np.zeros((0, SEASONS), np.float32)
        """Mean rate by series and part of a day; NaN without a measurement."""
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

    def rates(self) -> dict[Key, float]:
        """The newest rate (1/s) of every series, by key."""
        newest = self._series["newest"].tolist()
        return {key: newest[row] for key, row in self._row.items()}

    def state_of(self, key: Key) -> tuple[np.void, NDArray[np.float32]] | None:
        """The state of one series, and its mean rate by part of a day; None for a key without a measurement."""
        row = self._row.get(key)
        return None if row is None else (self._series[row], self._profile[row])

    def restore(self, rows: Mapping[Key, tuple[NDArray[np.void], NDArray[np.float32]]]) -> None:
        """Replace all series by these, each one record and its mean rate by part of a day."""
        self._row = {key: at for at, key in enumerate(rows)}
        self._series = np.concatenate([np.zeros(0, SERIES), *(series for series, _ in rows.values())])
        self._profile = np.array([profile for _, profile in rows.values()], np.float32).reshape(len(rows), SEASONS)

    def _begin(self, rows: Rows, seen: Floats, now: float) -> None:
        series = self._series
        series["level"][rows] = series["newest"][rows] = seen
        series["at"][rows], series["part"][rows] = now, int(now // _PART_S)

    def _follow(self, rows: Rows, seen: Floats, now: float) -> None:
        self._learn_season(rows, seen, now)
        series = self._series
        elapsed_s = now - series["at"][rows]
        before, trend = series["level"][rows], series["trend"][rows]
        expected = before + trend * _effective_s(elapsed_s)
        season = self._season(rows, now)
        level = expected + (1.0 - np.exp(-elapsed_s / LEVEL_S)) * (seen - season - expected)
        faded = trend * np.exp(-elapsed_s / DAMPING_S)
        slope = (level - before) / elapsed_s
        series["trend"][rows] = faded + (1.0 - np.exp(-elapsed_s / TREND_S)) * (slope - faded)
        series["level"][rows], series["newest"][rows], series["at"][rows] = level, seen, now
        series["season"][rows] = season

    def _learn_season(self, rows: Rows, seen: Floats, now: float) -> None:
        """Average the current part of the day; when it is over, mix it into the mean of that part of earlier days."""
        series, part = self._series, int(now // _PART_S)
        over = rows[(series["part"][rows] != part) & (series["count"][rows] > 0.0)]
        if len(over):
            at = series["part"][over] % SEASONS
            mean = series["sum"][over] / series["count"][over]
            known = self._profile[over, at]
            unexplained = series["level"][over] + self._season(over, now)
            self._profile[over, at] = np.where(np.isnan(known), mean, known + SEASON_WEIGHT * (mean - known))
            series["seasonal"][over] = ~np.isnan(self._profile[over]).any(axis=1)
            # The level excludes the season, so a change of the season changes the level by the opposite amount.
            series["level"][over] = unexplained - self._season(over, now)
            series["sum"][over] = series["count"][over] = 0.0
        series["part"][rows] = part
        series["sum"][rows] += seen
        series["count"][rows] += 1.0

    def _season(self, rows: Rows, when: float) -> Floats:
        """The seasonal part of demand, interpolated between the middles of the parts of a day."""
        left, along = divmod(when / _PART_S - 0.5, 1.0)
        first, second = int(left) % SEASONS, (int(left) + 1) % SEASONS
        drawn = (1.0 - along) * self._profile[rows, first] + along * self._profile[rows, second]
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

    def _prune(self, now: float) -> None:
        """Remove series without recent measurements, once in every part of a day."""
        part = int(now // _PART_S)
        if part == self._pruned_in:
            return
        self._pruned_in = part
        kept = np.flatnonzero(now - self._series["at"] <= FORGET_S)
        names = list(self._row)
        self._row = {names[row]: at for at, row in enumerate(kept.tolist())}
        self._series, self._profile = self._series[kept], self._profile[kept]


def _effective_s(elapsed_s: Floats) -> Floats:
    """The time (s) after which an undamped trend has the effect of a damped trend after `elapsed_s`."""
    effective: Floats = DAMPING_S * (1.0 - np.exp(-elapsed_s / DAMPING_S))
    return effective
