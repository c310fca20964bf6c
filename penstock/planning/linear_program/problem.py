"""One tick's planning problem of one model, as arrays. Models are planned separately."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.planning.linear_program.arrays import Flags, Floats, Ints, summed
from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.share_moves import Key

RETURN_COST = 0.1
"""Cost of moving demand to its home, as a part of the cost of other changes: low enough that demand returns, and high
enough that of two equal plans the one with fewer changes is chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The part of a problem that is constant while the same classes have demand and the same regions have the model."""

    model: str
    keys: tuple[Key, ...]
    pools: tuple[str, ...]
    """Regions that have the model, or had it since the planner started; sorted."""
    groups: tuple[str, ...]
    """Names of the residency classes, as far as overrides leave them open."""
    permitted: Flags
    """By (group, pool). The program has no column for a forbidden pair."""
    group_of: Ints
    """By key."""
    origin_of: Ints
    """By key: the index of its origin in `Distances.names`."""
    pool_at: Ints
    """By pool: its index in `Distances.names`."""
    confinements: Confinements


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The part of the plan in force that can stay: shares by (key, pool), and which keys have any plan."""

    key: Ints
    pool: Ints
    share: Floats
    planned: Flags
    """By key."""

    def stays_per_s(self, demand: Floats) -> Floats:
        """The unchanged part of each flow: the share in force times the current demand, in requests/s."""
        stays: Floats = demand[self.key] * self.share
        return stays


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The price of each kind of scarcity (s per request): all ordinary costs < reserve < past target < no room.

    The prices follow from the problem, so that no weight in a policy can change their order.
    """

    reserve: float
    past_target: float
    no_room: float


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One model's demand, pools and prices; latency in seconds, flow in requests per second, cost their product."""

    shape: Shape
    demand: Floats
    """By key; 0 where no permitted region can serve."""
    slots: Floats
    """By pool; 0 where it cannot serve."""
    service_s: Floats
    max_share: Floats
    """By pool: the largest share (0-1) of a key's demand that it may have; below 1 on a failback ramp."""
    capped: Flags
    """By key: some permitted pool may have all of it, so the pools on a ramp are held to `max_share`."""
    target_utilisation: float
    reach_s: Floats
    """By (index of the origin, pool): round trip, egress cost, and a tiny amount that breaks ties by name."""
    egress_s: Floats
    """The egress part of `reach_s`."""
    gpu_s: Floats
    """By pool, the cost of its GPU time."""
    piece_per_s: Floats
    """By (pool, piece of its load): how many requests per second fit; the last piece takes any number."""
    piece_cost_s: Floats
    """The waiting cost of each piece; not defined for the pieces past the target, which `prices` prices."""
    home: Ints
    """By key: the nearest permitted pool that can serve, or -1."""
    origin: Ints
    """By key: the pool of its origin, or -1 where that is not permitted or does not have the model."""
    kept: Floats
    """By key: the least share (0-1) of its demand that its origin serves, by the spillover limits."""
    held: Held
    change_s: float
    survive_one_loss: bool

    @property
    def capacity_per_s(self) -> Floats:
        """By pool: requests per second that it serves with every slot busy."""
        return self.slots / self.service_s

    def prices(self) -> Prices:
        """Prices in powers of two of the largest ordinary cost, so that noise does not change them between ticks."""
        ordinary = float(
            self.reach_s.max(initial=0.0)
            + self.gpu_s.max(initial=0.0)
            + self.piece_cost_s.max(initial=0.0)
            + self.change_s
        )
        largest = 2.0 ** np.ceil(np.log2(max(ordinary, 1.0)))
        reserve = 4.0 * largest
        # One more request in a pool can increase the shortfalls of several losses.
        past_target = 2.0 * largest + self.shape.confinements.max_affected * reserve
        return Prices(reserve, past_target, 2.0 * past_target + 2.0 * largest)

    def changing_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: the cost (s) of moving a request of the key to the pool from where the plan in force has it."""
        price: Floats = np.where(pool == self.home[key], RETURN_COST * self.change_s, self.change_s)
        return np.where(self.held.planned[key], price, 0.0)

    def limits_per_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: how many requests per second of the key may go to the pool."""
        return np.where(
            self.capped[key] & (self.max_share[pool] < 1.0), self.max_share[pool] * self.demand[key], np.inf
        )

    def min_per_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: how many requests per second of the key must go to the pool, as far as a ramp allows."""
        least: Floats = np.where(pool == self.origin[key], self.kept[key] * self.demand[key], 0.0)
        return np.minimum(least, self.limits_per_s(key, pool))

    def unavoidable_shortfall_per_s(self) -> Floats:
        """By pool: the shortfall (requests/s) at its loss under any plan, in confinements closed to other groups."""
        sets = self.shape.confinements
        if not self.survive_one_loss:
            return np.zeros(len(self.slots))
        demand = summed(self.shape.group_of, self.demand, len(self.shape.groups))
        pools, capacity = sets.pools[sets.settled], self.capacity_per_s
        lacking = (sets.inside[sets.settled] @ demand - pools @ capacity)[:, None] + capacity[None, :]
        least: Floats = np.where(pools & (capacity > 0.0)[None, :], lacking, 0.0).max(axis=0, initial=0.0)
        return least
