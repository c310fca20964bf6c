"""The cost of the fleet per hour."""

from __future__ import annotations

import msgspec
import pytest

from penstock.fleet.report import GroupReport, PoolReport
from penstock.fleet.snapshot import Demand, FadedPool
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.regions import Region, SpotPool
from penstock.policy.policy import Policy
from penstock.scaling.cost_rates import egress_hourly_cost, gpu_hourly_cost

POLICY = Policy(
    regions={
        "a": Region("a", "DE", 50.0, 8.0, cost_per_gpu_hour=2.0, egress_cost_per_gb=0.1),
        "b": Region("b", "DE", 52.0, 8.0, cost_per_gpu_hour=3.0, egress_cost_per_gb=0.2),
    },
    models={
        "m": Model("m", request_bytes=1e6, response_bytes=2e6, scaling=Scaling(gpus_per_endpoint=8.0)),
        "n": Model("n"),
    },
    tenants={},
    residency=(),
)


def test_endpoints_cost_whether_ready_or_not_and_shared_ones_are_divided() -> None:
    shared = (GroupReport(("m", "n"), 2, 2, 16, 0),)
    pools = {
        ("a", "m"): FadedPool(PoolReport("m", 5, 1, 8, 0, 1.0), 1.0, shared),
        ("a", "n"): FadedPool(PoolReport("n", 2, 2, 16, 0, 1.0), 1.0, shared),
        ("gone", "m"): FadedPool(PoolReport("m", 5, 1, 8, 0, 1.0), 1.0),
    }
    assert gpu_hourly_cost(POLICY, pools, 0.0) == {("a", "m"): 4 * 8 * 2.0, ("a", "n"): 1 * 2.0}
    spot = msgspec.structs.replace(POLICY.regions["a"], spot=(SpotPool(("m",), 0.5),))
    policy = msgspec.structs.replace(POLICY, regions={**POLICY.regions, "a": spot})
    assert gpu_hourly_cost(policy, pools, 0.0) == {("a", "m"): 4 * 8 * 0.5, ("a", "n"): 1 * 2.0}
    none = {("a", "m"): FadedPool(PoolReport("m", 0, 0, 0, 0, 0.0), 0.0)}
    assert gpu_hourly_cost(POLICY, none, 0.0) == {("a", "m"): 0.0}


def test_egress_is_what_the_plan_sends_to_other_regions() -> None:
    arcs = (Arc("a", 0.75, ArcReason.HOME), Arc("b", 0.25, ArcReason.SPILLOVER))
    plans = {"a": RegionPlan("a", 1, 1, "", 0.0, (ClassPlan("m", "a+b", arcs, ()),))}
    demand = [Demand("a", "m", "a+b", frozenset({"a", "b"}), 40.0)]
    per_request = 0.1 * 1e-3 + 0.2 * 2e-3
    assert egress_hourly_cost(POLICY, demand, plans, {}) == {("a", "b"): pytest.approx(0.25 * 40 * 3600 * per_request)}
