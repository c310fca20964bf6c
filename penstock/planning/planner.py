"""The interface of every planner: one `TickInput` in, one `PlanResult` out."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.fleet.capacity import Shortfall
from penstock.planning.linear_program.flows import Flows
from penstock.planning.linear_program.plan_cost import Cost
from penstock.planning.plan import RegionPlan
from penstock.planning.tick_input import TickInput


class PlanResult(msgspec.Struct, frozen=True):
    """A plan and the reasons for it."""

    plans: dict[str, RegionPlan]
    """One slice for every region of the policy."""
    fallbacks: dict[str, str]
    """Models planned by the waterfall because the linear program failed, with the reason."""
    cost: Cost
    """Cost of the target shares, which the plan may reach only after some steps."""
    shortfalls: tuple[Shortfall, ...]
    """The capacity that is missing, by model and region."""
    answers: tuple[Flows, ...]
    """The flows that the target shares were computed from, by model."""


class Planner(Protocol):
    """A planner. It may keep state between ticks; two planners with the same ticks return the same plans, unless the
    solver of one runs out of time."""

    def plan(self, tick: TickInput) -> PlanResult:
        """Plan the fleet.

        An origin without a recent report keeps the shares it had, since its demand is unknown.
        """
