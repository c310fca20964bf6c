"""Every logic that plans, by the name that policy calls it: the one place where a name gets its meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.planner import Planner
from penstock.planning.waterfall_planner import GreedyPlanner
from penstock.policy.policy import PlanLogic

UNHURRIED_S = 10.0
"""What a solver may take (s) where nobody waits for a tick."""

LOGICS: Mapping[PlanLogic, Callable[[float], Planner]] = MappingProxyType(
    {
        PlanLogic.LINEAR_PROGRAM: FlowPlanner,
        PlanLogic.WATERFALL: lambda _: GreedyPlanner(),
    }
)
"""Given how long (s) a solver may take for one tick. Whoever changes what a logic answers gives it a new name and row
beside the old one: an upgrade must not change plans, and a change of policy goes through the stages of a rollout."""


def planner(logic: PlanLogic, time_limit_s: float) -> Planner:
    """A planner that begins anew.

    Args:
        time_limit_s: how long (s) a solver may take for one tick.
    """
    return LOGICS[logic](time_limit_s)
