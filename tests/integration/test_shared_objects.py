"""Requests for an object at another agent of the region than the one that forwarded its creation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import redis
from msgspec.structs import replace
from redis.exceptions import RedisError

from adapters.servers.redis import RedisServer
from penstock.routes.object_locations import SHARE_AGAIN_S, ObjectLocation
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.objects.shared_objects import BATCH, SharedObjects, _digest, object_keys
from regional_agent.shared_load import shared_entries
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from regional_agent.shared_load.shared_entries import MAX_WAITING
from tests.integration.test_objects import RESPONSES, comfyui, create, keeps, open_websocket, request
from tests.support.agents import Agent, running_agent
from tests.support.chats import ask, code
from tests.support.planet import MODEL, plan
from tests.support.shared_loads import region_keys
from tests.support.sockets import Script, engine
from tests.support.wait import PATIENCE_S, until


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit of look-ups in Redis, for busy machines."""
    monkeypatch.setattr(shared_entries, "TIMEOUT_S", PATIENCE_S)


@asynccontextmanager
async def twins(
    directory: Path, redis_url: str, region: str = "eu-de", make: Callable[[str], Script] = keeps
) -> AsyncIterator[tuple[Agent, Agent]]:
    """Two agents of a region in front of the same two engines, with object names that no other test uses."""
    name = directory.parent.name
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(make(f"{which}.{name}"))) for which in ("first", "other")]
        addresses = [gpu.address for gpu in engines]
        agents = [
            await stack.enter_async_context(
                running_agent(directory / name, addresses, region=region, name=name, redis_url=redis_url)
            )
            for name in ("agent-1", "agent-2")
        ]
        yield agents[0], agents[1]


async def test_the_other_agent_of_the_region_finds_the_endpoint(tmp_path: Path, redis_server: RedisServer) -> None:
    async with twins(tmp_path / "a", redis_server.url) as (agent_1, agent_2):
        created = [await create(agent_1) for _ in range(4)]
        for object_id in created:
            answer = await request(agent_2, "GET", f"{RESPONSES}/{object_id}")
            assert (answer.status, json.loads(answer.body)["at"]) == (200, object_id.rpartition("-")[0])
        last = await create(agent_2, previous_response_id=await create(agent_1))
        assert await create(agent_1, previous_response_id=last)
        answer = await request(agent_2, "GET", f"{RESPONSES}/resp_unknown")
        assert (answer.status, code(answer.body)) == (404, "not_found")
        assert agent_2.objects.status() == {"count": 6, "shared": {"up": True, "rejected": 0}}


async def test_the_other_agent_of_a_serving_region_finds_the_endpoint(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        twins(tmp_path / "b", redis_server.url, "eu-es") as (agent_1, agent_2),
        engine(keeps("near")) as near,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": agent_1.peer}) as origin,
    ):
        object_id = await create(origin)
        origin.peers.addresses["eu-es"] = agent_2.peer
        answer = await request(origin, "GET", f"{RESPONSES}/{object_id}")
        assert (answer.status, json.loads(answer.body)["at"]) == (200, object_id.rpartition("-")[0])


async def test_a_websocket_through_the_other_agent_reaches_the_endpoint_of_its_prompts(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async with twins(tmp_path / "w", redis_server.url, make=comfyui) as agents:
        for agent in agents:
            agent.config.policy = replace(agent.config.policy, routes=preset_routes("comfyui", MODEL))
        agent_1, agent_2 = agents
        for number in range(4):
            client_id = f"{tmp_path.name}-{number}"
            prompt = json.dumps({"prompt": {}, "client_id": client_id}).encode()
            first = json.loads((await ask(agent_1, body=prompt, path="/prompt")).body)["at"]
            client, at = await open_websocket(agent_2, client_id)
            assert first.startswith(at)
            second = json.loads((await ask(agent_2, body=prompt, path="/prompt")).body)["at"]
            assert second == first
            client.close()


async def test_values_that_no_agent_stored_are_ignored(tmp_path: Path, own_redis: RedisServer) -> None:
    async with twins(tmp_path / "c", own_redis.url) as (agent_1, agent_2):
        created = [await create(agent_1) for _ in range(2)]
        objects, _ = object_keys("eu-de", "open")
        client = redis.Redis.from_url(own_redis.url)
        await until(lambda: client.hlen(objects) == 2)
        fields = sorted(client.hkeys(objects))
        values = [client.hget(objects, field) for field in fields]
        for field, value in zip(fields, values[1:] + values[:1], strict=True):
            client.hset(objects, field, value)
        for object_id in created:
            assert (await request(agent_2, "GET", f"{RESPONSES}/{object_id}")).status == 404
        assert agent_2.shared_objects is not None
        assert agent_2.shared_objects.entries.rejected >= len(created)
        client.set(objects, "another type")
        assert (await request(agent_2, "GET", f"{RESPONSES}/{created[0]}")).status == 404
        assert await create(agent_1)


async def test_without_redis_an_agent_finds_its_own_objects(tmp_path: Path) -> None:
    async with twins(tmp_path / "d", "redis://127.0.0.1:1/0") as (agent_1, agent_2):
        object_id = await create(agent_1)
        assert (await request(agent_1, "GET", f"{RESPONSES}/{object_id}")).status == 200
        for _ in range(2):
            assert (await request(agent_2, "GET", f"{RESPONSES}/{object_id}")).status == 404
        assert agent_2.shared_objects is not None
        assert not agent_2.shared_objects.entries.up


async def test_a_tenant_with_many_objects_evicts_its_own(redis_server: RedisServer, tmp_path: Path) -> None:
    region = tmp_path.name
    shared = SharedObjects(
        RegionRedis(RedisAddress(redis_server.url), region_keys(region), region), Random(1), max_tenant_objects=10
    )
    shared.start()
    try:
        shared.publish("small", "kept", ObjectLocation(MODEL, region, "gpu-0"))
        for number in range(200):
            shared.publish("large", f"object-{number}", ObjectLocation(MODEL, region, f"gpu-{number}"))
        client = redis.Redis.from_url(redis_server.url)
        objects, used = object_keys(region, "large")
        await until(lambda: not shared.entries.stores and client.hlen(objects) == client.zcard(used) == 10)
        assert client.pttl(objects) > 0
        for number in range(190, 200):
            assert await shared.find("large", f"object-{number}") == ObjectLocation(MODEL, region, f"gpu-{number}")
        assert await shared.find("large", "object-0") is None
        assert await shared.find("small", "kept") == ObjectLocation(MODEL, region, "gpu-0")
        assert await shared.find("large", "kept") is None
    finally:
        await shared.stop()


async def test_a_failed_exchange_drops_the_oldest_locations() -> None:
    shared = SharedObjects(RegionRedis(RedisAddress("redis://127.0.0.1:1"), region_keys("eu-de"), "eu-de"), Random(1))
    location = ObjectLocation(MODEL, "eu-de", "gpu-0")
    names = [f"resp_{number}" for number in range(MAX_WAITING + 10)]
    for name in names[:MAX_WAITING]:
        shared.publish("open", name, location)
    exchange = asyncio.create_task(shared.entries.exchange())
    await until(lambda: len(shared.entries.stores) == MAX_WAITING - BATCH)
    for name in names[MAX_WAITING:]:
        shared.publish("open", name, location)
    with pytest.raises((RedisError, OSError)):
        await exchange
    assert [operation.name for operation in shared.entries.stores] == [_digest("open", name) for name in names[10:]]
    await shared.stop()


async def test_an_object_in_use_at_one_agent_is_kept_for_the_others(redis_server: RedisServer, tmp_path: Path) -> None:
    region = tmp_path.name
    shared = SharedObjects(RegionRedis(RedisAddress(redis_server.url), region_keys(region), region), Random(1))
    location, known = ObjectLocation(MODEL, region, "gpu-0"), KnownObjects(shared)
    shared.start()
    try:
        known.created("open", "resp_1", location, 0.0)
        client = redis.Redis.from_url(redis_server.url)
        _, used = object_keys(region, "open")
        for now, use in (
            (2 * SHARE_AGAIN_S, known.find),
            (4 * SHARE_AGAIN_S, lambda *asked: known.created("open", "resp_1", location, asked[2])),
        ):
            await until(lambda: client.zcard(used) == 1)
            client.zadd(used, dict.fromkeys(client.zrange(used, 0, -1), 1.0))
            use("open", "resp_1", now)
            await until(lambda: client.zrange(used, 0, -1, withscores=True)[0][1] > 1.0)
            use("open", "resp_1", now + 1.0)
            assert not shared.entries.stores, "at most one store in each interval"
    finally:
        await shared.stop()
