"""What one tick asks of the planner, model by model, as arrays: nothing but its model's pools couples two demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.planning.linear_program.waiting_cost import Floats
from penstock.planning.share_moves import Key

Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What does not change while the same classes ask and the same regions have the model."""

    model: str
    keys: tuple[Key, ...]
    pools: tuple[str, ...]
    """Regions that have, or lately had, the model; sorted."""
    groups: tuple[str, ...]
    """Names of the residency classes, as far as overrides leave them open."""
    permitted: Flags
    """Group by pool: absent means absent; no column of the program stands for a forbidden arc."""
    group_of: Ints
    """By key."""
    origin_of: Ints
    """By key: its place in `Distances.names`."""
    pool_at: Ints
    """By pool: its place in `Distances.names`."""

    def same_as(
        self, keys: tuple[Key, ...], pools: tuple[str, ...], groups: Mapping[str, frozenset[str]], group_of: Ints
    ) -> bool:
        """Whether this is still the shape of what is asked."""
        return (
            self.keys == keys
            and self.pools == pools
            and self.groups == tuple(groups)
            and np.array_equal(self.group_of, group_of)
            and all(
                {pool for pool, allowed in zip(pools, row, strict=True) if allowed} == groups[name] & set(pools)
                for name, row in zip(self.groups, self.permitted.tolist(), strict=True)
            )
        )


RETURNS = 0.1
"""Going home costs this part of what other changes cost: hardly anything, but of two equal answers the one in which
fewer classes move is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The part of the plan in force that can stay: flows by (key, pool), and which keys have any plan."""

    key: Ints
    pool: Ints
    share: Floats
    planned: Flags
    """By key."""

    def stays_per_s(self, demand: Floats) -> Floats:
        """How much of each flow is no change: as much of what is asked for now as is in force."""
        stays: Floats = demand[self.key] * self.share
        return stays


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One model's demand, pools and prices; latency in seconds, flow in requests per second, cost their product."""

    shape: Shape
    demand: Floats
    """By key; 0 where no permitted region is alive."""
    slots: Floats
    """By pool; 0 where it is not alive."""
    service_s: Floats
    most: Floats
    """By pool: the most (0-1) of a key's demand that it may have; less than all on a failback ramp."""
    capped: Flags
    """By key: some permitted pool may have all of it, so that the others keep to their ramps."""
    target_utilisation: float
    reach_s: Floats
    """By (place of an origin, pool): the round trip, what moving the bytes costs, and a whiff that settles ties."""
    egress_s: Floats
    """The part of it that is for moving the bytes."""
    gpu_s: Floats
    """By pool, what its GPU time costs."""
    piece_per_s: Floats
    """By (pool, piece of its utilisation): how many requests per second fit; the last takes any number."""
    piece_cost_s: Floats
    """What each of them adds in queueing; no meaning for the pieces past the target, which `prices` prices."""
    home: Ints
    """By key: the nearest permitted pool that is alive, or -1."""
    origin: Ints
    """By key: the pool of its origin, or -1 where that may not serve it, or has not got the model."""
    kept: Floats
    """By key: the least (0-1) of its demand that its origin serves, by the limits of spillover."""
    held: Held
    change_s: float
    survive_one_loss: bool

    @property
    def capacity_per_s(self) -> Floats:
        """By pool: requests per second that it serves with every slot busy."""
        return self.slots / self.service_s

    def changing_s(self, key: Ints, pool: Ints) -> Floats:
        """For each pair: what it costs (s) to move a request of the key to the pool from where the plan has it."""
        price: Floats = np.where(pool == self.home[key], RETURNS * self.change_s, self.change_s)
        return np.where(self.held.planned[key], price, 0.0)

    def limits_per_s(self, key: Ints, pool: Ints) -> Floats:
        """For each pair: how many requests per second of the key may go to the pool."""
        return np.where(self.capped[key] & (self.most[pool] < 1.0), self.most[pool] * self.demand[key], np.inf)

    def min_per_s(self, key: Ints, pool: Ints) -> Floats:
        """For each pair: how many requests per second of the key must go to the pool, as far as a ramp allows."""
        least: Floats = np.where(pool == self.origin[key], self.kept[key] * self.demand[key], 0.0)
        return np.minimum(least, self.limits_per_s(key, pool))


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What each kind of scarcity costs (s per request): all the ordinary costs < reserve < going past target < no room.

    They follow from the problem, so that no weight in a policy can turn the order around.
    """

    reserve: float
    past_target: float
    no_room: float


def prices(problem: Problem, max_confined: int) -> Prices:
    """Prices in powers of two of the largest ordinary cost, so that noise does not change them from tick to tick.

    Args:
        max_confined: how many regions' losses one request more in a pool can make worse at once.
    """
    ordinary = float(
        problem.reach_s.max(initial=0.0)
        + problem.gpu_s.max(initial=0.0)
        + problem.piece_cost_s.max(initial=0.0)
        + problem.change_s
    )
    largest = 2.0 ** np.ceil(np.log2(max(ordinary, 1.0)))
    reserve = 4.0 * largest
    past_target = 2.0 * largest + max_confined * reserve
    return Prices(reserve, past_target, 2.0 * past_target + 2.0 * largest)


def summed(at: Ints, amount: Floats, size: int) -> Floats:
    """Amounts that share a place added up, by place from 0 to `size`."""
    return np.bincount(at, weights=amount, minlength=size).astype(np.float64, copy=False)


def located(known: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """Where each wanted number is among known ones, and whether it is there at all (else the place means nothing)."""
    if not len(known):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return at, known[at] == wanted
