"""Runs the linear program with a demand forecast, and the waterfall planner if the linear program fails.

Planning for a large fleet takes long enough to delay reports and requests, so the planner runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import structlog

from penstock.fleet.snapshot import demand
from penstock.planning.forecasting.announced_events import with_events
from penstock.planning.forecasting.demand_signals import Points, with_signals
from penstock.planning.forecasting.forecast import Forecaster
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.planner import PlanResult
from penstock.planning.share_moves import Key
from penstock.planning.tick_input import TickInput
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.policy import Policy

SOLVER_LIMIT_S = 0.25
"""Time limit of the solver for one plan, in seconds; a plan is due every half a second."""

WHOLE_FLEET = "*"
"""Key of `PlanResult.fallbacks` that stands for all models; used if the planner raised an error."""

_log = structlog.get_logger(__name__)


class PlannerRunner:
    """Runs the planner at each tick; each leadership starts with a new runner.

    Args:
        solver_limit_s: time limit of the solver for one plan, in seconds.
        signals: returns the points of the policy's demand signals, by name.
    """

    def __init__(
        self, solver_limit_s: float = SOLVER_LIMIT_S, signals: Callable[[], Mapping[str, Points]] = dict
    ) -> None:
        self._limit_s = solver_limit_s
        self._signals = signals
        self._planner = FlowPlanner(solver_limit_s)
        self._waterfall = WaterfallPlanner()
        """The planner that is used if the linear program fails."""
        self._forecaster = Forecaster()
        self._logged: frozenset[str] = frozenset()
        """The models of the last logged fallbacks."""

    async def plan(self, tick: TickInput) -> PlanResult:
        """Return the plan of a tick, with present shortfalls before those of a lost region, and the largest first.

        Only one call may run at a time. The forecast in `tick` is replaced by the forecast of this runner. An error of
        the waterfall planner is raised, and the plan in force stays.
        """
        result = await asyncio.to_thread(self._plan, tick)
        self._log_fallbacks(result.fallbacks)
        missing = sorted(
            result.shortfalls, key=lambda shortfall: (shortfall.lost is not None, -shortfall.slots, shortfall.model)
        )
        return msgspec.structs.replace(result, shortfalls=tuple(missing))

    def _plan(self, tick: TickInput) -> PlanResult:
        try:
            return self._planner.plan(replace(tick, forecast_per_s=self._forecast_per_s(tick)))
        except Exception as error:
            # The waterfall planner replaces the planner, so that a defect of a planner does not stop planning.
            _log.exception("the planner failed")
            self._planner = FlowPlanner(self._limit_s)
            reason = str(error) or type(error).__name__
            return msgspec.structs.replace(self._waterfall.plan(tick), fallbacks={WHOLE_FLEET: reason})

    def _forecast_per_s(self, tick: TickInput) -> dict[Key, float]:
        measured = {
            Key(row.origin, row.model, row.residency): row.requests_per_s for row in demand(tick.snapshot, tick.now)
        }
        self._forecaster.observe(measured, tick.now)
        horizon_s = tick.policy.objective.forecast_horizon_s
        return self._raised(self._forecaster.ahead(tick.now, horizon_s), tick.policy, tick.now, horizon_s)

    @property
    def forecaster(self) -> Forecaster:
        """The forecast, which no thread may use while `plan` runs."""
        return self._forecaster

    def forecast(self, policy: Policy, now: float, horizon_s: float) -> dict[Key, float]:
        """Return requests per second by key for which endpoints are needed, `horizon_s` seconds after `now`, from
        demand of earlier ticks, and the events and signals of the policy."""
        return self._raised(self._forecaster.for_capacity(now, horizon_s), policy, now, horizon_s)

    def _raised(self, expected: Mapping[Key, float], policy: Policy, now: float, horizon_s: float) -> dict[Key, float]:
        raised = with_events(expected, policy.events or (), now, horizon_s)
        if not policy.demand_signals:
            return raised
        return with_signals(raised, policy.demand_signals, self._signals(), now, horizon_s)

    def _log_fallbacks(self, fallbacks: Mapping[str, str]) -> None:
        """Log once when models are planned by the waterfall, and once when that ends."""
        if fallbacks.keys() != self._logged:
            _log.warning("models planned by the waterfall", models=dict(fallbacks))
            self._logged = frozenset(fallbacks)
