"""What must stay free so that the loss of any one region can be absorbed (N-1), within residency.

When region r is lost, what it served must go to other regions that its residency class permits, while everything else
stays. By Gale's theorem (A theorem on flows in networks, Pacific J. Math. 7, 1957) there is room for it unless, for
some set U of regions, those of r's classes that may only be in U, together with what U's other regions already serve,
are more than those regions can: the *excess* of U at the loss of r. Only unions of permitted sets that share r can be
worst, so with nested residency classes there are as many sets as classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.planning.linear_program.problem import Flags, Ints, Problem, summed
from penstock.planning.linear_program.waiting_cost import Floats

MAX_UNIONS = 64
"""Unions looked at for one region; nested and disjoint classes never need more than there are classes. Beyond it the
excess found is a lower bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Confinements:
    """The sets of pools that some of a model's demand cannot leave, and what is inside each."""

    pools: Flags
    """By (set, pool)."""
    inside: Flags
    """By (set, group): the group may only be in the set."""
    settled: Flags
    """By set: nobody from outside may enter, so that no plan changes its excess, only capacity does."""

    @property
    def max_confined(self) -> int:
        """How many losses one request more in a pool can make worse."""
        return int(self.pools[~self.settled].sum(axis=1).max(initial=0))


def confinements(permitted: Flags) -> Confinements:
    """The sets that matter, from which groups are permitted where (group by pool)."""
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
    """Requests per second without a place, by (set, lost region); -inf where the region is not in the set or dead.

    Args:
        by_group: flow by (group, pool), in requests per second.
        load_per_s: by pool.
        capacity_per_s: by pool, with every slot busy.
    """
    spare = capacity_per_s - load_per_s
    found: Floats = sets.inside.astype(np.float64) @ by_group - (sets.pools @ spare)[:, None] + spare[None, :]
    return np.where(sets.pools & (capacity_per_s > 0.0)[None, :], found, -np.inf)


def worst(sets: Confinements, by_group: Floats, load_per_s: Floats, capacity_per_s: Floats) -> Floats:
    """Requests per second without a place when a region is lost, by lost region; 0 where all of them have one."""
    lacking: Floats = excesses(sets, by_group, load_per_s, capacity_per_s).max(axis=0, initial=0.0)
    return lacking


def by_group(problem: Problem, key: Ints, pool: Ints, flow: Floats) -> Floats:
    """Flows by (key, pool) summed to flows by (group, pool)."""
    groups, pools = problem.shape.permitted.shape
    at = problem.shape.group_of[key] * pools + pool
    return summed(at, flow, groups * pools).reshape(groups, pools)


def _mask(row: list[bool]) -> int:
    return sum(1 << at for at, allowed in enumerate(row) if allowed)


def _unions(masks: tuple[int, ...]) -> set[int]:
    """Every union of one or more of `masks`, the smaller collections first, up to MAX_UNIONS of them."""
    found = set(masks)
    frontier = list(masks)
    while frontier and len(found) < MAX_UNIONS:
        grown = {union for one in frontier for mask in masks if (union := one | mask) not in found}
        frontier = sorted(grown)[: MAX_UNIONS - len(found)]
        found |= set(frontier)
    return found
