"""Compares two sides of a question about the fleet: policies, lost regions and overrides under one demand.

`penstock what-if`, `penstock policy simulate` and the previews of the operators' page all call `compare`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.overrides.maintenance import windows
from penstock.overrides.override_effects import NO_INTERVENTIONS, Interventions
from penstock.overrides.overrides import Override
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.what_if.demand_outcomes import Capacity, DemandGroup, Evaluation, Totals
from penstock.what_if.evaluation import Moment, evaluate_demand
from penstock.what_if.growth import Growth, grown
from penstock.what_if.moved_demand import Move, moves


class Side(msgspec.Struct, frozen=True):
    """A policy, and the state of the fleet in which it is evaluated."""

    policy: Policy
    lost: frozenset[str] = frozenset()
    """Regions that have failed."""
    overrides: tuple[Override, ...] = ()
    """Overrides of operators; those that are in force have an effect."""
    plans: tuple[RegionPlan, ...] = ()
    """The plan in force, whose shares a freeze keeps; without it, a freeze has no effect."""

    def in_force(self, now: float) -> tuple[Override, ...]:
        """The overrides and the policy's maintenance windows that are in force."""
        return tuple(override for override in (*self.overrides, *windows(self.policy, now)) if override.holds(now))


class Comparison(msgspec.Struct, frozen=True):
    """One demand under both sides."""

    before: Totals
    after: Totals
    moves: tuple[Move, ...]
    """Demand that another region serves, or that is refused, after the change; largest first."""


def compare(
    before: Side,
    after: Side,
    demand: Sequence[DemandGroup],
    fleet: Sequence[Capacity],
    now: float | None = None,
    growth: Sequence[Growth] = (),
) -> Comparison:
    """Evaluate a demand under both sides.

    Args:
        demand: the groups to evaluate, with rates in requests per second.
        fleet: capacity by region and model, of both sides.
        now: Unix time (s) at which maintenance windows and overrides are evaluated; None evaluates none.
        growth: factors of the demand on the side after; moves are those of the demand after.
    """
    demand_after = grown(demand, growth)
    old, new = _evaluation(before, demand, fleet, now), _evaluation(after, demand_after, fleet, now)
    return Comparison(old.totals, new.totals, tuple(moves(demand_after, old, new)))


def _evaluation(side: Side, demand: Sequence[DemandGroup], fleet: Sequence[Capacity], now: float | None) -> Evaluation:
    # The final state is evaluated, so an override that has ended has no failback ramp.
    interventions = NO_INTERVENTIONS if now is None else Interventions(side.in_force(now), 0.0, now)
    return evaluate_demand(side.policy, demand, fleet, side.lost, Moment(interventions, now, side.plans))
