"""The planners by their name in a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.planner import Planner
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.operations import PlannerKind

OFFLINE_LIMIT_S = 10.0
"""Time limit (s) of the solver for plans outside the planning loop."""

PLANNERS: Mapping[PlannerKind, Callable[[float], Planner]] = MappingProxyType(
    {
        PlannerKind.LINEAR_PROGRAM: FlowPlanner,
        PlannerKind.WATERFALL: lambda time_limit_s: WaterfallPlanner(),
    }
)
"""Factories, which take the time limit (s) of the solver for one tick. A planner that would return other plans gets a
new name and entry: an upgrade must not change plans, while a change of policy goes through a rollout."""


def planner(kind: PlannerKind, time_limit_s: float) -> Planner:
    """A new planner without state.

    Args:
        kind: the name in the policy.
        time_limit_s: time limit of the solver for one tick, in seconds.
    """
    return PLANNERS[kind](time_limit_s)
