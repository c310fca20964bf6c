"""What every logic that plans answers, and the door that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from penstock.fleet.capacity import Shortfall
from penstock.fleet.snapshot import Snapshot
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning.linear_program.plan_cost import Cost
from penstock.planning.linear_program.solution import Flows
from penstock.planning.plan import RegionPlan
from penstock.planning.share_moves import Key
from penstock.policy.policy import Policy

NOT_AHEAD: Mapping[Key, float] = MappingProxyType({})


class Planned(msgspec.Struct, frozen=True):
    """A plan, and what there is to say about it."""

    plans: dict[str, RegionPlan]
    """One slice for every region of the policy."""
    by_waterfall: dict[str, str]
    """Models whose shares the waterfall decided though policy names another logic, and why that one did not."""
    cost: Cost
    """Of the shares wanted, which the plan may still be some steps away from."""
    shortfalls: tuple[Shortfall, ...]
    """What capacity is missing where."""
    answers: tuple[Flows, ...]
    """What was wanted and from what it follows, by model; for `detours` and for looking closer."""


class Planner(Protocol):
    """One logic at work: plans tick after tick, and may keep what the last ticks taught it."""

    def decide(
        self,
        policy: Policy,
        snapshot: Snapshot,
        previous: Mapping[str, RegionPlan],
        *,
        now: float,
        epoch: int,
        generation: int,
        elapsed_s: float,
        ahead: Mapping[Key, float] = NOT_AHEAD,
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> Planned:
        """One plan for the planet, and why it is that one.

        Args:
            previous: the slices in force, from which shares move at a bounded rate.
            now: the planner's clock, in seconds; for ages and ramps.
            elapsed_s: time since `previous` was made, in seconds.
            ahead: demand forecast by key, in requests per second; a plan is for most of it
                where that is more than what is measured.
            interventions: what operators want meanwhile.
        """
