"""The input of a planner, and the demand and supply of one tick that every planner starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from penstock.fleet.capacity import Supply, supply
from penstock.fleet.snapshot import Demand, Snapshot, demand
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions, narrowed, remaining, scaled
from penstock.planning.plan import ClassPlan, RegionPlan
from penstock.planning.share_moves import Key
from penstock.policy.policy import Policy

FORECAST_WEIGHT = 0.9
"""Weight (0-1) of a forecast. A step of demand resembles a trend at first; at full weight the forecast would overshoot
and move shares back and forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickInput:
    """The complete input of one plan, except for the state that a planner keeps between ticks."""

    policy: Policy
    snapshot: Snapshot
    previous: Mapping[str, RegionPlan]
    """The slices in force by region; shares move away from them at a bounded rate."""
    now: float
    """The planner's clock, in seconds; for the age of reports and for ramps."""
    epoch: int
    """The leader's fencing epoch."""
    generation: int
    """The number of the plan to be made."""
    elapsed_s: float
    """Time since the plan in force was made, in seconds; bounds how far shares may move."""
    forecast_per_s: Mapping[Key, float] = field(default_factory=dict)
    """Expected demand by key, in requests per second; used if it exceeds the measured demand."""
    interventions: Interventions = NO_INTERVENTIONS
    """The operators' overrides in force."""

    @property
    def limits(self) -> Interventions:
        """The overrides together with the policy's spillover limits."""
        return self.interventions.within(self.policy)


class Workload(NamedTuple):
    """One tick's demand, supply and plan in force; the `open_` fields exclude regions that overrides or spillover
    limits close."""

    supply: Mapping[tuple[str, str], Supply]
    """Capacity by (region, model), of every region that can serve."""
    demands: Mapping[Key, Demand]
    """The demand to plan for, each with all regions that its residency class permits."""
    in_force: Mapping[Key, ClassPlan]
    """The entries in force, from which shares move."""
    limits: Interventions
    open_demands: Mapping[Key, Demand]
    open_supply: Mapping[tuple[str, str], Supply]
    open_in_force: Mapping[Key, ClassPlan]


def workload(tick: TickInput) -> Workload:
    """The demand and supply of a tick, and the part of the plan in force that may stay."""
    capacity = supply(tick.policy, tick.snapshot, tick.now)
    demands = planned_for(tick.policy, demand(tick.snapshot, tick.now))
    for key, per_s in tick.forecast_per_s.items():
        measured, expected = demands.get(key), FORECAST_WEIGHT * per_s
        if measured is not None and expected > measured.requests_per_s:
            demands[key] = msgspec.structs.replace(measured, requests_per_s=expected)
    before, limits = in_force(tick.previous, demands), tick.limits
    open_demands = narrowed(demands, capacity, limits)
    return Workload(
        supply=capacity,
        demands=demands,
        in_force=before,
        limits=limits,
        open_demands=open_demands,
        open_supply=scaled(capacity, limits),
        open_in_force=remaining(before, open_demands) if limits else before,
    )


def planned_for(policy: Policy, demands: list[Demand]) -> dict[Key, Demand]:
    """The demand whose origin and model the policy has, with the permitted regions that the policy has."""
    known = frozenset(policy.regions)
    permitted = {demand.residency: demand.regions for demand in demands}
    parts = {name: regions if regions <= known else regions & known for name, regions in permitted.items()}
    return {
        Key(demand.origin, demand.model, demand.residency): demand
        if parts[demand.residency] is demand.regions
        else msgspec.structs.replace(demand, regions=parts[demand.residency])
        for demand in demands
        if demand.model in policy.models and demand.origin in known and parts[demand.residency]
    }


def in_force(previous: Mapping[str, RegionPlan], demands: Mapping[Key, Demand]) -> dict[Key, ClassPlan]:
    """The entries in force of planned classes whose arcs are all within the permitted regions."""
    found = {}
    for origin, plan in previous.items():
        for entry in plan.classes:
            key = Key(origin, entry.model, entry.residency)
            planned = demands.get(key)
            if planned is not None and planned.regions.issuperset([arc.server for arc in entry.arcs]):
                found[key] = entry
    return found
