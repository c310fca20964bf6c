"""The state of a forecast as it is stored, so that a new leader continues it."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.planning.forecasting.forecast import SEASONS, SERIES, WEEK_HOURS, Forecaster, SeriesState
from penstock.planning.share_moves import Key

MAX_SERIES = 8_000
"""Maximum number of stored series; those with the highest rates are stored."""

MAX_TEXT = 1_024
"""Maximum length of a name, in characters."""

MAX_RATE = 1e9
"""Largest valid rate (1/s) and mean."""

MAX_SQUARES = 1e21
"""Largest valid sum of squared changes."""

MAX_AHEAD_S = 60.0
"""Maximum time (s) by which a stored time may be ahead of the clock of the leader that reads it."""

FIELDS = tuple(name for name in SERIES.names or () if name not in ("part", "seasonal"))
"""The fields of a series that are numbers, in the order in which they are stored."""

SIGNED = ("season", "level", "trend", "smooth", "smooth_trend", "foreseen")
"""Fields that are rates or changes of rates, and may be negative."""

PROFILE_BYTES = 4 * SEASONS
WEEK_BYTES = 4 * WEEK_HOURS


class SavedSeries(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One series."""

    origin: str
    model: str
    residency: str
    part: int
    """The part of a day, counted from 1970, that is being averaged."""
    numbers: tuple[float, ...]
    """Values of FIELDS."""
    profile: bytes
    """Mean rate by part of a day, as little-endian 32-bit floats; NaN without a measurement. Empty for none at all."""
    week: bytes = b""
    """Mean deviation from the profile by hour of the week, as little-endian 32-bit floats. Empty if all are 0."""

    @property
    def key(self) -> Key:
        """The key of the series."""
        return Key(self.origin, self.model, self.residency)

    @property
    def values(self) -> dict[str, float]:
        """The numbers by field."""
        return dict(zip(FIELDS, self.numbers, strict=True))

    def is_possible(self, now: float) -> bool:
        """Whether the values are within their limits at `now` (Unix time, s)."""
        if len(self.numbers) != len(FIELDS):
            return False
        values = self.values
        return (
            all(isfinite(value) for value in self.numbers)
            and 0.0 < values["at"] <= now + MAX_AHEAD_S
            and all(0.0 <= values[name] <= MAX_RATE for name in ("newest", "sum", "count", "from_mean"))
            and all(abs(values[name]) <= MAX_RATE for name in SIGNED)
            and abs(values["products"]) <= MAX_SQUARES
            and 0.0 <= values["squares"] <= MAX_SQUARES
            and 0.0 <= values["due"] <= now
            and 0 <= self.part <= values["at"]
            and len(self.profile) in (0, PROFILE_BYTES)
            and len(self.week) in (0, WEEK_BYTES)
            and all(len(name) <= MAX_TEXT for name in self.key)
        )


def saved(forecaster: Forecaster, keys: Iterable[Key]) -> tuple[SavedSeries, ...]:
    """Return the state of the series with these keys, as far as the forecaster has them."""
    found = []
    for key in keys:
        state = forecaster.state_of(key)
        if state is None:
            continue
        series = state.series[0]
        numbers = tuple(float(series[name]) for name in FIELDS)
        profile = b"" if np.isnan(state.profile).all() else state.profile.astype("<f4").tobytes()
        week = state.week.astype("<f4").tobytes() if state.week.any() else b""
        found.append(SavedSeries(*key, int(series["part"]), numbers, profile, week))
    return tuple(found)


def restore(forecaster: Forecaster, series: Iterable[SavedSeries], now: float) -> int:
    """Give a forecaster without measurements the stored series; returns how many were impossible and left out.

    Args:
        now: Unix time, in seconds.
    """
    left_out = 0
    rows: dict[Key, SeriesState] = {}
    for each in series:
        if not each.is_possible(now) or len(rows) >= MAX_SERIES:
            left_out += 1
            continue
        row = np.zeros(1, SERIES)
        for name, value in each.values.items():
            row[name] = value
        profile = _means(each.profile, SEASONS, np.nan)
        row["part"], row["seasonal"] = each.part, not np.isnan(profile).any()
        # A leader with a slower clock would otherwise ignore measurements until its clock has caught up.
        row["at"] = min(float(row["at"][0]), now)
        rows[each.key] = SeriesState(row, profile, _means(each.week, WEEK_HOURS, 0.0))
    forecaster.restore(rows)
    return left_out


def _means(packed: bytes, count: int, without: float) -> NDArray[np.float32]:
    """Unpack stored means; `without` takes the place of those that are missing or impossible."""
    if not packed:
        return np.full(count, without, np.float32)
    means = np.frombuffer(packed, "<f4").astype(np.float32)
    means[~(np.abs(means) <= MAX_RATE)] = without
    return means


def by_rate(forecaster: Forecaster) -> list[Key]:
    """Return the keys to store: the MAX_SERIES series with the highest rates."""
    rates = forecaster.rates()
    return sorted(rates, key=lambda key: -rates[key])[:MAX_SERIES]
