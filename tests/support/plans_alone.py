"""A planner by its plans alone, as `penstock.planning.waterfall.plan` answers: for tests that ask both the same."""

from __future__ import annotations

from collections.abc import Callable

from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planner

Plan = Callable[..., dict[str, RegionPlan]]


def plans_of(planner: Planner) -> Plan:
    """Plans tick after tick, by the arguments of `Planner.decide`."""
    return lambda *args, **more: planner.decide(*args, **more).plans
