"""The capacity that must stay free so that the loss of any one region can be absorbed (N-1), within residency.

When a region is lost, the flow that it served must go to other regions that its residency class permits, while all
other flow stays. By Gale's theorem (A theorem on flows in networks, Pacific J. Math. 7, 1957) it fits
unless, for some set U of capacity groups, the lost region's classes that may only be in U, together with the flow that
the other regions' groups in U already serve, exceed the capacity of those groups: the *excess* of U at the loss. Only
unions of permitted sets that contain the lost region can have the largest excess: with nested residency classes, as
many sets as there are classes. All other flow stays in its group, also where a group of the same region has room for
it; if models share slots, the excess is an upper bound for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.planning.linear_program.arrays import Flags, Floats, Ints

MAX_UNIONS = 64
"""Maximum number of unions considered for one region; nested and disjoint classes need no more unions than there are
classes. If there are more unions, the computed excess is a lower bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Confinements:
    """The sets of capacity groups that some demand may not leave, and the traffic classes confined to each."""

    groups: Flags
    """By (set, group)."""
    inside: Flags
    """By (set, class): the class may only be in the set."""
    affected: Flags
    """By (set, region): a class that is confined to the set may be in the region."""
    settled: Flags
    """By set: no other class may enter it, so its excess depends on capacity and demand, not on the plan."""
    pools_in: Floats
    """By (pool, region): 1 if the pool is in the region."""
    groups_in: Floats
    """By (group, region): 1 if the group is in the region."""

    @property
    def max_affected(self) -> int:
        """The largest number of losses that one more request in a region can make worse."""
        return int(self.affected[~self.settled].sum(axis=1).max(initial=0))

    def elsewhere(self, by_group: Floats) -> Floats:
        """By (set, region): the sum over the groups of the set in other regions."""
        one_each = self.groups_in.shape[0] == self.groups_in.shape[1]
        here = self.groups * by_group if one_each else self.groups @ (by_group[:, None] * self.groups_in)
        sums: Floats = (self.groups @ by_group)[:, None] - here
        return sums

    def serving(self, capacity_per_s: Floats) -> Flags:
        """By region: whether it has any capacity."""
        has_capacity: Flags = capacity_per_s @ self.groups_in > 0.0
        return has_capacity


def confinements(
    permitted: Flags,
    region_of: Ints | None = None,
    draws: tuple[Ints, Ints] | None = None,
    group_region: Ints | None = None,
) -> Confinements:
    """The sets that can have the largest excess.

    Args:
        permitted: by (class, pool), whether the class may use the pool.
        region_of: by pool, its region; None if every pool is in a region of its own.
        draws: (pool, group) pairs where the group is a part of the pool; None if every pool is one group.
        group_region: by group, its region; None if every group is in a region of its own.
    """
    pools = np.arange(permitted.shape[1])
    pool_region = pools if region_of is None else region_of
    place = pools if group_region is None else group_region
    in_group = permitted
    if draws is not None:
        part_of = np.zeros((len(pools), len(place)), np.bool_)
        part_of[draws] = True
        in_group = permitted @ part_of
    regions = int(place.max(initial=-1)) + 1
    groups_in, pools_in = np.eye(regions)[place], np.eye(regions)[pool_region]
    masks = sorted({mask for mask in (_mask(row) for row in in_group.tolist()) if mask})
    unions: set[int] = set()
    for region in range(regions):
        here = _mask((place == region).tolist())
        unions |= _unions(tuple(mask for mask in masks if mask & here))
    ordered = sorted(unions, key=lambda mask: (mask.bit_count(), mask))
    groups = np.array([[mask >> at & 1 for at in range(len(place))] for mask in ordered], dtype=np.bool_)
    groups = groups.reshape(len(ordered), len(place))
    reaches = groups.astype(np.intp) @ in_group.T.astype(np.intp)
    inside = reaches == in_group.sum(axis=1)[None, :]
    affected = inside @ permitted @ (pools_in > 0.0)
    return Confinements(groups, inside, affected, ((reaches == 0) | inside).all(axis=1), pools_in, groups_in)


def excesses(sets: Confinements, by_class: Floats, load_per_s: Floats, capacity_per_s: Floats) -> Floats:
    """Units per second that do not fit, by (set, lost region); -inf if the loss does not affect the set.

    Args:
        sets: the confinements.
        by_class: flow by (class, pool), in units per second.
        load_per_s: flow by group.
        capacity_per_s: by group, with every slot busy.
    """
    displaced = sets.inside.astype(np.float64) @ (by_class @ sets.pools_in)
    found: Floats = displaced - sets.elsewhere(capacity_per_s - load_per_s)
    return np.where(sets.affected & sets.serving(capacity_per_s)[None, :], found, -np.inf)


def worst(sets: Confinements, by_class: Floats, load_per_s: Floats, capacity_per_s: Floats) -> Floats:
    """Units per second that do not fit, by lost region. Arguments as for `excesses`."""
    lacking: Floats = excesses(sets, by_class, load_per_s, capacity_per_s).max(axis=0, initial=0.0)
    return lacking


def _mask(row: list[bool]) -> int:
    return sum(1 << at for at, allowed in enumerate(row) if allowed)


def _unions(masks: tuple[int, ...]) -> set[int]:
    """`masks` and further unions of them, the smaller collections first, up to MAX_UNIONS in all."""
    found = set(masks)
    frontier = list(masks)
    while frontier and len(found) < MAX_UNIONS:
        grown = {union for base in frontier for mask in masks if (union := base | mask) not in found}
        frontier = sorted(grown)[: MAX_UNIONS - len(found)]
        found |= set(frontier)
    return found
