"""The moves of each class's shares towards their target, and the rate at which demand returns home."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

from penstock.fleet.snapshot import Demand, Snapshot
from penstock.overrides.override_effects import Constraints, Interventions, capped, stays
from penstock.planning.plan import ClassPlan
from penstock.planning.share_change_limit import moved_share
from penstock.planning.spillover_limits import kept_home


class Key(NamedTuple):
    """One traffic class at one origin: the unit for which shares are computed."""

    origin: str
    model: str
    residency: str


NearestFirst = Callable[[str, frozenset[str]], tuple[str, ...]]
"""`Policy.nearest_first`, or a cached version of it."""


class ModelsByRegion(NamedTuple):
    """The regions that report, and the models that they have endpoints of, unavailable endpoints included."""

    reporting: set[str]
    having: set[tuple[str, str]]
    """(region, model) pairs."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> ModelsByRegion:
        """Build from the last report of every agent."""
        having = {
            (region, pool.model)
            for (region, _), held in snapshot.agents.items()
            for pool in held.report.pools
            if pool.endpoints > 0
        }
        return cls({region for region, _ in snapshot.agents}, having)

    def home(self, nearest: tuple[str, ...], model: str) -> str:
        """The nearest region that has endpoints of the model or does not report; else the nearest."""
        for name in nearest:
            if (name, model) in self.having or name not in self.reporting:
                return name
        return nearest[0]


class FleetLimits(NamedTuple):
    """What limits where the traffic of every class may go in this tick."""

    alive: Mapping[str, Set[str]]
    """Regions that can take traffic, by model."""
    nearest_first: NearestFirst
    """Sorts regions by distance from an origin."""
    reported: ModelsByRegion
    """Determines the home of a class."""
    interventions: Interventions
    """Overrides and spillover limits."""


class Move(NamedTuple):
    """One class with its shares in force and its target shares."""

    key: Key
    demand: Demand
    entry: ClassPlan | None
    """The entry in force."""
    constraints: Constraints
    serving: Set[str]
    """Regions that can take traffic of the class."""
    nearest: tuple[str, ...]
    """All regions that the class permits, the nearest first."""
    home: str
    current: Mapping[str, float]
    """Shares in force."""
    target: Mapping[str, float]
    distance: float
    """The part (0-1) of the class's traffic that is to change its region; 0 if an override holds the shares."""

    @classmethod
    def of(
        cls,
        key: Key,
        demand: Demand,
        target: Mapping[str, float],
        entry: ClassPlan | None,
        limits: FleetLimits,
    ) -> Move:
        """The move of a class, within overrides and spillover limits.

        Args:
            key: the class and its origin.
            demand: the demand of the class at the origin.
            target: the target shares.
            entry: the entry of the class in force, if any.
            limits: what limits where its traffic may go.
        """
        alive = limits.alive[demand.model]
        constraints = limits.interventions.of(demand.origin, demand.model)
        serving = alive - constraints.at_once if constraints.at_once else alive
        current = {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}
        nearest = limits.nearest_first(demand.origin, demand.regions)
        if constraints.weights:
            target = capped(target, constraints, [name for name in nearest if name in serving])
        if constraints.max_away < 1.0 and demand.origin in serving and demand.origin in demand.regions:
            target = kept_home(target, demand.origin, constraints.max_away)
        rests = not current or current == target or stays(current, constraints, serving)
        distance = 0.0 if rests else moved_share(current, target)
        home = limits.reported.home(nearest, demand.model)
        return cls(key, demand, entry, constraints, serving, nearest, home, current, target, distance)

    @property
    def comes_home(self) -> bool:
        """Whether the share at home grows; false after a drain, when demand returns at the normal rate."""
        more = self.target.get(self.home, 0.0) > self.current.get(self.home, 0.0)
        return more and self.home not in self.constraints.returning


def homeward(
    moves: Iterable[Move],
    demands: Mapping[Key, Demand],
    targets: Mapping[Key, Mapping[str, float]],
    max_step: float,
) -> dict[tuple[str, str], float]:
    """By (origin, model): the part (0-1) of the distance home that its classes move in this tick.

    Moves home are limited for the sum of an origin's classes of one model, not for each class. The cheapest plans move
    one class away completely before the next; with a limit of its own, that class would return as slowly as if all
    classes had left. Moves away need no such allowance, since overflow uses spill credits meanwhile.
    """
    returning: dict[tuple[str, str], float] = {}
    for move in moves:
        if move.distance > 0.0 and move.comes_home:
            at = move.demand.origin, move.demand.model
            returning[at] = returning.get(at, 0.0) + move.demand.requests_per_s * move.distance
    total = dict.fromkeys(returning, 0.0)
    if returning:
        for key, demand in demands.items():
            if (demand.origin, demand.model) in returning and targets.get(key):
                total[demand.origin, demand.model] += demand.requests_per_s
    return {at: min(1.0, max_step * (total[at] / per_s)) if per_s > 0.0 else 1.0 for at, per_s in returning.items()}
