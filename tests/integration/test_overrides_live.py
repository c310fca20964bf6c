"""Overrides on real control planes, a real etcd and real agents: traffic moves away, and returns by the ramp."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.config_store import Changed
from adapters.store.signed_store import SignedStore
from penstock.health.region_health import RegionState
from penstock.log_chains.audit_log_chain import AuditEntry, verify_chain
from penstock.planning.plan import RegionPlan
from regional_agent.config.active_config import ActiveConfig
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, ask
from tests.support.control_planes import (
    PLANET,
    Agents,
    ControlPlaneServer,
    Operator,
    control_planes,
    roll_out_at_once,
)
from tests.support.reports import MODEL, offered
from tests.support.sockets import engine
from tests.support.stores import Following
from tests.support.wait import PATIENCE_S, until, until_async

EU = ("eu-de", "eu-es")
KEY = "Authorization: Bearer demo-eu-personal"
ENDS_IN_S = 8.0
"""Rest of a maintenance window: longer than a change of policy takes."""
MAX_STEP = 0.25
"""Of one plan to the next: the policy's step_per_s, and no more than a second's worth of it."""


@asynccontextmanager
async def real_agents(directory: Path, store: SignedStore) -> AsyncIterator[dict[str, Agent]]:
    """Run an agent with an engine in each region of the EU; the agents apply the stored overrides."""
    async with (
        engine(answers) as german,
        engine(answers) as spanish,
        following("eu-es", directory, store) as in_spain,
        following("eu-de", directory, store) as in_germany,
        running_agent(directory / "es", [spanish.address], region="eu-es", config=in_spain) as spain,
        running_agent(
            directory / "de", [german.address], region="eu-de", peers={"eu-es": spain.peer}, config=in_germany
        ) as germany,
    ):
        yield {"eu-de": germany, "eu-es": spain}


@asynccontextmanager
async def following(region: str, directory: Path, store: SignedStore) -> AsyncIterator[ActiveConfig]:
    """Follow the stored configuration of a region."""
    (directory / region).mkdir()
    config = ActiveConfig(region, store, directory / region, Random(1), lambda policy: None)
    config.start()
    try:
        yield config
    finally:
        await config.stop()


async def serving(agent: Agent, requests: int = 40) -> Counter[str]:
    """The regions that serve the requests at an agent."""
    served: Counter[str] = Counter()
    for _ in range(requests):
        status, headers, body = await ask(agent, KEY)
        assert status == 200, body
        served[headers["x-penstock-region"]] += 1
    return served


async def until_all_from(agent: Agent, region: str) -> None:
    """Wait until a region serves all requests at an agent; late reports, on a busy machine, move some for a while."""

    async def holds() -> bool:
        return await serving(agent) == {region: 40}

    await until_async(holds)


def shares(plan: RegionPlan) -> dict[str, float]:
    entry = plan.lookup(MODEL, "+".join(EU))
    return {arc.server: arc.share for arc in entry.arcs} if entry is not None else {}


def history(changes: list[Changed]) -> list[float]:
    """Germany's share of its own demand in each plan."""
    plans = [
        decode(change.now.value, RegionPlan) for change in changes if change.key == keys.plan("eu-de") and change.now
    ]
    return [shares(plan).get("eu-de", 0.0) for plan in plans if shares(plan)]


def in_small_steps(shares: Iterable[float]) -> bool:
    """Whether a region's share grows in small steps; late reports, on a busy machine, restart the ramp at zero."""
    return all(after - before <= MAX_STEP + 1e-6 for before, after in pairwise(shares))


async def applied(agent: Agent, wanted: dict[str, float], within_s: float = PATIENCE_S) -> None:
    def holds() -> bool:
        plan = agent.config.plan
        return plan is not None and shares(plan) == wanted

    await until(holds, within_s)


async def post(operator: Operator, server: ControlPlaneServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return await operator.http.post(f"{server.url}/v1/{path}", json={"reason": "a test"} | body)


async def test_a_drain_moves_traffic_outlives_its_leader_and_is_lifted_by_the_ramp(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
        leader, epoch = await operator.leader_among(servers)
        (other,) = [server for server in servers if server is not leader]
        async with (
            Agents([server.url for server in servers]) as reports,
            real_agents(tmp_path, store) as agents,
            Following(store, keys.PLANS) as following,
        ):
            reports.demand = {"eu-de": (offered(10.0, *EU),)}
            germany = agents["eu-de"]
            await applied(germany, {"eu-de": 1.0})
            await until_all_from(germany, "eu-de")

            # The follower accepts the override too.
            drained = await post(operator, other, "regions/eu-de/drain", {"expires_in_s": 3600})
            assert drained.status_code == 201, drained.text
            await applied(germany, {"eu-es": 1.0})
            assert await serving(germany) == {"eu-es": 40}
            await following.until(lambda: history(following.changes)[-1:] == [0.0])
            falling = history(following.changes)
            assert in_small_steps(reversed(falling))
            assert len(set(falling)) > 3
            status = await operator.status(leader)
            assert [region.state for region in status.regions if region.name == "eu-de"] == [RegionState.DRAINING]
            plan = germany.config.plan
            assert plan is not None
            assert {closed.region for closed in plan.closed} == {"eu-de"}

            seen = len(following.changes)
            leader.kill()
            _, next_epoch = await operator.leader_among([other], besides=epoch)
            await operator.until(other, lambda status: status.plan is not None and status.plan.epoch == next_epoch)
            await following.until(lambda: bool(history(following.changes[seen:])))
            assert set(history(following.changes[seen:])) == {0.0}
            assert await serving(germany) == {"eu-es": 40}

            seen = len(following.changes)
            lifted = await post(operator, other, "regions/eu-de/undrain", {})
            assert lifted.status_code == 200, lifted.text
            await applied(germany, {"eu-de": 1.0})
            await following.until(lambda: history(following.changes[seen:])[-1:] == [1.0])
            rising = history(following.changes[seen:])
            assert in_small_steps(rising)
            assert len(set(rising)) > 3
            await until_all_from(germany, "eu-de")


@pytest.mark.long
async def test_a_fail_over_takes_one_plan_and_expired_overrides_are_audited(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("a", tmp_path, own_etcd.endpoint) as (server,):
        async with Agents([server.url]) as reports, Following(store, keys.plan("eu-de")) as following:
            reports.demand = {"eu-de": (offered(10.0, *EU),)}
            await following.until(lambda: history(following.changes)[-1:] == [1.0])
            body = {"kind": "fail_over", "region": "eu-de", "expires_in_s": "none"}
            assert (await post(operator, server, "overrides", body)).status_code == 201
            await following.until(lambda: history(following.changes)[-1:] == [0.0])
            assert set(history(following.changes)) == {1.0, 0.0}

        body = {"kind": "weight", "region": "jp-tok", "value": 0.5, "expires_in_s": 0.5}
        assert (await post(operator, server, "overrides", body)).status_code == 201

        async def actions() -> list[str]:
            export = await operator.http.get(f"{server.url}/v1/audit/export")
            entries = [msgspec.json.decode(line, type=AuditEntry) for line in export.content.splitlines()]
            assert verify_chain(entries) is None
            return [entry.action for entry in entries]

        async with asyncio.timeout(60.0):
            while True:
                if await actions() == ["override.fail_over", "override.weight", "override.expire"]:
                    break
                await asyncio.sleep(0.1)
        (left,) = (await operator.http.get(f"{server.url}/v1/overrides")).json()["items"]
        assert left["override"]["kind"] == "fail_over"


async def judging(operator: Operator, server: ControlPlaneServer) -> None:
    """Return once the leader has enough reports to evaluate overrides, so that bad input is refused as bad input."""

    async def refused() -> bool:
        return (await post(operator, server, "regions/mars/drain", {"expires_in_s": 1})).status_code == 422

    await until_async(refused)


async def test_two_control_planes_at_once_never_empty_a_class_together(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
        for server in servers:
            await operator.until(server, lambda status: status.policy.digest is not None and status.store.up)
            await judging(operator, server)
        for _ in range(8):
            answers = await asyncio.gather(
                *(
                    post(operator, server, f"regions/{region}/drain", {"expires_in_s": 600})
                    for server, region in zip(servers * 2, (*EU, *EU), strict=True)
                )
            )
            assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
            (won,) = [answer.json()["override"]["region"] for answer in answers if answer.status_code == 201]
            assert (await post(operator, servers[0], f"regions/{won}/undrain", {})).status_code == 200


@pytest.mark.long
async def test_a_maintenance_window_drains_and_ends_without_an_operator(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(PLANET, tmp_path / "bundle"))
    minute = time.time() // 60 * 60
    window = {
        "apiVersion": "penstock/v1",
        "kind": "MaintenanceWindow",
        "name": "disks",
        "regions": ["eu-de"],
        "starts_at": datetime.fromtimestamp(minute, UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "time_zone": None,
        "duration_s": 86_400,
        "recurrence": "weekly",
        "lead_s": 0,
    }
    (bundle / "disks.yaml").write_text(yaml.safe_dump(window))
    roll_out_at_once(bundle)
    with control_planes("a", tmp_path, own_etcd.endpoint, bundle) as (server,):
        async with Agents([server.url]) as reports, Following(store, keys.plan("eu-de")) as following:
            reports.demand = {"eu-de": (offered(10.0, *EU),)}
            await following.until(lambda: history(following.changes)[-1:] == [0.0])
            (override,) = (await operator.http.get(f"{server.url}/v1/overrides")).json()["items"]
            assert (override["by_policy"], override["override"]["author"]) == (True, "policy disks.yaml:5")
            away = f"{server.url}/v1/overrides/{override['override']['id']}?reason=impatience"
            assert (await operator.http.delete(away, headers={"if-match": "*"})).status_code == 409
            refused = await post(operator, server, "regions/eu-de/undrain", {})
            assert (refused.status_code, "disks.yaml:5" in refused.json()["detail"]) == (409, True)
            (tmp_path / "shorter.yaml").write_text(
                yaml.safe_dump(window | {"duration_s": time.time() - minute + ENDS_IN_S})
            )
            (tmp_path / "shorter.yaml").replace(bundle / "disks.yaml")
            await following.until(lambda: history(following.changes)[-1:] == [1.0], ENDS_IN_S + PATIENCE_S)
            returning = history(following.changes)
            assert in_small_steps(returning)
            assert len(set(returning)) > 3
