"""The levels of demand that endpoints are counted for: smoothed rates, and peaks that fade.

A burst of half a minute is over before an endpoint that is ordered for it serves. It has to fit into the slots that
demand at the target utilisation leaves free, and into those of the peaks of the last hours.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import exp
from typing import Final, Generic, TypeVar

SMOOTH_S: Final = 60.0
"""Time constant (s) of smoothed demand."""

PEAK_S: Final = 3600.0
"""Time constant (s) with which a peak fades to the present demand: surges of production services come again within
hours (`penstock-lab simulate-week`)."""

AnyKey = TypeVar("AnyKey", bound=Hashable)


class Smoothed(Generic[AnyKey]):
    """Exponentially weighted means by elapsed time."""

    def __init__(self) -> None:
        self._means: dict[AnyKey, float] = {}
        self._at = 0.0

    def update(self, rates: Mapping[AnyKey, float], now: float) -> dict[AnyKey, float]:
        """The means (1/s) after these rates. A key that the last call had not begins with its rate, and a rate of 0 has
        the mean 0: the last endpoint would otherwise be kept for a mean of almost nothing.

        Args:
            rates: 1/s by key.
            now: Unix time, in seconds.
        """
        old = exp(-max(0.0, now - self._at) / SMOOTH_S)
        before = self._means
        self._means = {key: rate and rate + old * (before.get(key, rate) - rate) for key, rate in rates.items()}
        self._at = now
        return self._means


class Peaks(Generic[AnyKey]):
    """The highest rates, which fade to the present ones."""

    def __init__(self) -> None:
        self._peaks: dict[AnyKey, float] = {}
        self._at = 0.0

    def update(self, rates: Mapping[AnyKey, float], now: float) -> dict[AnyKey, float]:
        """The peaks (1/s) after these rates; arguments as for `Smoothed.update`."""
        old = exp(-max(0.0, now - self._at) / PEAK_S)
        self._peaks = {key: rate + old * max(0.0, self._peaks.get(key, rate) - rate) for key, rate in rates.items()}
        self._at = now
        return self._peaks
