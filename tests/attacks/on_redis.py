"""Attacks by a stranger who may write to Redis."""

from __future__ import annotations

import asyncio
import json

import redis.asyncio

from regional_agent.shared_load.redis_script import agent_prefix, index_key
from tests.attacks.fleet import SMALL, Fleet
from tests.attacks.suite import attack, expect

ATTACKED_S = 3.0


@attack("9")
async def forged_loads(fleet: Fleet) -> None:
    """A stranger publishes full endpoints and long queues in Redis, as unknown agents and as the region's own.

    The region serves its clients meanwhile.
    """
    client = redis.asyncio.Redis.from_url(fleet.redis.url)
    names = [*(f"stranger-{number}" for number in range(20)), "a", "b"]
    load = {
        "loads": {"eu-de-small": [1_000_000, 10**13, 10**13], "eu-de-images": [1_000_000, 10**13, 10**13]},
        "waiting": {SMALL: [1_000_000, -1000, 3_600_000, 1]},
    }
    forged = [json.dumps(load), "garbage", json.dumps({"loads": {"eu-de-small": [-5, 0, 0]}})]

    async def flood() -> None:
        for turn in range(1_000_000):
            for name in names:
                entry = {"epoch": 2**52, "load": forged[turn % 3 if name == "a" else 0]}
                await client.hset(agent_prefix("eu-de") + name, mapping=entry)
                await client.zadd(
                    index_key("eu-de"), {name: 4_000_000_000_000 if turn % 2 else await _lease_end(client)}
                )
            await asyncio.sleep(0.05)

    flooding = asyncio.create_task(flood())
    try:
        await asyncio.sleep(0.5)
        loop = asyncio.get_running_loop()
        end = loop.time() + ATTACKED_S
        while loop.time() < end:
            for agent in ("eu-de/a", "eu-de/b"):
                answer = await asyncio.wait_for(fleet.chat(agent, "victim"), 5.0)
                region = answer.headers.get("x-penstock-region")
                expect(answer.status_code == 200, f"{agent} answered {answer.status_code}: {answer.text}")
                expect(region == "eu-de", f"{agent} sent a request to {region}, away from its idle region")
    except TimeoutError:
        expect(False, "a request waited for more than 5 s")
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await client.flushall()
        await client.aclose()


async def _lease_end(client: redis.asyncio.Redis) -> int:
    seconds, _ = await client.time()
    return int(seconds) * 1000 + 2000
