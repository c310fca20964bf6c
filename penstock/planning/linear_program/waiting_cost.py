"""The cost of waiting in a capacity group by its load: convex and piecewise linear, as a linear program needs it.

The mean number of waiting requests in a pool of n slots at utilisation u is u^sqrt(2(n+1)) / (1-u), Sakasegawa's
approximation of M/M/n (Annals of the Institute of Statistical Mathematics 29, 1977), within a few percent of Erlang C.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from penstock.planning.linear_program.arrays import Floats

Amount = TypeVar("Amount", float, Floats)

WAITING_PIECES = 4
"""Number of the pieces of a load up to the target, which differ in the cost of waiting."""

PIECES = WAITING_PIECES + 3
"""Number of all pieces: the others are from the target to full slots, beyond full slots in place of demand that yields,
and beyond that."""

BREAKS = (0.0, 0.5, 0.75, 0.9, 1.0)
"""The bounds of the first four pieces, as parts of the target utilisation."""

MAX_WAIT_S = 2.0
"""Maximum cost (s) per request of a piece: longer than any round trip on Earth, so a higher cost changes no ranking."""

MIN_WAIT_S = 0.001
"""Costs are rounded to multiples of this (s), so that noise in service times does not change them."""


def waiting(utilisation: Amount, slots: Amount) -> Amount:
    """Mean number of waiting requests in a pool of `slots` at `utilisation` (0 to below 1)."""
    requests: Amount = utilisation ** (2.0 * (slots + 1.0)) ** 0.5 / (1.0 - utilisation)
    return requests


def pieces(slots: Floats, service_s: Floats, target_utilisation: float, weight: float) -> tuple[Floats, Floats]:
    """Width (units/s) and cost (s per unit of work) of each piece, by capacity group; nothing yields.

    Args:
        slots: by group; all pieces of a group without slots have width 0.
        service_s: by group, the mean time (s) a unit of work holds a slot.
        target_utilisation: the utilisation (0-1] that a plan fills.
        weight: seconds of latency that one second of waiting is worth.
    """
    per_s = slots / service_s
    edges = target_utilisation * np.array(BREAKS)
    there = slots > 0.0
    widths = np.zeros((len(slots), PIECES))
    widths[:, :WAITING_PIECES] = per_s[:, None] * np.diff(edges)
    widths[:, WAITING_PIECES] = per_s * (1.0 - target_utilisation)
    widths[there, -1] = np.inf
    queue = waiting(np.minimum(edges, 0.98)[None, :], slots[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.diff(queue, axis=1) / widths[:, :WAITING_PIECES]
    costs = np.zeros((len(slots), PIECES))
    costs[:, :WAITING_PIECES] = np.where(there[:, None], np.minimum(weight * slope, MAX_WAIT_S), 0.0)
    costs = np.maximum.accumulate(MIN_WAIT_S * np.round(costs / MIN_WAIT_S), axis=1)
    return widths, costs
