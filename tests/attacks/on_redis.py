"""Attacks by a party that may write to Redis, and by an agent of another region."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import redis.asyncio
from redis.exceptions import ResponseError

from penstock.wire.region_key import RegionKey
from regional_agent.background_tasks import cancel
from regional_agent.shared_load.published_load import PublishedLoad, QueueSummary, seal_load
from regional_agent.shared_load.redis_script import loads_key
from tests.attacks.fleet import SMALL, Fleet
from tests.attacks.suite import attack, expect
from tests.support.shared_loads import region_keys

ATTACKED_S = 3.0
KEY = loads_key("eu-de")


def full(agent: str, number: int) -> PublishedLoad:
    """A load that fills every endpoint and queue of the region."""
    most = (1_000_000, 10**13, 10**13)
    loads = {"eu-de-small": most, "eu-de-images": most}
    return PublishedLoad(agent, 2**50, number, loads, {SMALL: QueueSummary(1_000_000, -1000, 3_600_000, 1)})


async def _flood(client: redis.asyncio.Redis) -> None:
    """Write forged loads again and again: sealed by another region's key, unsealed, of a wrong type, and too many."""
    others = RegionKey(region_keys("us-east"), "us-east")
    for number in count(1):
        with suppress(ResponseError):  # until an agent has deleted the key, which was no hash in the previous iteration
            await _write_forged(client, number, others)
        await asyncio.sleep(0.05)


async def _write_forged(client: redis.asyncio.Redis, number: int, others: RegionKey) -> None:
    for agent in ("a", "b", "stranger"):
        load = full(agent, number)
        await client.hset(KEY, load.field, seal_load(load, others))
        await client.hset(KEY, f"{agent}~{2**51}", seal_load(load, others)[16:])
    if number % 5 == 0:
        await client.hset(KEY, mapping={f"agent-{index}~1": b"garbage" for index in range(500)})
    if number % 7 == 0:
        await client.delete(KEY)
        await client.set(KEY, b"not a hash")


async def _serves(fleet: Fleet, seconds: float) -> None:
    """Raises Broken unless both agents serve a tenant that may not leave the idle region, within 2 s each."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        for agent in ("eu-de/a", "eu-de/b"):
            answer = await asyncio.wait_for(fleet.chat(agent, "de-victim"), 2.0)
            expect(answer.status_code == 200, f"{agent} answered {answer.status_code}: {answer.text}")


@attack("9")
async def forged_loads(fleet: Fleet) -> None:
    """The attacker publishes full endpoints and long queues in Redis, as unknown agents and as the region's own.

    The region serves its clients meanwhile.
    """
    client = redis.asyncio.Redis.from_url(fleet.redis.url)
    flooding = asyncio.create_task(_flood(client))
    try:
        await asyncio.sleep(0.5)
        await _serves(fleet, ATTACKED_S)
        expect(not flooding.done(), "the attack itself failed")
    except TimeoutError:
        expect(False, "a request waited for more than 2 s")
    finally:
        await cancel([flooding])
        await client.flushall()
        await client.aclose()


@attack("9.1")
async def replayed_loads(fleet: Fleet) -> None:
    """The attacker records the loads of busy agents in Redis, and restores them when the agents are idle.

    The region serves its clients as an idle one does.
    """
    client = redis.asyncio.Redis.from_url(fleet.redis.url)
    try:
        busy = [asyncio.create_task(fleet.chat(f"eu-de/{'ab'[n % 2]}", "victim", seconds=1.5)) for n in range(8)]
        await asyncio.sleep(1.0)
        recorded = await client.hgetall(KEY)
        expect(recorded, "the agents publish no load")
        await asyncio.gather(*busy)
        await asyncio.sleep(0.5)

        async def replay() -> None:
            while True:
                await client.hset(KEY, mapping=recorded)
                await asyncio.sleep(0.005)

        replaying = asyncio.create_task(replay())
        try:
            await asyncio.sleep(0.3)
            await _serves(fleet, 2.0)
            expect(not replaying.done(), "the attack itself failed")
        except TimeoutError:
            expect(False, "a request waited for more than 2 s")
        finally:
            await cancel([replaying])
    finally:
        await client.aclose()
