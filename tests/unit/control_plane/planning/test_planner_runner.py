"""The planner runs outside the event loop, and the waterfall plans if the planner fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from control_plane.planning.planner_runner import WHOLE_FLEET, PlannerRunner
from penstock.fleet.report import AgentReport, DemandReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.plan import RegionPlan
from penstock.planning.planner import PlanResult
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.operations import Event, Objective
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from tests.support.planner_calls import tick_input
from tests.support.wait import PATIENCE_S

WHERE = frozenset({"a", "b"})
POLICY = Policy(
    regions={"a": Region("a", "DE", 50.0, 8.0), "b": Region("b", "ES", 40.0, -3.0)},
    models={"m": Model("m")},
    tenants={},
    residency=(),
    objective=Objective(forecast_horizon_s=300.0),
)
CLASS = residency_class(WHERE).name


def fleet(requests_per_s: float, at: float) -> Snapshot:
    """Two pools of 100 slots of 1 s each, and demand at one of them."""
    agents = {
        (name, "1"): HeldReport(
            AgentReport(
                name,
                "1",
                1,
                1,
                at,
                (PoolReport("m", 4, 4, 100, 0, 1.0),),
                (DemandReport("m", CLASS, tuple(sorted(WHERE)), requests_per_s),) if name == "a" else (),
            ),
            at,
        )
        for name in WHERE
    }
    return Snapshot(agents, dict.fromkeys(WHERE, RegionHealth(RegionState.HEALTHY)))


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of its mind")


async def decided(
    runner: PlannerRunner,
    requests_per_s: float,
    now: float = 1000.0,
    before: Mapping[str, RegionPlan] | None = None,
    policy: Policy = POLICY,
) -> PlanResult:
    return await runner.plan(
        tick_input(
            policy, fleet(requests_per_s, now), dict(before or {}), now=now, epoch=3, generation=9, elapsed_s=0.5
        )
    )


def share_at_home(result: PlanResult) -> float:
    entry = result.plans["a"].lookup("m", CLASS)
    assert entry is not None
    return {arc.server: arc.share for arc in entry.arcs}.get("a", 0.0)


async def test_a_plan_lists_missing_capacity_worst_first() -> None:
    result = await decided(PlannerRunner(PATIENCE_S), 190.0)
    assert (result.plans["a"].epoch, result.plans["a"].generation) == (3, 9)
    assert not result.fallbacks
    assert [missing.lost for missing in result.shortfalls][:2] == [None, None]
    assert {missing.lost for missing in result.shortfalls} == {None, "a", "b"}


async def test_without_time_the_waterfall_decides_and_the_model_is_named() -> None:
    result = await decided(PlannerRunner(0.0), 190.0)
    assert list(result.fallbacks) == ["m"]
    assert share_at_home(result) < 1.0


async def test_a_planner_that_fails_is_replaced_by_the_waterfall_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = PlannerRunner(PATIENCE_S)
    with monkeypatch.context() as broken:
        broken.setattr(FlowPlanner, "plan", fail)
        result = await decided(runner, 10.0)
    assert result.fallbacks == {WHOLE_FLEET: "out of its mind"}
    assert share_at_home(result) == 1.0
    assert not (await decided(runner, 10.0)).fallbacks


async def test_a_waterfall_that_stands_in_keeps_failover_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowPlanner, "plan", fail)
    entry = (await decided(PlannerRunner(PATIENCE_S), 10.0)).plans["a"].lookup("m", CLASS)
    assert entry is not None
    assert [(way.lost, [arc.server for arc in way.arcs]) for way in entry.failover_tables] == [("a", ["b"])]


async def test_an_error_of_the_waterfall_is_raised_and_the_next_tick_plans_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = PlannerRunner(PATIENCE_S)
    with monkeypatch.context() as broken:
        broken.setattr(FlowPlanner, "plan", fail)
        broken.setattr(WaterfallPlanner, "plan", fail)
        with pytest.raises(RuntimeError):
            await decided(runner, 10.0)
    assert not (await decided(runner, 10.0)).fallbacks


async def test_a_policy_of_an_earlier_release_that_names_the_waterfall_is_planned_by_price() -> None:
    """The other region costs a hundredth, and only the linear program uses costs."""
    cheap_b = msgspec.structs.replace(POLICY.regions["b"], cost_per_gpu_hour=0.01)
    policy = msgspec.structs.replace(
        POLICY,
        regions=POLICY.regions | {"b": cheap_b},
        objective=Objective(planner="waterfall", latency_ms_per_cost=1e8, forecast_horizon_s=0.0),
    )
    planned = await decided(PlannerRunner(PATIENCE_S), 50.0, policy=policy)
    assert (share_at_home(planned), planned.fallbacks) == (0.0, {})


async def test_planning_does_not_block_the_event_loop() -> None:
    runner, beats = PlannerRunner(PATIENCE_S), 0
    planning = asyncio.create_task(decided(runner, 10.0))
    while not planning.done():
        await asyncio.sleep(0)
        beats += 1
    assert beats > 0
    await planning


async def test_growing_demand_is_planned_for_in_advance() -> None:
    """Home serves 80 requests/s; demand grows by 1/s each second, so the plan spills before demand is 80."""
    runner = PlannerRunner(PATIENCE_S)
    before: dict[str, RegionPlan] = {}
    for at in range(40):
        result = await decided(runner, 35.0 + at, 1000.0 + at, before)
        before = result.plans
    assert share_at_home(result) < 1.0
    assert share_at_home(await decided(PlannerRunner(PATIENCE_S), 74.0, 2000.0)) == 1.0


async def test_an_announced_event_raises_the_forecast_before_it_begins() -> None:
    runner = PlannerRunner(PATIENCE_S)
    await decided(runner, 10.0)
    announcing = msgspec.structs.replace(POLICY, events=(Event("launch", 1200.0, 600.0, 4.0),))
    usual, raised = (list(runner.forecast(policy, 1000.0, 300.0).values()) for policy in (POLICY, announcing))
    assert raised == [4.0 * rate for rate in usual] != []
    assert runner.forecast(announcing, 1000.0, 100.0) == runner.forecast(POLICY, 1000.0, 100.0)
    assert share_at_home(await decided(PlannerRunner(PATIENCE_S), 60.0)) == 1.0
    assert share_at_home(await decided(PlannerRunner(PATIENCE_S), 60.0, policy=announcing)) < 1.0
