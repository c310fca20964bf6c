"""What the overrides of a moment mean for a plan: which regions an origin's demand may use less of, or not at all.

An override narrows and never widens: it takes regions away from those that a demand permits, or caps what they get.
Where that would leave demand which somebody can serve with nobody who may, a region that is merely too dear takes it;
where there is none, the emptied region stays, as a last resort, unless the override says that not even that is wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.fleet.capacity import Supply
from penstock.fleet.snapshot import Demand
from penstock.overrides.overrides import WITHDRAWS, Override, OverrideKind
from penstock.planning.change_limit import ramped, step_towards
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed
from penstock.planning.spillover_limits import Bounds, bounds
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

K = TypeVar("K")


class Orders(msgspec.Struct, frozen=True):
    """What holds for one origin's demand for one model."""

    weights: Mapping[str, float] = {}
    """How much (0-1) of its part each region may have; one that is not here is whole."""
    closed: frozenset[str] = frozenset()
    """Regions that take no new traffic: those without any weight."""
    at_once: frozenset[str] = frozenset()
    """Closed regions that what is in force leaves at once, as if they were lost."""
    last_resort: frozenset[str] = frozenset()
    """Closed regions that still serve what no other permitted region can, one that is too dear included."""
    frozen: bool = False
    """Shares in force stay where they can."""
    returning: frozenset[str] = frozenset()
    """Regions that nothing holds back any more but the failback ramp."""
    because: Mapping[str, str] = {}
    """By region, the override or spillover limit that holds it back, in a few words for people."""
    max_away: float = 1.0
    """How much (0-1) of a class's demand may be served elsewhere while its origin serves."""
    dear: frozenset[str] = frozenset()
    """Closed regions that no override closes: they are too dear while another can serve that is not being emptied."""


NO_ORDERS = Orders()


class Interventions:
    """The overrides of one moment, by whom they concern, and the spillover limits of a policy."""

    def __init__(
        self, overrides: Iterable[Override], ramp_s: float, now: float, limited_by: Policy | None = None
    ) -> None:
        """Take those that do something now; what has not begun, or has ended and returned, is left out.

        Args:
            ramp_s: the policy's failback ramp, in seconds.
            now: Unix time, in seconds.
            limited_by: the policy whose spillover limits hold too.
        """
        self._now = now
        self._ramp_s = ramp_s
        self._limited_by = limited_by if limited_by is not None and limited_by.spillover_limits else None
        self.overrides = tuple(
            one for one in overrides if one.begins_at <= now and not one.over(now, ramp_s) and _matters(one, now)
        )
        self._orders: dict[tuple[str | None, str | None], Orders] = {}
        self._bounded: dict[tuple[str, str], Orders] = {}
        self._origins = frozenset(one.origin for one in self.overrides)
        self._models = frozenset(one.model for one in self.overrides)
        self.drained = frozenset(
            one.region
            for one in self.overrides
            if one.kind in WITHDRAWS and one.region and one.holds(now) and one.origin is None and one.model is None
        )
        """Regions that are emptied for everybody."""

    def __bool__(self) -> bool:
        """Whether anything can follow from them."""
        return bool(self.overrides) or self._limited_by is not None

    def within(self, policy: Policy) -> Interventions:
        """The same with the policy's limits of spillover, which hold for every plan under it."""
        if not policy.spillover_limits:
            return self
        return Interventions(self.overrides, self._ramp_s, self._now, policy)

    def of(self, origin: str | None, model: str) -> Orders:
        """What holds for an origin's demand for a model; the origin None stands for those that no override names."""
        if self._limited_by is None or origin is None:
            return self._overridden(origin, model)
        known = self._bounded.get((origin, model))
        if known is None:
            limits = bounds(self._limited_by, origin, model)
            known = self._bounded[origin, model] = _limited(self._overridden(origin, model), limits, origin)
        return known

    def _overridden(self, origin: str | None, model: str) -> Orders:
        if not self.overrides:
            return NO_ORDERS
        about = (origin if origin in self._origins else None, model if model in self._models else None)
        known = self._orders.get(about)
        if known is None:
            known = self._orders[about] = self._orders_of(origin, model)
        return known

    def closed_to(self, origin: str, models: Iterable[str]) -> tuple[Closed, ...]:
        """What an origin's agents are told to send nothing new to, beyond their plan's shares."""
        if not self.overrides:
            return ()
        found = []
        for model in sorted(models):
            orders = self._overridden(origin, model)
            found += [Closed(region, model, region in orders.last_resort) for region in sorted(orders.closed)]
        return tuple(found)

    def _orders_of(self, origin: str | None, model: str) -> Orders:
        concerned = [one for one in self.overrides if one.concerns(origin, model)]
        weights: dict[str, float] = {}
        because: dict[str, str] = {}
        for one in concerned:
            if one.region is not None:
                weight = one.weight(self._now, self._ramp_s)
                weights[one.region] = min(weight, weights.get(one.region, 1.0))
                if one.holds(self._now):
                    because[one.region] = f"{one.kind.value.replace('_', ' ')} {one.id} of {one.region}"
        closed = frozenset(region for region, weight in weights.items() if weight <= 0.0)
        emptied = [one for one in concerned if one.region in closed and one.holds(self._now)]
        at_once = {one.region for one in emptied if one.kind is OverrideKind.FAIL_OVER and one.region}
        shut = {one.region for one in emptied if not one.last_resort}
        frozen = any(one.kind is OverrideKind.FREEZE for one in concerned)
        returning = frozenset(weights.keys() - because.keys())
        return Orders(weights, closed, frozenset(at_once), closed - shut, frozen, returning, because)


NO_INTERVENTIONS = Interventions((), 0.0, 0.0)


def _limited(orders: Orders, limits: Bounds, origin: str) -> Orders:
    """What overrides ask for, and the limits of spillover besides; what an override does to the origin goes first."""
    dear = limits.dear - orders.weights.keys()
    return msgspec.structs.replace(
        orders,
        weights={**orders.weights, **dict.fromkeys(dear, 0.0)},
        closed=orders.closed | dear,
        dear=dear,
        because={**{name: f"spillover limit {limits.closed[name]}" for name in dear}, **orders.because},
        max_away=1.0 if origin in orders.weights else limits.max_away,
    )


def narrowed(
    demands: Mapping[K, Demand], able: Collection[tuple[str, str]], interventions: Interventions
) -> Mapping[K, Demand]:
    """The demands that are left to plan for, each with the regions that are left to it.

    A demand whose other regions cannot serve keeps those that are too dear for it; where they cannot either, those of
    its closed ones that serve as a last resort. One that is left with nobody who can is left out, as nobody is to serve
    it.

    Args:
        able: the (region, model) that can serve now, overrides apart.
    """
    if not interventions:
        return demands
    found: dict[K, Demand] = {}
    for key, one in demands.items():
        orders = interventions.of(one.origin, one.model)
        if not one.regions & orders.closed:
            found[key] = one
            continue
        open_regions = one.regions - orders.closed
        for resort in (orders.dear, orders.last_resort):
            if not any((region, one.model) in able for region in open_regions):
                open_regions |= one.regions & resort
        if open_regions:
            name = residency_class(open_regions).name
            found[key] = msgspec.structs.replace(one, regions=open_regions, residency=name)
    return found


def remaining(before: Mapping[K, ClassPlan], demands: Mapping[K, Demand]) -> dict[K, ClassPlan]:
    """The entries in force without the arcs to regions that `narrowed` took away: what a planner may count on."""
    return {
        key: entry
        if demands[key].regions.issuperset([arc.server for arc in entry.arcs])
        else msgspec.structs.replace(entry, arcs=_inside(entry.arcs, demands[key].regions))
        for key, entry in before.items()
        if key in demands
    }


def scaled(able: Mapping[tuple[str, str], Supply], interventions: Interventions) -> Mapping[tuple[str, str], Supply]:
    """Supply with no more of a region than its weight for every origin grants; closed ones are `narrowed`'s matter."""
    if not interventions.overrides:
        return able
    return {
        (region, model): msgspec.structs.replace(one, slots=one.slots * weight) if 0.0 < weight < 1.0 else one
        for (region, model), one in able.items()
        for weight in (interventions.of(None, model).weights.get(region, 1.0),)
    }


def capped(target: Mapping[str, float], orders: Orders, heirs: Sequence[str]) -> Mapping[str, float]:
    """Wanted shares with no region above its weight, where others can take the rest.

    Args:
        heirs: regions that may and can take what nobody in `target` does, best first.
    """
    weights = {region: weight for region, weight in orders.weights.items() if weight > 0.0}
    return ramped(target, weights, [name for name in heirs if name not in orders.weights]) if weights else target


def stays(standing: Mapping[str, float], orders: Orders, alive: Collection[str]) -> bool:
    """Whether a freeze keeps these shares: no server of them is lost, closed, or above what its weight grants."""
    return (
        orders.frozen
        and bool(standing)
        and all(server in alive and share <= orders.weights.get(server, 1.0) for server, share in standing.items())
    )


def emptied(entry: ClassPlan, orders: Orders, alive: Collection[str], max_step: float) -> ClassPlan:
    """The entry of an origin that nobody hears from, moved on out of closed regions as far as its fallbacks can serve.

    Such an origin keeps what it had, but nobody knows whether it is silent to us alone: what operators want still
    reaches it.

    Args:
        alive: regions that can take traffic for the model.
        max_step: the part (0-1) of the traffic that may change its server now.
    """
    shares = {arc.server: arc.share for arc in entry.arcs}
    if not shares.keys() & orders.closed:
        return entry
    serving = [name for name in entry.fallbacks if name in alive and name not in orders.weights]
    target = ramped(shares, dict.fromkeys(orders.closed, 0.0), serving)
    moved = step_towards(shares, target, max_step, shares.keys() - orders.at_once)
    kept = tuple(msgspec.structs.replace(arc, share=moved[arc.server]) for arc in entry.arcs if arc.server in moved)
    new = tuple(Arc(name, moved[name], ArcReason.FAILOVER) for name in serving if name in moved.keys() - shares.keys())
    others = tuple(name for name in entry.fallbacks if name not in moved)
    return msgspec.structs.replace(entry, arcs=(*kept, *new), fallbacks=others)


def _matters(one: Override, now: float) -> bool:
    return one.kind is not OverrideKind.FREEZE or one.holds(now)


def _inside(arcs: tuple[Arc, ...], regions: frozenset[str]) -> tuple[Arc, ...]:
    return tuple(arc for arc in arcs if arc.server in regions)
