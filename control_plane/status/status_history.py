"""The last 15 minutes of regions, pools and objectives, for the plots of the page; longer histories are Prometheus's.

The leader samples its snapshot; a new leader begins with an empty history.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from math import isnan, nan

import msgspec

from control_plane.status.status import PoolStatus, RegionStatus
from penstock.policy.service_objective import Measure

INTERVAL_S = 10.0
"""Time (s) between two samples."""

SAMPLES = 90
"""Maximum number of samples."""

MAX_SERIES = 20_000
"""Maximum number of series; each takes 0.5 kB. Further ones are not kept."""


class HistoryMeasure(StrEnum):
    """What a series has values of."""

    DEMAND = "demand"
    """Requests/s of the region's clients."""
    LOAD = "load"
    """Share (0-1) of slots that are busy."""
    WAITING = "waiting"
    """Requests in admission queues."""
    ATTAINED_FIRST_BYTE = "attained_first_byte"
    """Share (0-1) of the streams of five minutes that began within the limit of the model's objective."""
    ATTAINED_TOTAL = "attained_total"
    """Share (0-1) of the other requests of five minutes that ended within the limit of the model's objective."""


_ATTAINED = {
    Measure.FIRST_BYTE: HistoryMeasure.ATTAINED_FIRST_BYTE,
    Measure.TOTAL: HistoryMeasure.ATTAINED_TOTAL,
}

Key = tuple[str, HistoryMeasure, str]
"""Region (empty: the fleet), measure, and model (empty: all models)."""


class Series(msgspec.Struct, frozen=True):
    """The values of one measure, one for each time of the history."""

    region: str
    """Empty for the fleet."""
    measure: HistoryMeasure
    model: str
    """Empty for all models."""
    values: tuple[float | None, ...]
    """Oldest first; null where there was no value."""


class RecentHistory(msgspec.Struct, frozen=True):
    """Series of the last 15 minutes."""

    at: tuple[float, ...]
    """Unix times (s) of the samples, oldest first."""
    series: tuple[Series, ...]


class StatusHistory:
    """Keeps samples of the status of regions, at most `SAMPLES` of at most `MAX_SERIES` series."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=SAMPLES)
        self._series: dict[Key, array[float]] = {}

    def add(self, at: float, regions: Iterable[RegionStatus]) -> None:
        """Append a sample.

        Args:
            at: Unix time, in seconds.
            regions: every region.
        """
        found = dict(_values(tuple(regions)))
        self._at.append(at)
        for key in [*self._series, *(key for key in found if key not in self._series)]:
            values = self._series.get(key)
            if values is None:
                if len(self._series) >= MAX_SERIES:
                    continue
                values = self._series[key] = array("f", [nan] * (len(self._at) - 1))
            values.append(found.get(key, nan))
            del values[: -len(self._at)]
            if all(map(isnan, values)):
                del self._series[key]

    def clear(self) -> None:
        """Discard all samples."""
        self._at.clear()
        self._series.clear()

    def prepared(self, region: str | None) -> Callable[[], RecentHistory]:
        """Return a function, to be called in any thread, that returns the series of now.

        Args:
            region: its series; None for those of the fleet, and of regions all except pools.
        """
        at = tuple(self._at)
        found = [
            (key, values[:])
            for key, values in self._series.items()
            if key[0] == region or (region is None and (not key[0] or not key[2] or key[1] in _ATTAINED.values()))
        ]
        return lambda: RecentHistory(at, tuple(_series(key, values) for key, values in sorted(found)))


def _series(key: Key, values: array[float]) -> Series:
    return Series(*key, tuple(None if isnan(value) else round(value, 3) for value in values))


def _values(regions: tuple[RegionStatus, ...]) -> Iterator[tuple[Key, float]]:
    for region in regions:
        yield (region.name, HistoryMeasure.DEMAND, ""), sum(each.requests_per_s for each in region.demand)
        yield (region.name, HistoryMeasure.WAITING, ""), float(sum(each.waiting for each in region.spillover))
        yield from _load(region.name, "", _counted_once(region.pools))
        for pool in region.pools:
            yield from _load(region.name, pool.model, (pool,))
        for objective in region.objectives:
            if objective.attained is not None:
                yield (region.name, _ATTAINED[objective.measure], objective.model), objective.attained
    yield ("", HistoryMeasure.DEMAND, ""), sum(each.requests_per_s for region in regions for each in region.demand)
    yield from _load("", "", [pool for region in regions for pool in _counted_once(region.pools)])
    by_model: dict[str, list[PoolStatus]] = {}
    for pool in (pool for region in regions for pool in region.pools):
        by_model.setdefault(pool.model, []).append(pool)
    for model, pools in by_model.items():
        yield from _load("", model, pools)


def _load(region: str, model: str, pools: Iterable[PoolStatus]) -> Iterator[tuple[Key, float]]:
    rows = tuple(pools)
    slots = sum(pool.slots for pool in rows)
    if slots:
        yield (region, HistoryMeasure.LOAD, model), sum(pool.in_flight for pool in rows) / slots


def _counted_once(pools: Iterable[PoolStatus]) -> list[PoolStatus]:
    """Return one pool of those that share their slots."""
    counted: set[str] = set()
    found = []
    for pool in pools:
        if pool.model not in counted:
            found.append(pool)
            counted.update(pool.shares_slots_with)
    return found
