"""Calls planners with positional policy, snapshot and plan in force, and defaults for other fields of `TickInput`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.fleet.snapshot import Snapshot
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planner
from penstock.planning.tick_input import TickInput
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.policy import Policy

Plan = Callable[..., dict[str, RegionPlan]]


def tick_input(
    policy: Policy,
    snapshot: Snapshot,
    previous: Mapping[str, RegionPlan],
    *,
    now: float = 0.0,
    epoch: int = 1,
    generation: int = 1,
    elapsed_s: float,
    **more: Any,
) -> TickInput:
    """The input of a planner."""
    return TickInput(
        policy=policy,
        snapshot=snapshot,
        previous=previous,
        now=now,
        epoch=epoch,
        generation=generation,
        elapsed_s=elapsed_s,
        **more,
    )


def plans_of(planner: Planner) -> Plan:
    """A function that runs a tick of `planner` with the arguments of `tick_input` and returns the plans."""
    return lambda *args, **more: planner.plan(tick_input(*args, **more)).plans


def waterfall_plans(
    policy: Policy, snapshot: Snapshot, previous: Mapping[str, RegionPlan], **more: Any
) -> dict[str, RegionPlan]:
    """The plans of a new waterfall planner, with the arguments of `tick_input`."""
    return WaterfallPlanner().plan(tick_input(policy, snapshot, previous, **more)).plans
