"""Arrival rates by model and residency class, smoothed over a few seconds.

An exponentially weighted rate, updated once per report: it follows a step in demand within about its time constant and
needs no history. The hot path increments a counter per request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import exp
from typing import Final, TypeVar

from penstock.policy.residency import ResidencyClass

TIME_CONSTANT_S: Final = 3.0
"""Time constant (s) of the rate, after which the rate has followed 63 % of a step in demand. With a shorter time, the
rate is mostly noise at a few requests per second."""

FORGET_BELOW_PER_S: Final = 0.01
"""Rate (1/s) below which a decayed rate is dropped."""

MAX_ROWS: Final = 1024
"""Maximum number of rows tracked at once: a row is a traffic class and a priority. Clients can choose lower priorities
than that of their tenant, so this limit also bounds what they can cause."""

MAX_NAMED: Final = 20 * MAX_ROWS
"""Maximum number of regions that all rows together name, above which no row is added for another priority: a report of
1,024 rows of a hundred regions would be too large for control planes."""

Row = tuple[str, str, int]
"""Model, name of the residency class, priority."""


class ArrivalRate:
    """Arrival rates of one traffic class. The owner increments the counts; `settle` converts them into rates."""

    def __init__(self, regions: tuple[str, ...]) -> None:
        """`regions` are the members of the residency class."""
        self.regions = regions
        self.arrived = 0
        """Requests with a priority since the last call of `settle`."""
        self.per_s = 0.0
        self.batch_arrived = 0
        """Batch requests since the last call of `settle`."""
        self.batch_per_s = 0.0

    def settle(self, elapsed_s: float, watched_s: float) -> None:
        """Updates the rate with the requests that arrived in the last `elapsed_s` seconds.

        Args:
            watched_s: time since counting began, in seconds. While it is short, the newest count weighs more, so that
                an agent that has just started reports its demand at once rather than after several time constants.
        """
        weight = (1.0 - exp(-elapsed_s / TIME_CONSTANT_S)) / (1.0 - exp(-watched_s / TIME_CONSTANT_S))
        self.per_s += weight * (self.arrived / elapsed_s - self.per_s)
        self.batch_per_s += weight * (self.batch_arrived / elapsed_s - self.batch_per_s)
        self.arrived = self.batch_arrived = 0

    def absorb(self, other: ArrivalRate) -> None:
        """Adds the requests of another traffic class or priority."""
        self.arrived += other.arrived
        self.per_s += other.per_s
        self.batch_arrived += other.batch_arrived
        self.batch_per_s += other.batch_per_s


class DemandRows:
    """Arrival rates by row. A full table merges the demand of a model, so that none of it is lost: priorities of one
    traffic class first, then classes.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self.rates: dict[Row, ArrivalRate] = {}
        self.merged = 0
        """Requests that count in the row of another priority or residency class of their model."""
        self.lost = 0
        """Requests that count in no row, because each row is of another model."""
        self._merged_into: dict[Row, ArrivalRate] = {}
        """Rates of the rows that the full table has no room for."""

    def of(self, model: str, residency: ResidencyClass, priority: int) -> ArrivalRate | None:
        """Returns the rate that one request of a row without a rate of its own counts in; creates it if possible."""
        row = (model, residency.name, priority)
        found = self._merged_into.get(row)
        if found is None:
            full = self._is_full(len(residency.regions))
            nearest = self._nearest(row, residency.regions) if full else None
            if not full or self._make_room(row, nearest):
                found = self.rates[row] = ArrivalRate(tuple(sorted(residency.regions)))
                return found
            if nearest is None:
                self.lost += 1
                return None
            found = self.rates[nearest]
            if len(self._merged_into) < self._max_rows:
                self._merged_into[row] = found
        self.merged += 1
        return found

    def settle(self, elapsed_s: float, watched_s: float) -> None:
        """Updates the rates with the last `elapsed_s` seconds, and drops negligible ones."""
        settle_all(self.rates, elapsed_s, watched_s)
        if self._merged_into and not self._is_full(max([len(rate.regions) for rate in self.rates.values()], default=0)):
            self._merged_into.clear()

    def _is_full(self, regions: int) -> bool:
        """Whether there is no room for another row, which names this number of regions."""
        named = regions + sum([len(rate.regions) for rate in self.rates.values()])
        return len(self.rates) >= self._max_rows or named > MAX_NAMED

    def _make_room(self, row: Row, nearest: Row | None) -> bool:
        """Merges two rows of one class if `row` is of a new class, or of one model if `row` is of a new model; returns
        whether a row is free."""
        if nearest is not None and nearest[1] == row[1]:
            return False
        classes = Counter(each[:2] for each in self.rates)
        spare = [each for each in self.rates if classes[each[:2]] > 1]
        if not spare and nearest is None:
            models = Counter(each[0] for each in self.rates)
            spare = [each for each in self.rates if models[each[0]] > 1]
        if not spare:
            return False
        smallest = min(spare, key=lambda each: self.rates[each].per_s + self.rates[each].batch_per_s)
        rate = self.rates.pop(smallest)
        nearest = self._nearest(smallest, rate.regions)
        assert nearest is not None
        self.rates[nearest].absorb(rate)
        self._merged_into = {key: into for key, into in self._merged_into.items() if into is not rate}
        return True

    def _nearest(self, row: Row, regions: Collection[str]) -> Row | None:
        """Returns the row of the same model whose permitted regions, and then whose priority, are most like those of
        `row`; None without a row of the model."""
        model, residency, priority = row
        best: tuple[float, int, Row] | None = None
        for each, rate in self.rates.items():
            if each[0] != model:
                continue
            likeness = 1.0
            if each[1] != residency:
                shared = len(set(regions).intersection(rate.regions))
                likeness = shared / (len(regions) + len(rate.regions) - shared)
            candidate = (likeness, -abs(each[2] - priority), each)
            if best is None or candidate > best:
                best = candidate
        return None if best is None else best[2]


_Key = TypeVar("_Key")


def settle_all(rates: dict[_Key, ArrivalRate], elapsed_s: float, watched_s: float) -> None:
    """Updates all rates with the last `elapsed_s` seconds, and drops negligible ones."""
    for key, rate in list(rates.items()):
        rate.settle(elapsed_s, watched_s)
        if rate.per_s + rate.batch_per_s < FORGET_BELOW_PER_S:
            del rates[key]
