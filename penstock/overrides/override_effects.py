"""The effect of overrides and spillover limits on a plan: regions that an origin's demand may use less, or not at all.

An override only narrows: it removes regions from those that a demand permits, or limits their share. Demand that
would have no region left which can serve it uses a region over the price cap; if there is none, it uses the emptied
region as a last resort, unless the override forbids that as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.fleet.capacity import Supply
from penstock.fleet.capacity_groups import SharedSlots
from penstock.fleet.snapshot import Demand
from penstock.overrides.overrides import WITHDRAWS, WITHOUT_WEIGHT, Override, OverrideKind, described
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, DrainedEndpoint
from penstock.planning.share_change_limit import ramped, step_towards
from penstock.planning.spillover_limits import Bounds, bounds
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

K = TypeVar("K")


class Constraints(msgspec.Struct, frozen=True):
    """The constraints of overrides and spillover limits on one origin's demand for one model."""

    weights: Mapping[str, float] = {}
    """By limited region, the maximum share (0-1) of a class's demand and of the region's slots."""
    closed: frozenset[str] = frozenset()
    """Regions with weight 0, which take no new traffic."""
    at_once: frozenset[str] = frozenset()
    """Closed regions that traffic leaves at once, as if they were lost."""
    last_resort: frozenset[str] = frozenset()
    """Closed regions that still serve demand if no other permitted region can, including regions over the price cap."""
    frozen: bool = False
    """Whether a freeze keeps the shares in force where possible."""
    returning: frozenset[str] = frozenset()
    """Regions limited only by the failback ramp of an override that has ended."""
    because: Mapping[str, str] = {}
    """By limited region, the override or spillover limit that applies, for operators."""
    max_away: float = 1.0
    """Maximum share (0-1) of a class's demand that may be served elsewhere while its origin serves."""
    over_price_cap: frozenset[str] = frozenset()
    """Regions closed by a spillover limit's price cap and by no override; they serve if no other open region can."""


NO_CONSTRAINTS = Constraints()


class Interventions:
    """The overrides of one moment and the spillover limits of a policy, looked up by origin and model."""

    def __init__(
        self, overrides: Iterable[Override], ramp_s: float, now: float, limited_by: Policy | None = None
    ) -> None:
        """Keeps the overrides that have an effect now: those whose failback ramp has not ended.

        Args:
            overrides: all overrides known.
            ramp_s: the policy's failback ramp, in seconds.
            now: Unix time, in seconds.
            limited_by: the policy whose spillover limits apply as well.
        """
        self._now = now
        self._ramp_s = ramp_s
        self._limited_by = limited_by if limited_by is not None and limited_by.spillover_limits else None
        known = [override for override in overrides if not override.over(now, ramp_s) and _matters(override, now)]
        self.overrides = tuple(override for override in known if override.endpoint is None)
        self.of_endpoints = tuple(override for override in known if override.endpoint is not None)
        """Drains of single endpoints, which change no share: the reports of their agents lack the slots."""
        self._constraints: dict[tuple[str | None, str | None], Constraints] = {}
        self._bounded: dict[tuple[str, str], Constraints] = {}
        self._origins = frozenset(override.origin for override in self.overrides)
        self._models = frozenset(override.model for override in self.overrides)
        self.drained = frozenset(
            override.region
            for override in self.overrides
            if override.kind in WITHDRAWS
            and override.region
            and override.holds(now)
            and override.origin is None
            and override.model is None
        )
        """Regions that are emptied for all origins and models."""

    def __bool__(self) -> bool:
        """Whether there is any override of regions, or a spillover limit."""
        return bool(self.overrides) or self._limited_by is not None

    def within(self, policy: Policy) -> Interventions:
        """The same overrides together with the policy's spillover limits."""
        if not policy.spillover_limits:
            return self
        return Interventions((*self.overrides, *self.of_endpoints), self._ramp_s, self._now, policy)

    def of(self, origin: str | None, model: str) -> Constraints:
        """The constraints on an origin's demand for a model; None stands for origins that no override names."""
        if self._limited_by is None or origin is None:
            return self._overridden(origin, model)
        known = self._bounded.get((origin, model))
        if known is None:
            limits = bounds(self._limited_by, origin, model)
            known = self._bounded[origin, model] = _limited(self._overridden(origin, model), limits, origin)
        return known

    def _overridden(self, origin: str | None, model: str) -> Constraints:
        if not self.overrides:
            return NO_CONSTRAINTS
        about = (origin if origin in self._origins else None, model if model in self._models else None)
        known = self._constraints.get(about)
        if known is None:
            known = self._constraints[about] = self._constraints_of(origin, model)
        return known

    def closed_to(self, origin: str, models: Iterable[str]) -> tuple[Closed, ...]:
        """The regions to which an origin's agents send no new traffic beyond their plan's shares."""
        if not self.overrides:
            return ()
        found = []
        for model in sorted(models):
            constraints = self._overridden(origin, model)
            found += [Closed(region, model, region in constraints.last_resort) for region in sorted(constraints.closed)]
        return tuple(found)

    def drained_endpoints(self, region: str) -> tuple[DrainedEndpoint, ...]:
        """The endpoints of a region that operators drain, each once, by name."""
        found = {
            override.endpoint: DrainedEndpoint(override.endpoint, f"{described(override)}: {override.reason}")
            for override in reversed(self.of_endpoints)
            if override.region == region and override.endpoint is not None
        }
        return tuple(found[name] for name in sorted(found))

    def _constraints_of(self, origin: str | None, model: str) -> Constraints:
        concerned = [override for override in self.overrides if override.concerns(origin, model)]
        weights: dict[str, float] = {}
        because: dict[str, str] = {}
        for override in concerned:
            if override.region is not None:
                weight = override.weight(self._now, self._ramp_s)
                weights[override.region] = min(weight, weights.get(override.region, 1.0))
                if override.holds(self._now):
                    because[override.region] = (
                        f"{override.kind.value.replace('_', ' ')} {override.id} of {override.region}"
                    )
        closed = frozenset(region for region, weight in weights.items() if weight <= 0.0)
        emptied = [override for override in concerned if override.region in closed and override.holds(self._now)]
        at_once = {
            override.region for override in emptied if override.kind is OverrideKind.FAIL_OVER and override.region
        }
        shut = {override.region for override in emptied if not override.last_resort}
        frozen = any(override.kind is OverrideKind.FREEZE for override in concerned)
        returning = frozenset(weights.keys() - because.keys())
        return Constraints(weights, closed, frozenset(at_once), closed - shut, frozen, returning, because)


NO_INTERVENTIONS = Interventions((), 0.0, 0.0)


def _limited(constraints: Constraints, limits: Bounds, origin: str) -> Constraints:
    """The constraints of overrides together with spillover limits; an override of the origin suspends `max_away`."""
    over_price_cap = limits.over_price_cap - constraints.weights.keys()
    return msgspec.structs.replace(
        constraints,
        weights={**constraints.weights, **dict.fromkeys(over_price_cap, 0.0)},
        closed=constraints.closed | over_price_cap,
        over_price_cap=over_price_cap,
        because={**{name: f"spillover limit {limits.closed[name]}" for name in over_price_cap}, **constraints.because},
        max_away=1.0 if origin in constraints.weights else limits.max_away,
    )


def narrowed(
    demands: Mapping[K, Demand], able: Collection[tuple[str, str]], interventions: Interventions
) -> Mapping[K, Demand]:
    """The demands to plan for, each with the regions that it may still use.

    A demand whose open regions cannot serve keeps its regions over the price cap; if those cannot serve either, its
    regions of last resort. A demand without any region left is dropped.

    Args:
        demands: by key, with all regions that each permits.
        able: the (region, model) pairs that can serve now, regardless of overrides.
        interventions: overrides and spillover limits.
    """
    if not interventions:
        return demands
    found: dict[K, Demand] = {}
    for key, demand in demands.items():
        constraints = interventions.of(demand.origin, demand.model)
        if not demand.regions & constraints.closed:
            found[key] = demand
            continue
        open_regions = demand.regions - constraints.closed
        for resort in (constraints.over_price_cap, constraints.last_resort):
            if not any((region, demand.model) in able for region in open_regions):
                open_regions |= demand.regions & resort
        if open_regions:
            name = residency_class(open_regions).name
            found[key] = msgspec.structs.replace(demand, regions=open_regions, residency=name)
    return found


def remaining(before: Mapping[K, ClassPlan], demands: Mapping[K, Demand]) -> dict[K, ClassPlan]:
    """The entries in force without the arcs to regions that `narrowed` removed."""
    return {
        key: entry
        if demands[key].regions.issuperset([arc.server for arc in entry.arcs])
        else msgspec.structs.replace(entry, arcs=_inside(entry.arcs, demands[key].regions))
        for key, entry in before.items()
        if key in demands
    }


def scaled(able: Mapping[tuple[str, str], Supply], interventions: Interventions) -> Mapping[tuple[str, str], Supply]:
    """Supply with slots scaled by the weight that a region has for all origins; closed regions are unchanged.

    Slots that models share are scaled by the largest of their weights.
    """
    if not interventions.overrides:
        return able
    found = dict(able)
    for (region, model), pool in able.items():
        shared = tuple(
            SharedSlots(group.models, group.slots * max(_scale(interventions, region, other) for other in group.models))
            for group in pool.shared
        )
        own = pool.own_slots * _scale(interventions, region, model)
        slots = own + sum(group.slots for group in shared)
        if slots != pool.slots:
            found[region, model] = msgspec.structs.replace(pool, slots=slots, shared=shared)
    return found


def _scale(interventions: Interventions, region: str, model: str) -> float:
    weight = interventions.of(None, model).weights.get(region, 1.0)
    return weight if 0.0 < weight < 1.0 else 1.0


def capped(target: Mapping[str, float], constraints: Constraints, candidates: Sequence[str]) -> Mapping[str, float]:
    """Target shares in which no region exceeds its weight, as far as other regions can serve the excess.

    Args:
        target: the shares wanted.
        constraints: gives the weights.
        candidates: permitted regions that can serve, best first.
    """
    weights = {region: weight for region, weight in constraints.weights.items() if weight > 0.0}
    return (
        ramped(target, weights, [name for name in candidates if name not in constraints.weights]) if weights else target
    )


def stays(current: Mapping[str, float], constraints: Constraints, alive: Collection[str]) -> bool:
    """Whether a freeze keeps these shares: none of their regions is lost, closed, or above its weight."""
    return (
        constraints.frozen
        and bool(current)
        and all(server in alive and share <= constraints.weights.get(server, 1.0) for server, share in current.items())
    )


def emptied(entry: ClassPlan, constraints: Constraints, alive: Collection[str], max_step: float) -> ClassPlan:
    """The entry of an origin without recent reports, moved out of closed regions as far as its fallbacks can serve.

    Such an origin keeps its entries otherwise. Overrides still apply, since its agents may receive plans although their
    reports do not arrive.

    Args:
        entry: the entry in force.
        constraints: gives the closed regions.
        alive: regions that can take traffic for the model.
        max_step: the part (0-1) of the traffic that may change its region now.
    """
    shares = {arc.server: arc.share for arc in entry.arcs}
    if not shares.keys() & constraints.closed:
        return entry
    serving = [name for name in entry.fallbacks if name in alive and name not in constraints.weights]
    target = ramped(shares, dict.fromkeys(constraints.closed, 0.0), serving)
    moved = step_towards(shares, target, max_step, shares.keys() - constraints.at_once)
    kept = tuple(msgspec.structs.replace(arc, share=moved[arc.server]) for arc in entry.arcs if arc.server in moved)
    new = tuple(Arc(name, moved[name], ArcReason.FAILOVER) for name in serving if name in moved.keys() - shares.keys())
    others = tuple(name for name in entry.fallbacks if name not in moved)
    return msgspec.structs.replace(entry, arcs=(*kept, *new), fallbacks=others)


def _matters(override: Override, now: float) -> bool:
    return override.kind not in WITHOUT_WEIGHT or override.holds(now)


def _inside(arcs: tuple[Arc, ...], regions: frozenset[str]) -> tuple[Arc, ...]:
    return tuple(arc for arc in arcs if arc.server in regions)
