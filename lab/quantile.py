"""Quantiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def quantile(values: Sequence[float], part: float) -> float | None:
    """Return the nearest-rank quantile: the smallest value that at least `part` (0, 1] of the values do not exceed.

    None if there are no values.
    """
    if not values:
        return None
    return sorted(values)[max(0, ceil(part * len(values)) - 1)]
