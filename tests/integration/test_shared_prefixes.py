"""Agents of a region share the prefixes of endpoints through a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from random import Random

import pytest
import redis

from adapters.servers.redis import RedisServer
from penstock.routing.affinity import BLOCK_BYTES, AffinityIndex, prefix_keys
from penstock.wire.region_key import RegionKey
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.shared_load.prefix_exchange import MAX_ENTRIES, MAX_ENTRY_BYTES, PrefixExchange, prefixes_key
from regional_agent.shared_load.published_load import PublishedLoad, seal_load
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from tests.support.shared_loads import region_keys
from tests.support.wait import until

PROMPT = prefix_keys("tenant/model", memoryview(b"p" * 4 * BLOCK_BYTES))


class Sharing(AffinityIndex):
    """The affinity index of one agent, and the task that exchanges it."""

    def __init__(self, region: str, agent: str, url: str) -> None:
        super().__init__()
        self.known = {"a", "b", "c"}
        self.exchange = PrefixExchange(
            self,
            lambda name: name in self.known,
            RegionRedis(RedisAddress(url), region_keys(region), region),
            AgentInstance(region, agent, 1),
            Random(1),
        )

    def blocks(self, now: float = 0.0) -> dict[str, int]:
        return dict(self.held(PROMPT, None, now).blocks)

    def has(self, *endpoints: str) -> bool:
        return {name for _, names in self._holders.values() for name in names} == set(endpoints)


Start = Callable[..., Sharing]


@pytest.fixture
def region(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(redis_server.url)


@pytest.fixture
async def start(region: str, redis_server: RedisServer) -> AsyncIterator[Start]:
    started: list[Sharing] = []

    def start(agent: str) -> Sharing:
        sharing = Sharing(region, agent, redis_server.url)
        sharing.exchange.start()
        started.append(sharing)
        return sharing

    yield start
    for sharing in started:
        await sharing.exchange.stop()


async def test_agents_receive_the_prefixes_of_others_also_after_a_later_start(start: Start) -> None:
    a, b = start("a"), start("b")
    a.sent("gpu-0", PROMPT, None, "m", 0.0)
    b.sent("gpu-1", PROMPT[:2], None, "m", 0.0)
    await until(lambda: a.has("gpu-0", "gpu-1") and b.has("gpu-0", "gpu-1"))
    late = start("c")
    await until(lambda: late.has("gpu-0", "gpu-1"))
    assert late.exchange.rejected == 0


async def test_prefixes_of_other_publishers_are_rejected(start: Start, region: str, client: redis.Redis) -> None:
    key = prefixes_key(region)
    load = seal_load(PublishedLoad("a", 1, 1), RegionKey(region_keys(region), region))
    for value in (b"", b"junk", load, b"x" * (MAX_ENTRY_BYTES + 1)):
        client.xadd(key, {"e": value})
    a, b = start("a"), start("b")
    a.known.discard("b")
    await until(lambda: a.exchange.rejected == b.exchange.rejected == 4)
    b.sent("gpu-1", PROMPT, None, "m", 0.0)
    a.sent("gpu-0", PROMPT, None, "m", 0.0)
    await until(lambda: b.has("gpu-0", "gpu-1"))
    assert a.has("gpu-0"), "an agent that the directory does not have counts for nothing"


async def test_an_unauthenticated_stream_stops_no_exchange(start: Start, region: str, client: redis.Redis) -> None:
    key = prefixes_key(region)
    client.xadd(key, {"e": b"junk"}, id=f"{2**64 - 1}-{2**64 - 1}")
    a, b = start("a"), start("b")
    await until(lambda: a.exchange.rejected > 0 and b.exchange.rejected > 0)
    for number in count():
        a.sent(f"gpu-{number}", PROMPT, None, "m", 0.0)
        if b.blocks():
            break
        await asyncio.sleep(0.01)
    assert client.xlen(key) > 0
    client.set(key, "of another type")
    b.sent("gpu-1", PROMPT, None, "m", 0.0)
    await until(lambda: client.type(key) == b"stream")


async def test_the_stream_is_bounded(start: Start, region: str, client: redis.Redis) -> None:
    key = prefixes_key(region)
    with client.pipeline() as pipeline:
        for _ in range(2 * MAX_ENTRIES):
            pipeline.xadd(key, {"e": b"junk"})
        pipeline.execute()
    start("a").sent("gpu-0", PROMPT, None, "m", 0.0)
    await until(lambda: client.xlen(key) <= MAX_ENTRIES)
    assert client.pttl(key) > 0
