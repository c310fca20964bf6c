"""Array types of the linear program, and two ways of looking numbers up in arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


def summed(at: Ints, amount: Floats, size: int) -> Floats:
    """Sums of amounts by place.

    Args:
        at: by amount, its place: 0 to `size` - 1.
        amount: what is added up.
        size: number of places.
    """
    return np.bincount(at, weights=amount, minlength=size).astype(np.float64, copy=False)


def located(known: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """The place of each wanted number in a sorted array.

    Args:
        known: distinct numbers in ascending order.
        wanted: the numbers to look up.

    Returns:
        By wanted number, its place, and whether it is in `known` at all; the place means nothing where it is not.
    """
    if not len(known):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at, known[at] == wanted
