"""Paired comparisons: ratios of contenders over the same seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import TypeVar

import msgspec

Value = TypeVar("Value")

RESAMPLES = 1000
CONFIDENCE = 0.95


class Target(msgspec.Struct, frozen=True):
    """A limit of a measurement, and the measured value."""

    name: str
    target: str
    """The limit as text, such as "<= 0.42"."""
    measured: float
    interval: tuple[float, float]
    """95 % bootstrap interval of the measured value over seeds."""
    kept: bool
    """Whether the measured value is within the target."""
    note: str = ""
    """The reference of the comparison, or the clairvoyant bound."""


def at_most(limit: float, name: str, ratios: tuple[float, tuple[float, float]], note: str = "") -> Target:
    """Return the target that a measured value is at most `limit`."""
    measured, interval = ratios
    return Target(name, f"<= {limit:g}", round(measured, 4), _rounded(interval), measured <= limit, note)


def at_least(limit: float, name: str, ratios: tuple[float, tuple[float, float]], note: str = "") -> Target:
    """Return the target that a measured value is at least `limit`."""
    measured, interval = ratios
    return Target(name, f">= {limit:g}", round(measured, 4), _rounded(interval), measured >= limit, note)


def ratio(values: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the ratio of two means over the same seeds, and its bootstrap interval."""
    assert len(values) == len(others), "seeds are paired"
    pairs = list(zip(values, others, strict=True))
    return _ratio(pairs), _interval([_ratio(sample) for sample in _resamples(pairs)])


def mean(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the mean over seeds, and its bootstrap interval."""
    return fmean(values), _interval([fmean(sample) for sample in _resamples(values)])


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    ours, theirs = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if theirs == 0.0:
        return 1.0 if ours == 0.0 else float("inf")
    return ours / theirs


def _resamples(values: Sequence[Value]) -> list[list[Value]]:
    rng = Random(1)
    return [rng.choices(values, k=len(values)) for _ in range(RESAMPLES)]


def _interval(values: list[float]) -> tuple[float, float]:
    values.sort()
    outside = int((1.0 - CONFIDENCE) / 2 * len(values))
    return values[outside], values[-1 - outside]


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)
