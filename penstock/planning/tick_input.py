"""What one tick asks of whatever plans: who asks for how much, who can serve it, and what is in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.fleet.capacity import Supply, supply
from penstock.fleet.snapshot import Demand, Snapshot, demand
from penstock.overrides.interventions import Interventions, narrowed, remaining, scaled
from penstock.planning.linear_program.problem import Problem
from penstock.planning.linear_program.problem_builder import Builder
from penstock.planning.plan import ClassPlan, RegionPlan
from penstock.planning.plan_slices import in_force, planned_for
from penstock.planning.share_moves import Key

BELIEVED_AHEAD = 0.9
"""How much of a forecast is planned for: a step looks like a trend for a while, and overshooting it by less than the
rest must not move shares there and back."""


class Asked(NamedTuple):
    """One tick's question, under one policy."""

    able: dict[tuple[str, str], Supply]
    """Who can take traffic, by (region, model)."""
    demands: dict[Key, Demand]
    """What is planned for, with all the regions that each permits."""
    before: dict[Key, ClassPlan]
    """The entries in force to move from."""
    open_demands: Mapping[Key, Demand]
    """`demands` as far as overrides leave them open."""
    open_supply: Mapping[tuple[str, str], Supply]
    """`able` likewise."""
    problems: list[Problem]
    """The same as arrays, a model each."""


def ask(
    builder: Builder,
    snapshot: Snapshot,
    previous: Mapping[str, RegionPlan],
    *,
    now: float,
    ahead: Mapping[Key, float],
    interventions: Interventions,
) -> Asked:
    """The question of this tick, under the builder's policy; arguments are those of `Planner.decide`."""
    policy = builder.policy
    able = supply(policy, snapshot, now)
    demands = planned_for(policy, demand(snapshot, now))
    _raise(demands, ahead)
    before = in_force(previous, demands)
    asked, open_supply = narrowed(demands, able, interventions), scaled(able, interventions)
    held = remaining(before, asked) if interventions else before
    return Asked(able, demands, before, asked, open_supply, builder.problems(asked, open_supply, held, interventions))


def _raise(demands: dict[Key, Demand], ahead: Mapping[Key, float]) -> None:
    for key, per_s in ahead.items():
        one, expected = demands.get(key), BELIEVED_AHEAD * per_s
        if one is not None and expected > one.requests_per_s:
            demands[key] = msgspec.structs.replace(one, requests_per_s=expected)
