"""How a class's shares are to move, and how much of it may come home at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

from penstock.fleet.snapshot import Demand, Snapshot
from penstock.overrides.interventions import Interventions, Orders, capped, stays
from penstock.planning.change_limit import moved_share
from penstock.planning.plan import ClassPlan
from penstock.planning.spillover_limits import kept_home


class Key(NamedTuple):
    """What shares are decided for: one traffic class at one origin."""

    origin: str
    model: str
    residency: str


NearestFirst = Callable[[str, frozenset[str]], tuple[str, ...]]
"""`Policy.nearest_first`, or something that remembers what it answers."""


class Words(NamedTuple):
    """What regions' agents say of the models that they have endpoints of, dead ones included."""

    spoken: set[str]
    having: set[tuple[str, str]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Words:
        """What they last reported."""
        having = {
            (region, pool.model)
            for (region, _), held in snapshot.agents.items()
            for pool in held.report.pools
            if pool.endpoints > 0
        }
        return cls({region for region, _ in snapshot.agents}, having)

    def home(self, nearest: tuple[str, ...], model: str) -> str:
        """The nearest whose agents do not say that it has no endpoints of the model at all; else the nearest."""
        for name in nearest:
            if (name, model) in self.having or name not in self.spoken:
                return name
        return nearest[0]


class Move(NamedTuple):
    """One class, from the shares in force to those that are wanted."""

    key: Key
    demand: Demand
    entry: ClassPlan | None
    orders: Orders
    serving: Set[str]
    nearest: tuple[str, ...]
    home: str
    standing: Mapping[str, float]
    target: Mapping[str, float]
    distance: float
    """The part (0-1) of the class's traffic that is to change its server; none of it where an override says so."""

    @classmethod
    def of(
        cls,
        key: Key,
        one: Demand,
        target: Mapping[str, float],
        entry: ClassPlan | None,
        alive: Set[str],
        nearest_first: NearestFirst,
        words: Words,
        interventions: Interventions,
    ) -> Move:
        """What a class is to do, by what operators want.

        Args:
            target: the shares wanted.
            entry: what is in force for it, if anything.
            alive: regions that can take traffic for its model.
        """
        orders = interventions.of(one.origin, one.model)
        serving = alive - orders.at_once if orders.at_once else alive
        standing = {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}
        nearest = nearest_first(one.origin, one.regions)
        if orders.weights:
            target = capped(target, orders, [name for name in nearest if name in serving])
        if orders.max_away < 1.0 and one.origin in serving and one.origin in one.regions:
            target = kept_home(target, one.origin, orders.max_away)
        rests = not standing or standing == target or stays(standing, orders, serving)
        distance = 0.0 if rests else moved_share(standing, target)
        home = words.home(nearest, one.model)
        return cls(key, one, entry, orders, serving, nearest, home, standing, target, distance)

    @property
    def comes_home(self) -> bool:
        """Whether more of it is to be served at home; what a drain gives back returns as slowly as it went."""
        more = self.target.get(self.home, 0.0) > self.standing.get(self.home, 0.0)
        return more and self.home not in self.orders.returning


def homeward(
    moves: Iterable[Move],
    demands: Mapping[Key, Demand],
    targets: Mapping[Key, Mapping[str, float]],
    max_step: float,
) -> dict[tuple[str, str], float]:
    """How much (0-1) of their way home the classes of an origin and model go now; on other ways each goes by the step.

    The bound is on an origin's demand for a model, not on a class of it. The cheapest plans take one class away whole
    before they touch the next, and it would come back as slowly as if all of them had gone. On the way out there is no
    hurry: overflow leaves on spill credits meanwhile, and what goes too far has to turn round.
    """
    coming: dict[tuple[str, str], float] = {}
    for move in moves:
        if move.distance > 0.0 and move.comes_home:
            at = move.demand.origin, move.demand.model
            coming[at] = coming.get(at, 0.0) + move.demand.requests_per_s * move.distance
    asked = dict.fromkeys(coming, 0.0)
    if coming:
        for key, one in demands.items():
            if (one.origin, one.model) in coming and targets.get(key):
                asked[one.origin, one.model] += one.requests_per_s
    return {at: min(1.0, max_step * (asked[at] / per_s)) if per_s > 0.0 else 1.0 for at, per_s in coming.items()}
