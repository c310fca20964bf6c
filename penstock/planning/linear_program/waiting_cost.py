"""What waiting costs as a pool fills: convex, and piecewise linear so that a linear program can weigh it.

The number of requests that wait in a pool of n slots at utilisation u is taken as u^sqrt(2(n+1)) / (1-u), Sakasegawa's
approximation of M/M/n (Annals of the Institute of Statistical Mathematics 29, 1977), within some percent of Erlang C.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PIECES = 6
"""Four up to the target, one from there to every slot busy, one for what then still comes."""

BREAKS = (0.0, 0.5, 0.75, 0.9, 1.0)
"""Where the first pieces begin and end, as parts of the target utilisation."""

MAX_WAIT_S = 2.0
"""A piece costs no more than this (s) a request: past every round trip on Earth, waiting longer ranks nothing."""

MIN_WAIT_S = 0.001
"""Queueing is rounded to this (s), so that noise in service times does not change the prices."""


def waiting(utilisation: Floats, slots: Floats) -> Floats:
    """Mean number of requests that wait in a pool of `slots` at `utilisation` (0 to below 1)."""
    return utilisation ** np.sqrt(2.0 * (slots + 1.0)) / (1.0 - utilisation)


def pieces(slots: Floats, service_s: Floats, target_utilisation: float, weight: float) -> tuple[Floats, Floats]:
    """Width (requests/s) and cost (s a request) of each piece, by pool.

    Args:
        slots: by pool; one with none has pieces without width, the last included.
        target_utilisation: what a plan fills (0-1].
        weight: seconds of latency that one second of waiting is worth.
    """
    per_s = slots / service_s
    edges = target_utilisation * np.array(BREAKS)
    there = slots > 0.0
    widths = np.zeros((len(slots), PIECES))
    widths[:, :4] = per_s[:, None] * np.diff(edges)
    widths[:, 4] = per_s * (1.0 - target_utilisation)
    widths[there, 5] = np.inf
    queue = waiting(np.minimum(edges, 0.98)[None, :], slots[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.diff(queue, axis=1) / widths[:, :4]
    costs = np.zeros((len(slots), PIECES))
    costs[:, :4] = np.where(there[:, None], np.minimum(weight * slope, MAX_WAIT_S), 0.0)
    costs = np.maximum.accumulate(MIN_WAIT_S * np.round(costs / MIN_WAIT_S), axis=1)
    return widths, costs
