"""What plans in one leadership: the logic that policy names, off the event loop, with a forecast; else the waterfall.

A large fleet's plan takes long enough to hold up reports and lease renewals, so it is made in a thread. Where a solver
has no answer in time, the waterfall decides for that model; where the logic fails altogether, for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from penstock.fleet.capacity import Shortfall
from penstock.fleet.snapshot import Snapshot, demand
from penstock.overrides.interventions import NO_INTERVENTIONS, Interventions
from penstock.planning import waterfall
from penstock.planning.forecast import Forecaster
from penstock.planning.linear_program.plan_cost import Cost
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import Planned, Planner
from penstock.planning.registry import planner
from penstock.planning.share_moves import Key
from penstock.planning.waterfall_planner import GreedyPlanner
from penstock.policy.policy import PlanLogic, Policy

SOLVER_LIMIT_S = 0.25
"""How long (s) the solver may take for one plan; a plan is due every half a second."""

WHOLE_FLEET = "*"
"""Stands for every model, where the program failed altogether."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Decided(msgspec.Struct, frozen=True):
    """A plan, and what there is to say about it."""

    plans: dict[str, RegionPlan]
    greedy: dict[str, str] = {}
    """Models that the waterfall decided for, and why; WHOLE_FLEET for all."""
    shortfalls: tuple[Shortfall, ...] = ()
    """What capacity is missing where: what is missing already first, then by size."""


class Decider:
    """Plans tick after tick; begin each leadership with a new one.

    Args:
        solver_limit_s: how long (s) the solver may take for one plan.
    """

    def __init__(self, solver_limit_s: float = SOLVER_LIMIT_S) -> None:
        self._limit_s = solver_limit_s
        self._named: tuple[PlanLogic, Planner] | None = None
        """What plans by the logic in force."""
        self._greedy = GreedyPlanner()
        """What plans when that fails."""
        self._forecaster = Forecaster()
        self._told: frozenset[str] = frozenset()

    async def decide(
        self,
        policy: Policy,
        snapshot: Snapshot,
        previous: dict[str, RegionPlan],
        *,
        now: float,
        epoch: int,
        generation: int,
        elapsed_s: float,
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> Decided:
        """One plan for the planet by the logic that policy names; arguments are those of `Planner.decide`.

        One call at a time.
        """

        def by(door: Callable[..., T]) -> T:
            return door(
                policy,
                snapshot,
                previous,
                now=now,
                epoch=epoch,
                generation=generation,
                elapsed_s=elapsed_s,
                interventions=interventions,
            )

        def plan() -> Planned:
            named = self._planner(policy.objective.plan_logic)
            return by(partial(named.decide, ahead=self._ahead(policy, snapshot, now)))

        try:
            planned = await asyncio.to_thread(plan)
            greedy = planned.by_waterfall
        except Exception as error:
            # Whatever is wrong with the logic that is named, the fleet is planned for.
            _log.exception("the planner failed", logic=policy.objective.plan_logic.value)
            self._named = None
            greedy = {WHOLE_FLEET: str(error) or type(error).__name__}
            try:
                planned = await asyncio.to_thread(by, self._greedy.decide)
            except Exception:
                # Nor is it left without a plan for the sake of failover tables and what capacity is missing.
                _log.exception("the waterfall failed beyond its shares")
                self._greedy = GreedyPlanner()
                planned = Planned(by(waterfall.plan), {}, Cost(), (), ())
        missing = sorted(planned.shortfalls, key=lambda one: (one.lost is not None, -one.slots, one.model))
        self._tell(greedy)
        return Decided(planned.plans, greedy, tuple(missing))

    def _planner(self, logic: PlanLogic) -> Planner:
        if self._named is None or self._named[0] is not logic:
            self._named = (logic, planner(logic, self._limit_s))
        return self._named[1]

    def _ahead(self, policy: Policy, snapshot: Snapshot, now: float) -> dict[Key, float]:
        seen = {Key(one.origin, one.model, one.residency): one.requests_per_s for one in demand(snapshot, now)}
        self._forecaster.observe(seen, now)
        return self._forecaster.ahead(now, policy.objective.forecast_ahead_s)

    def _tell(self, greedy: Mapping[str, str]) -> None:
        """Say once when a model is planned greedily, why, and when that is over."""
        if greedy.keys() != self._told:
            _log.warning("planned greedily", models=dict(greedy))
            self._told = frozenset(greedy)
