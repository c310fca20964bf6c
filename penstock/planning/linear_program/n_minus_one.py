"""The capacity that must stay free so that the loss of any one region can be absorbed (N-1), within residency.

When a region is lost, the flow that it served must go to other regions that its residency class permits, while all
other flow stays. By Gale's theorem (A theorem on flows in networks, Pacific J. Math. 7, 1957) it fits
unless, for some set U of regions, the lost region's classes that may only be in U, together with the flow that the
other regions of U already serve, exceed the capacity of those other regions: the *excess* of U at the loss. Only unions
of permitted sets that contain the lost region can have the largest excess: with nested residency classes, as many sets
as there are classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.planning.linear_program.arrays import Flags, Floats

MAX_UNIONS = 64
"""Unions considered for one region; nested and disjoint classes never need more than there are classes. Beyond this
number the excess found is a lower bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Confinements:
    """The sets of pools that some of a model's demand may not leave, and the groups confined to each."""

    pools: Flags
    """By (set, pool)."""
    inside: Flags
    """By (set, group): the group may only be in the set."""
    settled: Flags
    """By set: no other group may enter it, so its excess depends on capacity and demand, not on the plan."""

    @property
    def max_affected(self) -> int:
        """The largest number of losses that one more request in a pool can make worse."""
        return int(self.pools[~self.settled].sum(axis=1).max(initial=0))


def confinements(permitted: Flags) -> Confinements:
    """The sets that can have the largest excess.

    Args:
        permitted: by (group, pool), whether the group may use the pool.
    """
    masks = sorted({mask for mask in (_mask(row) for row in permitted.tolist()) if mask})
    unions: set[int] = set()
    for pool in range(permitted.shape[1]):
        unions |= _unions(tuple(mask for mask in masks if mask >> pool & 1))
    ordered = sorted(unions, key=lambda mask: (mask.bit_count(), mask))
    pools = np.array([[mask >> at & 1 for at in range(permitted.shape[1])] for mask in ordered], dtype=np.bool_)
    pools = pools.reshape(len(ordered), permitted.shape[1])
    reaches = pools.astype(np.intp) @ permitted.T.astype(np.intp)
    inside = reaches == permitted.sum(axis=1)[None, :]
    return Confinements(pools, inside, ((reaches == 0) | inside).all(axis=1))


def excesses(sets: Confinements, by_group: Floats, load_per_s: Floats, capacity_per_s: Floats) -> Floats:
    """Requests per second that do not fit, by (set, lost pool); -inf if the pool is not in the set or has failed.

    Args:
        sets: the model's confinements.
        by_group: flow by (group, pool), in requests per second.
        load_per_s: flow by pool.
        capacity_per_s: by pool, with every slot busy.
    """
    spare = capacity_per_s - load_per_s
    found: Floats = sets.inside.astype(np.float64) @ by_group - (sets.pools @ spare)[:, None] + spare[None, :]
    return np.where(sets.pools & (capacity_per_s > 0.0)[None, :], found, -np.inf)


def worst(sets: Confinements, by_group: Floats, load_per_s: Floats, capacity_per_s: Floats) -> Floats:
    """Requests per second that do not fit, by lost pool. Arguments as for `excesses`."""
    lacking: Floats = excesses(sets, by_group, load_per_s, capacity_per_s).max(axis=0, initial=0.0)
    return lacking


def _mask(row: list[bool]) -> int:
    return sum(1 << at for at, allowed in enumerate(row) if allowed)


def _unions(masks: tuple[int, ...]) -> set[int]:
    """Every union of one or more of `masks`, the smaller collections first, up to MAX_UNIONS of them."""
    found = set(masks)
    frontier = list(masks)
    while frontier and len(found) < MAX_UNIONS:
        grown = {union for base in frontier for mask in masks if (union := base | mask) not in found}
        frontier = sorted(grown)[: MAX_UNIONS - len(found)]
        found |= set(frontier)
    return found
