"""One tick's planning problem of one model, as arrays; or of several models, if they share slots.

Demand and capacity are in units of work per second. For one model a unit is a request; models that share slots have
units that hold a slot for the same time (`penstock.fleet.capacity.Supply.work`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.planning.linear_program.arrays import Flags, Floats, Ints, summed
from penstock.planning.linear_program.n_minus_one import Confinements
from penstock.planning.share_moves import Key

RETURN_COST = 0.1
"""Cost of moving demand to its home, as a part of the cost of other changes: low enough that demand returns, and high
enough that of two equal plans the one with fewer changes is chosen."""


class Pool(NamedTuple):
    """The endpoints of one region that serve one model."""

    region: str
    model: str


class Group(NamedTuple):
    """A capacity group: the endpoints of one region that serve exactly these models of the problem."""

    region: str
    models: tuple[str, ...]


class TrafficClass(NamedTuple):
    """A model and a residency class, which together determine the permitted pools."""

    model: str
    residency: str
    """Name of the residency class, as far as overrides leave it open."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The part of a problem that is constant while the same classes have demand and the same regions have the model."""

    models: tuple[str, ...]
    """One model, or the models that share slots, directly or through other models."""
    keys: tuple[Key, ...]
    pools: tuple[Pool, ...]
    """Pools that exist, or have existed since the planner started; sorted."""
    regions: tuple[str, ...]
    """The regions of the pools, sorted."""
    region_of: Ints
    """By pool: the index of its region in `regions`."""
    groups: tuple[Group, ...]
    """Capacity groups; the same order as `pools` unless models share slots."""
    group_region: Ints
    """By group: the index of its region in `regions`."""
    draw_pool: Ints
    draw_group: Ints
    """The (pool, group) pairs where the group is a part of the pool."""
    classes: tuple[TrafficClass, ...]
    permitted: Flags
    """By (class, pool): whether the class may use the pool. The program has no column for a forbidden pair."""
    class_of: Ints
    """By key: the index of its class in `classes`."""
    origin_of: Ints
    """By key: the index of its origin in `Distances.names`."""
    pool_at: Ints
    """By pool: the index of its region in `Distances.names`."""
    confinements: Confinements

    @property
    def shares_slots(self) -> bool:
        """Whether models share slots. If not, every pool is one group, of the same index."""
        return len(self.models) > 1

    def min_of_pools(self, by_group: Floats) -> Floats:
        """By pool: the smallest value of its groups."""
        if not self.shares_slots:
            return by_group
        smallest = np.full(len(self.pools), np.inf)
        np.minimum.at(smallest, self.draw_pool, by_group[self.draw_group])
        return smallest


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """The part of the plan in force that can stay: shares by (key, pool), and which keys have any plan."""

    key: Ints
    pool: Ints
    share: Floats
    planned: Flags
    """By key: whether the plan in force has an entry."""

    def stays_per_s(self, demand: Floats) -> Floats:
        """The unchanged part of each flow: the share in force times the current demand."""
        stays: Floats = demand[self.key] * self.share
        return stays


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The price of each kind of scarcity (s per request): all ordinary costs < reserve < past target < no room.

    The prices follow from the problem, so that no weight in a policy can change their order.
    """

    reserve: float
    past_target: float
    yields: Floats
    """By capacity group: the price of no room for demand of a lower priority; the lower, the cheaper."""
    no_room: float


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Demand, capacity and prices; latency in seconds, flow in units per second, cost their product."""

    shape: Shape
    demand: Floats
    """By key: units of work per second; 0 if no permitted region can serve."""
    work: Floats
    """By pool: units of one request of its model; 1 unless models share slots."""
    slots: Floats
    """By group; 0 if the group cannot serve."""
    service_s: Floats
    """By group: the time (s) for which one unit holds a slot."""
    serves: Flags
    """By pool: whether any of its groups has slots."""
    max_share: Floats
    """By pool: the largest share (0-1) of a key's demand that it may have; below 1 on a failback ramp."""
    capped: Flags
    """By key: whether a permitted pool may serve all of its demand, so that pools on a ramp are limited to
    `max_share`."""
    target_utilisation: float
    reach_s: Floats
    """By (index of the origin, pool), for one unit: round trip, egress cost, and a tiny amount that breaks ties."""
    egress_s: Floats
    """The egress part of `reach_s`."""
    gpu_s: Floats
    """By group, the cost of its GPU time for one unit."""
    piece_per_s: Floats
    """By (group, piece of its load): width in units per second; the last piece of a group with slots is unlimited."""
    piece_cost_s: Floats
    """The waiting cost of each piece; not defined for the pieces past the target, which `prices` prices."""
    yield_rank: Ints
    """By group: the rank of the priority that yields there, see `yielding`."""
    ranks: int
    """Number of priorities."""
    home: Ints
    """By key: the nearest permitted pool that can serve, or -1."""
    origin: Ints
    """By key: the pool of its origin, or -1 if that pool is not permitted or does not exist."""
    kept: Floats
    """By key: the minimum share (0-1) of its demand that its origin serves, by the spillover limits."""
    held: Held
    change_s: float
    survive_one_loss: bool

    @property
    def capacity_per_s(self) -> Floats:
        """By group: units per second that it serves with every slot busy."""
        return self.slots / self.service_s

    def prices(self) -> Prices:
        """Prices in powers of two of the largest ordinary cost, so that noise does not change them between ticks."""
        ordinary = float(
            self.reach_s.max(initial=0.0)
            + self.gpu_s.max(initial=0.0)
            + self.piece_cost_s.max(initial=0.0)
            + self.change_s / self.work.min(initial=np.inf)
        )
        largest = 2.0 ** np.ceil(np.log2(max(ordinary, 1.0)))
        reserve = 4.0 * largest
        # One more request in a pool can increase the shortfalls of several losses.
        past_target = 2.0 * largest + self.shape.confinements.max_affected * reserve
        # A step between two priorities exceeds what one request can change in all cheaper kinds.
        lowest, step = 2.0 * past_target + 2.0 * largest, past_target
        return Prices(reserve, past_target, lowest + step * self.yield_rank, lowest + step * (self.ranks - 1))

    def changing_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: the cost (s) of moving a unit of the key to the pool from where the plan in force has it."""
        price: Floats = np.where(pool == self.home[key], RETURN_COST * self.change_s, self.change_s)
        return np.where(self.held.planned[key], price / self.work[pool], 0.0)

    def limits_per_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: how many units per second of the key may go to the pool."""
        return np.where(
            self.capped[key] & (self.max_share[pool] < 1.0), self.max_share[pool] * self.demand[key], np.inf
        )

    def min_per_s(self, key: Ints, pool: Ints) -> Floats:
        """By pair: how many units per second of the key must go to the pool, as far as a ramp allows."""
        least: Floats = np.where(pool == self.origin[key], self.kept[key] * self.demand[key], 0.0)
        return np.minimum(least, self.limits_per_s(key, pool))

    def unavoidable_shortfall_per_s(self) -> Floats:
        """By region: the shortfall (units/s) at its loss under any plan, in confinements closed to other classes."""
        sets = self.shape.confinements
        if not self.survive_one_loss:
            return np.zeros(len(self.shape.regions))
        demand = summed(self.shape.class_of, self.demand, len(self.shape.classes))
        settled, capacity = sets.settled, self.capacity_per_s
        lacking = (sets.inside[settled] @ demand)[:, None] - sets.elsewhere(capacity)[settled]
        counts = sets.affected[settled] & sets.serving(capacity)[None, :]
        least: Floats = np.where(counts, lacking, 0.0).max(axis=0, initial=0.0)
        return least
