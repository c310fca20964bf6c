"""Array types of the linear program, and two lookup functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


def summed(at: Ints, amount: Floats, size: int) -> Floats:
    """Sums of amounts by index.

    Args:
        at: by amount, its index: 0 to `size` - 1.
        amount: the amounts.
        size: length of the result.
    """
    return np.bincount(at, weights=amount, minlength=size).astype(np.float64, copy=False)


def located(known: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """The index of each wanted number in a sorted array.

    Args:
        known: distinct numbers in ascending order.
        wanted: the numbers to look up.

    Returns:
        By wanted number, its index, and whether `known` contains it; the index is undefined if not.
    """
    if not len(known):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at, known[at] == wanted
