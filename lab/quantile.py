"""The one way in which the lab reads quantiles off what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def quantile(values: Sequence[float], part: float) -> float | None:
    """The nearest-rank quantile, exact: the least value that `part` (0, 1] of all are not above; None of no values."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(part * len(values)) - 1)]
