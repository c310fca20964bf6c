"""Tenants that the API created, at an agent: their requests are served, and end when the tenant is changed."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from penstock.policy.kinds.budgets import BudgetUnit
from penstock.policy.policy import Policy
from penstock.tenancy.created_tenants.tenant_changes import with_rotated_key
from penstock.tenancy.tenant_record import RecordBudget, TenantRecord, TenantShard, shard_of
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.tenants.tenant_registry import TenantRegistry
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, answers, ask, code, full, streams_forever
from tests.support.created_tenants import TIERS, created, created_key, put, remove
from tests.support.planet import plan, policy
from tests.support.sockets import RawClient, engine, post
from tests.support.wait import until

AGENTS = 100

KEY = "Authorization: Bearer one"

CHANGES = pytest.mark.parametrize(
    ("change", "reason"),
    [
        (created("acme", created_key("one", revoked_at=1.0)), "invalid_api_key"),
        (created("acme", "two"), "invalid_api_key"),
        (created("acme", "one", is_suspended=True), "tenant_suspended"),
        (created("acme", "one", tier="no-such-tier"), "tier_unknown"),
        (None, "invalid_api_key"),
    ],
    ids=["revoked", "key removed", "suspended", "tier removed", "deleted"],
)


def with_tiers(**fields: Any) -> Policy:
    return replace(policy(), tiers=TIERS, **fields)


async def enforced(agent: Agent) -> None:
    """Wait until the policy in force is enforced, so that only a later change of a tenant ends requests."""
    await until(lambda: agent.proxy._enforcer._enforced is agent.config.policy)


def change_acme(agent: Agent, change: TenantRecord | None) -> None:
    if change is None:
        remove(agent.config.tenants, "acme")
    else:
        put(agent.config.tenants, change)


@CHANGES
async def test_a_stream_ends_with_the_reason(tmp_path: Path, change: TenantRecord | None, reason: str) -> None:
    log = AccessLog(tmp_path / "access.log", 0.0, Random(1))
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        agent.config.policy = with_tiers()
        put(agent.config.tenants, created("acme", "one"), created("other", "three"))
        client, other = await RawClient.connect(agent.traffic), await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        other.send(post(BODY, "Authorization: Bearer three"))
        for each in (client, other):
            await each.head()
            assert await each.chunk() == b"data: 1\n\n"
        await enforced(agent)
        change_acme(agent, change)
        assert code((await client.chunk()).removeprefix(b"data: ")) == reason
        await until(lambda: agent.held() == 1)
        assert agent.counted() == {"revoked": 1.0}
        assert (await ask(agent, KEY)).status == (403 if reason.startswith("t") else 401)
    log.close()
    line = json.loads((tmp_path / "access.log").read_text().splitlines()[0])
    assert (line["tenant"], line["key"], line["outcome"]) == ("acme", "psk-one", "revoked")


async def test_a_rotated_key_and_its_successors_use_one_budget(tmp_path: Path) -> None:
    """Otherwise each rotation begins another month of money, and doubles what is left until the old key expires."""
    limit = RecordBudget(BudgetUnit.REQUESTS, 0.001, burst=3.0)
    record = created("acme", replace(created_key("one"), budgets=(limit,)))
    for old, new in (("one", "two"), ("two", "three")):
        record = with_rotated_key(record, f"psk-{old}", created_key(new), 3600.0, time.time())
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = with_tiers()
        put(agent.config.tenants, record)
        statuses = [(await ask(agent, f"Authorization: Bearer {key}")).status for key in ("one", "two", "three", "one")]
    assert statuses == [200, 200, 200, 429]


async def test_a_queued_request_is_refused(tmp_path: Path) -> None:
    shared = with_tiers(anonymous_tenant="open")
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address, policy=shared) as (agent, _):
        put(agent.config.tenants, created("acme", "one"))
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await until(lambda: agent.waiting() == 1)
        await enforced(agent)
        put(agent.config.tenants, created("acme", created_key("one", revoked_at=1.0)))
        assert code((await client.answer()).body) == "invalid_api_key"
        assert agent.waiting() == 0


@pytest.mark.long
async def test_a_revocation_reaches_queued_requests_at_100_agents(tmp_path: Path, own_etcd: EtcdServer) -> None:
    """Through a real etcd, which each agent follows by itself; the time until the last queued request is refused."""
    shared = with_tiers(anonymous_tenant="open")
    shard = keys.tenant_shard(shard_of("acme"))
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(streams_forever))
        stores = [EtcdStore([own_etcd.endpoint]) for _ in range(AGENTS + 1)]
        for store in stores:
            stack.push_async_callback(store.close)
        *followed, writing = stores
        await writing.commit((), (Put(shard, encode(TenantShard((created("acme", "one"),)))),))
        clients = []
        for number, store in enumerate(followed):
            directory = tmp_path / str(number)
            agent, _ = await stack.enter_async_context(full(directory, gpu.address, policy=shared))
            registry = TenantRegistry(store, directory, Random(number))
            registry.index = agent.config.tenants
            registry.start()
            stack.push_async_callback(registry.stop)
            await registry.wait_read()
            clients.append(await RawClient.connect(agent.traffic))
            clients[-1].send(post(BODY, KEY))
            await until(lambda agent=agent: agent.waiting() == 1)
            await enforced(agent)
        ended_s: list[float] = []

        async def ends(client: RawClient) -> None:
            assert code((await client.answer()).body) == "invalid_api_key"
            ended_s.append(time.monotonic() - began)

        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(ends(client))
            began = time.monotonic()
            revoked = created("acme", created_key("one", revoked_at=1.0))
            await writing.commit((), (Put(shard, encode(TenantShard((revoked,)))),))
        ended_s.sort()
        print(f"queued requests refused after {ended_s[AGENTS // 2]:.2f} s (median), {ended_s[-1]:.2f} s (last)")
        # All agents share one process here: the target of a second is for agents of their own.
        assert ended_s[-1] < 5.0
        for client in clients:
            client.close()


@CHANGES
async def test_the_serving_region_ends_forwarded_requests_by_its_own_registry(
    tmp_path: Path, change: TenantRecord | None, reason: str
) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(streams_forever) as far,
        engine(answers) as near,
        running_agent(tmp_path / "es", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        server.config.policy = origin.config.policy = with_tiers()
        for agent in (server, origin):
            put(agent.config.tenants, created("acme", "one"))
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY, KEY))
        await client.head()
        await client.chunk()
        (forwarded,) = (entry.context for entry in active(server))
        assert (forwarded.priority, forwarded.principal.key) == (3, "psk-one")
        await enforced(server)
        change_acme(server, change)
        if reason == "tier_unknown":
            await until(lambda: forwarded.principal.version == server.config.tenants.version)
            assert server.held() == 1, "the origin may have a newer policy"
            return
        assert code((await client.chunk()).removeprefix(b"data: ")) == reason
        await until(lambda: server.held() == origin.held() == 0)
        status, headers, _ = await ask(origin, KEY)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de"), "the serving region refuses later ones"
        assert len(far.requests) == 1


async def test_a_serving_region_applies_the_data_class_that_the_tenant_has_there(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", us_east=1.0)
    async with (
        engine(answers) as far,
        engine(answers) as near,
        running_agent(tmp_path / "us", [far.address], region="us-east") as server,
        running_agent(tmp_path / "de", [near.address], plan=away, peers={"us-east": server.peer}) as origin,
    ):
        server.config.policy = origin.config.policy = with_tiers()
        put(origin.config.tenants, created("acme", "one"))
        assert (await ask(origin, KEY)).headers["x-penstock-region"] == "us-east", "the server does not know the tenant"
        put(server.config.tenants, created("acme", "one", tier="silver"))
        assert (await ask(origin, KEY)).headers["x-penstock-region"] == "eu-de"
        assert len(far.requests) == 1


async def test_the_registry_follows_a_real_store(tmp_path: Path, store: SignedStore) -> None:
    registry = TenantRegistry(store, tmp_path, Random(1))
    registry.start()
    key = keys.tenant_shard(shard_of("acme"))
    try:
        for change in (created("acme", "one"), created("acme", created_key("one", revoked_at=1.0))):
            await store.commit((), (Put(key, encode(TenantShard((change,)))),))
            await until(lambda change=change: registry.index.find_tenant("acme") == change)
        # A value that no process of the fleet has signed changes nothing.
        await store._store.commit((), (Put(key, encode(TenantShard((created("acme", "one"),)))),))
        await store.commit((), (Put(keys.tenant_shard(shard_of("other")), encode(TenantShard((created("other"),)))),))
        await until(lambda: registry.index.find_tenant("other") is not None)
        found = registry.index.find_key(sha256(b"one").digest())
        assert found is not None
        assert found.key.revoked_at == 1.0
    finally:
        await registry.stop()


def active(agent: Agent) -> list[Any]:
    return list(agent.proxy.active)
