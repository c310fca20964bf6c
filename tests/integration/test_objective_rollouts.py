"""A change of the planner's weights is rolled out as any change of policy: real control planes, etcd and repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.signed_store import SignedStore
from penstock.planning.plan import RegionPlan
from penstock.rollout.policy_rollout import Phase
from tests.support.control_planes import (
    PLANET,
    REGIONS,
    ApplyingAgents,
    ControlPlaneServer,
    Operator,
    control_planes,
    is_in,
    rollout_rules,
)
from tests.support.git_repositories import PolicyRepository, bundle_files
from tests.support.rollout_orders import order
from tests.support.wait import found, until_async

Serving = AbstractContextManager[list[ControlPlaneServer]]

CHEAPEST = "us-east"
CANARY = "eu-es"
AT_HOME = {name: {name: 1.0} for name in REGIONS}
BY_PRICE = {name: {CHEAPEST: 1.0} for name in REGIONS}
BY_LATENCY, BY_COST = 0.0, 100_000_000.0
RULES: Mapping[str, object] = {
    "shadow_s": 8,
    "canary_regions": f"[{CANARY}]",
    "canary_s": 10,
    "acknowledge_timeout_s": 15,
    "watch_s": 2,
}


def files(latency_ms_per_cost: float, **rules: object) -> dict[str, bytes]:
    """The planet's bundle with large steps and a weight of prices."""
    objective = f"apiVersion: penstock/v1\nkind: Objective\nlatency_ms_per_cost: {latency_ms_per_cost}\n"
    spillover = (PLANET / "spillover.yaml").read_bytes() + b"step_per_s: 1\n"
    return bundle_files(
        PLANET, objective=objective.encode(), spillover=spillover, rollout=rollout_rules(**{**RULES, **rules})
    )


@pytest.fixture
def repository(tmp_path: Path) -> PolicyRepository:
    return PolicyRepository(tmp_path / "policy.git")


@pytest.fixture
def serving(own_etcd: EtcdServer, repository: PolicyRepository, tmp_path: Path) -> Callable[[], Serving]:
    def start() -> Serving:
        settings = {"POLICY_REPOSITORY": str(repository.path), "POLICY_POLL_S": "1"}
        return control_planes("a", tmp_path, own_etcd.endpoint, policy_settings=settings)

    return start


async def shares(store: SignedStore) -> dict[str, dict[str, float]]:
    """The serving regions of each region's demand."""
    plans = [decode(item.value, RegionPlan) for item in (await store.list(keys.PLANS)).items]
    return {
        plan.region: {arc.server: arc.share for class_plan in plan.classes for arc in class_plan.arcs} for plan in plans
    }


async def planned(store: SignedStore, wanted: Mapping[str, Mapping[str, float]]) -> bool:
    return await shares(store) == wanted


async def shown(operator: Operator, server: ControlPlaneServer) -> Any:
    return (await operator.http.get(f"{server.url}/v1/rollouts/current")).json()


async def test_from_latency_to_price_by_shadow_canary_and_promotion(
    serving: Callable[[], Serving], repository: PolicyRepository, store: SignedStore, operator: Operator
) -> None:
    repository.commit(files(BY_LATENCY))
    with serving() as (server,):
        async with ApplyingAgents(store, [server.url]):
            await operator.until(server, lambda status: is_in(status, Phase.DONE, 1))
            await until_async(lambda: planned(store, AT_HOME))
            repository.commit(files(BY_COST), message=b"Plan by price")
            await operator.until(server, lambda status: is_in(status, Phase.SHADOW))

            async def compared() -> Any:
                reported = await shown(operator, server)
                return reported if reported["moves"] is not None else None

            reported = await found(compared)
            assert [
                (change["kind"], change["field"], change["before"], change["after"]) for change in reported["changes"]
            ] == [("Objective", "latency_ms_per_cost", BY_LATENCY, BY_COST)]
            assert reported["rollout"]["moved_share"] == pytest.approx(0.8)
            coming = {(move["origin"], move["after"]) for move in reported["moves"] if move["server"] == CHEAPEST}
            assert coming == {(name, 1.0) for name in REGIONS if name != CHEAPEST}
            assert await shares(store) == AT_HOME

            await operator.until(server, lambda status: is_in(status, Phase.CANARY))
            await until_async(lambda: planned(store, AT_HOME | {CANARY: BY_PRICE[CANARY]}))
            await operator.until(server, lambda status: is_in(status, Phase.DONE))
            await until_async(lambda: planned(store, BY_PRICE))


@pytest.mark.long
async def test_an_objective_that_moves_too_much_is_held_and_a_slow_one_rolled_back(
    serving: Callable[[], Serving], repository: PolicyRepository, store: SignedStore, operator: Operator
) -> None:
    limits = {"max_moved_share": 0.25, "min_requests": 300, "max_latency_factor": 2, "canary_s": 30}
    repository.commit(files(BY_LATENCY, **limits))
    with serving() as (server,):
        async with ApplyingAgents(store, [server.url]) as agents:
            agents.slow_from = {CHEAPEST}
            await operator.until(server, lambda status: is_in(status, Phase.DONE, 1))
            await until_async(lambda: planned(store, AT_HOME))
            repository.commit(files(BY_COST, **limits))
            held = await operator.until(server, lambda status: is_in(status, Phase.SHADOW_HELD))
            assert held.rollout is not None
            assert held.rollout.why == "it would move 80.0% of demand, more than 25.0%"
            assert await shares(store) == AT_HOME

            resumed = await order(operator.http, "/v1/rollouts/current/resume", "try it", server.url)
            assert resumed.status_code == 200, resumed.text
            await until_async(lambda: planned(store, AT_HOME | {CANARY: BY_PRICE[CANARY]}))
            back = await operator.until(server, lambda status: is_in(status, Phase.ROLLED_BACK))
            assert back.rollout is not None
            assert "mean time to first byte" in back.rollout.why
            await until_async(lambda: planned(store, AT_HOME))
