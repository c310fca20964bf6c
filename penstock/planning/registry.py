"""Every planning logic by the name that a policy gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.planner import Planner
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.policy import PlanLogic

OFFLINE_LIMIT_S = 10.0
"""Time limit (s) of the solver where no tick waits for the plan."""

PLANNERS: Mapping[PlanLogic, Callable[[float], Planner]] = MappingProxyType(
    {
        PlanLogic.LINEAR_PROGRAM: FlowPlanner,
        PlanLogic.WATERFALL: lambda time_limit_s: WaterfallPlanner(),
    }
)
"""Each takes the time limit (s) of the solver for one tick. A change to what a logic returns gets a new name and row
beside the old one: an upgrade must not change plans, and a change of policy goes through the stages of a rollout."""


def planner(logic: PlanLogic, time_limit_s: float) -> Planner:
    """A new planner without any state.

    Args:
        logic: the name in the policy.
        time_limit_s: how long the solver may take for one tick, in seconds.
    """
    return PLANNERS[logic](time_limit_s)
