"""Errors of the demand forecast on the last week of real demand, beside those of naive forecasts.

Between the middles of the intervals of a trace, the forecaster is given interpolated rates, and nothing of later
intervals. All forecasts are of one interval's mean, at the same horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from penstock.planning.forecasting.forecast import DAY_S, Forecaster
from penstock.planning.share_moves import Key

WEEK_S = 7 * DAY_S

MEASURE_S = 60.0
"""Interval (s) of the rates that the forecaster is given."""

HORIZONS_S = (1800.0, 3600.0, 7200.0)

_KEY = Key("origin", "model", "everywhere")
_FOLDER = Path(__file__).parent.parent / "traces" / "weekly"


class Trace(msgspec.Struct, frozen=True):
    """Mean rates (requests/s) of consecutive intervals."""

    name: str
    interval_s: float
    rates: tuple[float, ...]

    @property
    def week(self) -> int:
        """Number of intervals of a week."""
        return int(WEEK_S / self.interval_s)


class Errors(msgspec.Struct, frozen=True):
    """Mean absolute errors over the last week, relative to its mean rate."""

    trace: str
    horizon_s: float
    forecast: float
    """Of Penstock's forecast."""
    last_week: float
    """Of the rate of a week before (seasonal naive)."""
    last_week_change: float
    """Of the newest rate, and the change of a week before over the same horizon."""
    newest: float
    """Of the newest rate (naive)."""


def real_traces() -> list[Trace]:
    """Return the traces of `lab/traces/weekly`, whose README names their sources."""
    intervals_s = {"servegen-m-small": 600.0, "servegen-m-large": 600.0, "nyc-taxi": 1800.0}
    return [
        Trace(name, interval_s, tuple(map(float, (_FOLDER / f"{name}.txt").read_text().split())))
        for name, interval_s in intervals_s.items()
    ]


def forecast_errors(trace: Trace, horizons_s: Sequence[float] = HORIZONS_S) -> list[Errors]:
    """Forecast each interval of the last week of a trace of at least two weeks; see the module for the rules."""
    rates, week = trace.rates, trace.week
    steps = {horizon_s: max(1, int(horizon_s / trace.interval_s)) for horizon_s in horizons_s}
    found = _forecasts(trace, set(steps.values()))
    held_out = range(len(rates) - week, len(rates))
    errors = []
    for horizon_s, ahead in steps.items():
        forecast = [found[at, ahead] for at in held_out]
        last_week = [rates[at - week] for at in held_out]
        newest = [rates[at - ahead] for at in held_out]
        change = [rates[at - week] - rates[max(0, at - week - ahead)] for at in held_out]
        changed = [max(0.0, rate + by) for rate, by in zip(newest, change, strict=True)]
        expected = (forecast, last_week, changed, newest)
        errors.append(Errors(trace.name, horizon_s, *(_error(rates[-week:], each) for each in expected)))
    return errors


def _forecasts(trace: Trace, steps: set[int]) -> dict[tuple[int, int], float]:
    """The forecast of each interval of the last week, by interval and number of intervals ahead."""
    forecaster, rates, found = Forecaster(), trace.rates, {}
    parts = int(trace.interval_s / MEASURE_S)
    for at in range(1, len(rates)):
        middle_s = (at + 0.5) * trace.interval_s
        for part in range(1, parts + 1):
            rate = rates[at - 1] + (rates[at] - rates[at - 1]) * part / parts
            forecaster.observe({_KEY: rate}, middle_s + (part - parts) * MEASURE_S)
        for ahead in steps:
            if len(rates) - trace.week <= at + ahead < len(rates):
                found[at + ahead, ahead] = forecaster.for_capacity(middle_s, ahead * trace.interval_s)[_KEY]
    return found


def _error(rates: Sequence[float], expected: Sequence[float]) -> float:
    return fmean(abs(rate - each) for rate, each in zip(rates, expected, strict=True)) / fmean(rates)
