import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from math import inf
from pathlib import Path
from random import Random

import pytest
import redis
from structlog.testing import capture_logs

from adapters.servers.redis import RedisServer
from penstock.fleet import shared_counts
from penstock.fleet.shared_counts import FRESH_S, LEASE_S
from penstock.pools.placement import Reservation
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from regional_agent.background_tasks import cancel
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.shared_load import other_agents, shared_load_exchange
from regional_agent.shared_load.published_load import MAX_US, PublishedLoad, QueueSummary, seal_load
from regional_agent.shared_load.redis_script import (
    MAX_AGENTS,
    MAX_LOAD_BYTES,
    RedisAddress,
    RedisScript,
    RegionRedis,
    loads_key,
)
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.shared_load.shared_load_exchange import SharedLoadExchange
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.reservations import end_prefill, release, reserve
from tests.support.shared_loads import has_no_load, published_loads, region_keys
from tests.support.wait import PATIENCE_S, until


class Sharing:
    """The shared load of one agent, and the task that exchanges it."""

    def __init__(self, endpoints: EndpointSet, region: str, agent: str, epoch: int, url: str) -> None:
        self.load = SharedLoad(endpoints, shared=True)
        self.endpoints = endpoints
        self.queues: dict[str, QueueSummary] = {}
        self.exchange = SharedLoadExchange(
            self.load,
            lambda: self.queues,
            lambda: None,
            RegionRedis(RedisAddress(url), region_keys(region), region),
            AgentInstance(region, agent, epoch),
            Random(epoch),
        )


Start = Callable[..., Sharing]


@pytest.fixture
def region(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
async def start(region: str, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Start]:
    """Starts the shared view of one more agent of the region, on the session's Redis if none is given."""
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        "".join(
            f"- {{name: gpu-{n}, url: 'http://127.0.0.1:{n + 1}', models: [m], slots: 4, queue: 60}}\n" for n in (0, 1)
        )
    )
    views: list[Sharing] = []

    def start(agent: str, epoch: int = 1, server: RedisServer | None = None) -> Sharing:
        endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        view = Sharing(endpoints, region, agent, epoch, (server or redis_server).url)
        view.exchange.start()
        views.append(view)
        return view

    yield start
    for view in views:
        await view.exchange.stop()


@pytest.fixture
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the lease, so that counts do not expire while a busy machine delays this process."""
    for module in (shared_counts, other_agents, shared_load_exchange):
        monkeypatch.setattr(module, "LEASE_S", 2 * PATIENCE_S)
    monkeypatch.setattr(shared_counts, "FRESH_S", PATIENCE_S)


@pytest.fixture
def long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the timeout, so that no exchange fails while a busy machine delays this process or Redis."""
    monkeypatch.setattr(shared_load_exchange, "TIMEOUT_S", PATIENCE_S)


def _load(view: Sharing | SharedLoad) -> SharedLoad:
    return view.load if isinstance(view, Sharing) else view


def endpoint(view: Sharing | SharedLoad, number: int = 0) -> Endpoint:
    return list(_load(view)._endpoints.every())[number]


def in_flight(view: Sharing | SharedLoad) -> list[int]:
    return [gpu.view.in_flight for gpu in _load(view)._endpoints.every()]


async def kill(view: Sharing) -> None:
    """Stop the agent as kill -9 does: it releases and sends nothing."""
    await cancel(view.exchange._tasks)
    view.exchange._tasks = []


async def test_agents_count_each_others_requests_until_they_end(start: Start) -> None:
    a, b = start("a"), start("b")
    held = [reserve(a.load, Reservation(endpoint(a, which))) for which in (0, 0, 1)]
    own = reserve(b.load, Reservation(endpoint(b)))
    await until(lambda: in_flight(a) == in_flight(b) == [3, 1])
    for reservation in held:
        release(a.load, reservation)
    release(b.load, own)
    assert endpoint(b).view.in_flight == 2
    await until(lambda: in_flight(a) == in_flight(b) == [0, 0])


async def test_agents_count_each_others_work_and_queues(start: Start) -> None:
    a, b = start("a"), start("b")
    reservation = reserve(a.load, Reservation(endpoint(a), 500, 7000))
    a.queues = {"m": QueueSummary(3, -1, 250, 7)}
    a.load.publish()
    await until(lambda: (endpoint(b).view.prefill_us, endpoint(b).view.decode_us) == (500, 7000))
    await until(lambda: bool(b.load.work.remote_queues.get("m")))
    [queue] = b.load.work.remote_queues["m"]
    assert (queue.requests, queue.behind, queue.which) == (3, -1, 7)
    assert queue.since <= time.monotonic() - 0.25
    end_prefill(a.load, reservation)
    end_prefill(a.load, reservation)
    assert endpoint(a).view.prefill_us == 0
    await until(lambda: (endpoint(b).view.prefill_us, endpoint(b).view.decode_us) == (0, 7000))
    release(a.load, reservation)
    a.queues = {}
    await until(lambda: endpoint(b).view.decode_us == 0 and not b.load.work.remote_queues.get("m"))


async def test_own_requests_count_at_once_and_are_released_once(start: Start) -> None:
    view = start("a")
    reservation = reserve(view.load, Reservation(endpoint(view)))
    assert in_flight(view) == [1, 0]
    for _ in range(3):
        release(view.load, reservation)
    assert in_flight(view) == [0, 0]


async def test_up_and_age_metrics_show_the_state_of_the_view(start: Start) -> None:
    view = start("a")
    assert not view.load.up
    assert view.load.age_s() == float("inf")
    await until(lambda: view.load.up)
    await until(lambda: view.load.age_s() < 5.0)


async def test_the_counts_of_a_killed_agent_expire_with_its_lease(start: Start) -> None:
    a, b = start("a"), start("b")
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [1, 0])
    await kill(a)
    await until(lambda: in_flight(b) == [0, 0], within_s=LEASE_S + PATIENCE_S)


async def test_a_restarted_agent_replaces_its_former_counts(start: Start) -> None:
    a, b = start("a", epoch=1), start("b")
    for _ in range(5):
        reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [5, 0])
    await kill(a)
    again = start("a", epoch=2)
    reserve(again.load, Reservation(endpoint(again, 1)))
    await until(lambda: in_flight(b) == in_flight(again) == [0, 1])


async def test_an_agent_that_is_succeeded_while_it_lives_counts_beside_its_successor(start: Start) -> None:
    new, old, other = start("a", epoch=2), start("a", epoch=1), start("b")
    reserve(new.load, Reservation(endpoint(new)))
    held = reserve(old.load, Reservation(endpoint(old, 1)))
    await until(lambda: in_flight(old) == in_flight(new) == in_flight(other) == [1, 1])
    release(old.load, held)
    await until(lambda: in_flight(other) == in_flight(new) == [1, 0])
    reserve(old.load, Reservation(endpoint(old, 1)))
    await until(lambda: in_flight(other) == [1, 1])
    await old.exchange.stop()
    await until(lambda: in_flight(other) == in_flight(new) == [1, 0])


@pytest.mark.usefixtures("long_timeout")
async def test_stopping_removes_the_counts_at_once(start: Start, region: str, redis_server: RedisServer) -> None:
    view = start("a")
    reserve(view.load, Reservation(endpoint(view)))
    client = redis.Redis.from_url(redis_server.url)
    await until(lambda: [load.loads for load in published_loads(client, region)] == [{"gpu-0": (1, 0, 0)}])
    await view.exchange.stop()
    assert all(has_no_load(load) for load in published_loads(client, region))
    await until(lambda: not client.exists(loads_key(region)), within_s=LEASE_S + PATIENCE_S)


async def test_everything_in_redis_expires(start: Start, region: str, redis_server: RedisServer) -> None:
    view = start("a")
    await until(lambda: view.load.up)
    client = redis.Redis.from_url(redis_server.url)
    assert 0 < client.pttl(loads_key(region)) <= LEASE_S * 1000


async def test_redis_killed_then_back(start: Start, own_redis: RedisServer) -> None:
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: a.load.up and b.load.up and in_flight(b) == [1, 0])
    own = reserve(b.load, Reservation(endpoint(b)))
    with capture_logs() as logs:
        await asyncio.to_thread(own_redis.kill)
        await until(lambda: not a.load.up and not b.load.up)
        assert b.load.age_s() < PATIENCE_S
        await until(lambda: in_flight(b) == [1, 0], within_s=LEASE_S + PATIENCE_S)
        release(b.load, own)
        assert in_flight(b) == [0, 0]
        await asyncio.to_thread(own_redis.start)
        await until(lambda: a.load.up and b.load.up and in_flight(b) == [1, 0])
    # On a busy machine a connection may time out again; the test requires that only changes are logged.
    changes = [1 if "is down" in entry["event"] else -1 for entry in logs if "shared load is" in entry["event"]]
    links_down = list(accumulate(changes))
    assert set(links_down) == {0, 1, 2}
    assert links_down[-1] == 0


async def test_a_hung_redis_delays_no_request(start: Start, own_redis: RedisServer) -> None:
    view = start("a", server=own_redis)
    await until(lambda: view.load.up)
    own_redis.pause()
    try:
        await until(lambda: not view.load.up)
        quickest_s = inf
        for _ in range(50):
            began = time.monotonic()
            release(view.load, reserve(view.load, Reservation(endpoint(view))))
            await asyncio.sleep(0)
            quickest_s = min(quickest_s, time.monotonic() - began)
            await asyncio.sleep(0.01)
        assert quickest_s < 0.2
        assert in_flight(view) == [0, 0]
    finally:
        own_redis.resume()
    await until(lambda: view.load.up)


async def test_counts_expire_while_redis_is_unavailable(start: Start, own_redis: RedisServer) -> None:
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    for _ in range(40):
        reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [40, 0])
    await asyncio.to_thread(own_redis.kill)
    seen = {40}
    while endpoint(b).view.in_flight:
        await asyncio.sleep(0.02)
        now = endpoint(b).view.in_flight
        assert now <= min(seen)
        seen.add(now)
    assert b.load.age_s() > FRESH_S


@pytest.mark.usefixtures("long_lease")
async def test_lost_keys_change_no_count(start: Start, region: str, own_redis: RedisServer) -> None:
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [1, 0])
    with redis.Redis.from_url(own_redis.url) as client:
        for _ in range(10):
            client.flushall()
            client.script_flush()
            for _ in range(5):
                await asyncio.sleep(0.01)
                assert in_flight(b) == [1, 0]
        await until(lambda: len(published_loads(client, region)) == 2)
    assert in_flight(b) == [1, 0]


@pytest.mark.usefixtures("long_lease", "long_timeout")
async def test_entries_of_strangers_are_rejected_and_deleted(
    start: Start, region: str, redis_server: RedisServer
) -> None:
    a, b = start("a"), start("b")
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [1, 0])
    key = loads_key(region)
    full = {f"gpu-{n}": (4, 0, 0) for n in (0, 1)}
    with redis.Redis.from_url(redis_server.url) as attacker, capture_logs() as logs:
        own = seal_load(PublishedLoad("x", 1, 1, full), RegionKey(RegionKeys(b"s" * KEY_BYTES), region))
        elsewhere = seal_load(PublishedLoad("x", 1, 1, full), RegionKey(region_keys("other"), "other"))
        for _ in range(5):
            copied = attacker.hget(key, "a~1")
            assert isinstance(copied, bytes)
            attacker.hset(key, mapping={"x~1": own, "y~1": elsewhere, "z~1": copied, "a~1": own, "b~1": b""})
            attacker.hset(key, mapping={"v~1": b"x" * (MAX_LOAD_BYTES + 1), "n" * 1000: own, b"\xff\x00": b"\x00"})
            await until(lambda: set(attacker.hkeys(key)) == {b"a~1", b"b~1"})
            assert (in_flight(a), in_flight(b)) == ([1, 0], [1, 0])
            await until(lambda: len(published_loads(attacker, region)) == 2)
    assert a.load.up
    assert b.load.up
    assert sum(agent.load.rejected for agent in (a, b)) > 0  # by the agent that read them first
    assert any("rejected" in entry["event"] for entry in logs)


@pytest.mark.parametrize("kind", ["text", "list", "many"])
async def test_a_replaced_key_does_not_stop_the_sharing(
    start: Start, region: str, redis_server: RedisServer, kind: str
) -> None:
    a, b = start("a"), start("b")
    await until(lambda: a.load.up and b.load.up)
    key = loads_key(region)
    with redis.Redis.from_url(redis_server.url) as attacker:
        if kind != "many":
            attacker.delete(key)
        if kind == "text":
            attacker.set(key, "x")
        elif kind == "list":
            attacker.rpush(key, "x")
        else:
            attacker.hset(key, mapping={f"x{n}": "x" for n in range(10 * MAX_AGENTS)})
        reserve(a.load, Reservation(endpoint(a)))
        await until(lambda: in_flight(b) == [1, 0])
        await until(lambda: set(attacker.hkeys(key)) == {b"a~1", b"b~1"})


@pytest.mark.usefixtures("long_timeout")
async def test_with_a_full_redis_each_agent_has_its_own_counts(start: Start, own_redis: RedisServer) -> None:
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [1, 0])
    with redis.Redis.from_url(own_redis.url) as operator, capture_logs() as logs:
        operator.config_set("maxmemory", 1)
        await until(lambda: not a.load.up and not b.load.up)
        assert in_flight(a) == [1, 0]
        operator.config_set("maxmemory", 0)
        await until(lambda: a.load.up and b.load.up and in_flight(b) == [1, 0])
    assert any("maxmemory" in entry.get("reason", "") for entry in logs)


@pytest.mark.usefixtures("long_lease")
async def test_eviction_changes_no_count(start: Start, own_redis: RedisServer) -> None:
    """Other data in the same Redis repeatedly evict all keys of the agents."""
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    reserve(a.load, Reservation(endpoint(a)))
    await until(lambda: in_flight(b) == [1, 0])
    with redis.Redis.from_url(own_redis.url) as operator:
        used = int(operator.info("memory")["used_memory"])
        operator.config_set("maxmemory-policy", "volatile-ttl")
        operator.config_set("maxmemory", used + 200_000)
        for number in range(100):
            operator.set(f"other:{number}", b"x" * 20_000, ex=3600)
            await asyncio.sleep(0.01)
            assert in_flight(b) == [1, 0]
        assert int(operator.info("stats")["evicted_keys"]) > 50
    await until(lambda: a.load.up and b.load.up)


async def test_a_failover_to_an_old_replica_changes_no_count(
    start: Start, region: str, redis_server: RedisServer, own_redis: RedisServer
) -> None:
    """A replica that lagged has loads of an earlier time, when the engines were full."""
    a, b = start("a", server=own_redis), start("b", server=own_redis)
    held = [reserve(a.load, Reservation(endpoint(a))) for _ in range(4)]
    await until(lambda: in_flight(b) == [4, 0])
    with redis.Redis.from_url(own_redis.url) as operator:
        old = operator.hgetall(loads_key(region))
        for reservation in held:
            release(a.load, reservation)
        await until(lambda: in_flight(b) == [0, 0])
        assert isinstance(old, dict)
        for _ in range(20):
            operator.delete(loads_key(region))
            operator.hset(loads_key(region), mapping=old)
            await asyncio.sleep(0.02)
            assert in_flight(b) == [0, 0]
        operator.replicaof("127.0.0.1", str(redis_server.port))
        await until(lambda: not a.load.up and not b.load.up)
        operator.replicaof("NO", "ONE")
        await until(lambda: a.load.up and b.load.up and in_flight(b) == [0, 0])


async def test_a_reservation_of_absurd_size_does_not_hide_the_agents_other_requests(start: Start) -> None:
    a, b = start("a"), start("b")
    absurd = reserve(a.load, Reservation(endpoint(a), 10 * MAX_US, 10 * MAX_US))
    other = reserve(a.load, Reservation(endpoint(a, 1), 10, 20))
    await until(lambda: in_flight(b) == [1, 1])
    assert (endpoint(b).view.prefill_us, endpoint(b).view.decode_us) == (MAX_US, MAX_US)
    assert (endpoint(b, 1).view.prefill_us, endpoint(b, 1).view.decode_us) == (10, 20)
    release(a.load, absurd)
    release(a.load, other)
    await until(lambda: in_flight(b) == [0, 0] and endpoint(b).view.decode_us == 0)
    assert endpoint(a).view.decode_us == 0


async def test_without_redis_only_own_requests_count(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("- {name: gpu-0, url: 'http://127.0.0.1:1', models: [m], slots: 4}\n")
    view = SharedLoad(EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1)))
    reservation = reserve(view, Reservation(endpoint(view)))
    assert (view.up, view.age_s(), in_flight(view)) == (False, 0.0, [1])
    release(view, reservation)
    assert in_flight(view) == [0]


@pytest.mark.parametrize("connected", [True, False])
async def test_a_late_response_is_not_used_for_the_next_command(own_redis: RedisServer, connected: bool) -> None:
    script = RedisScript(RedisAddress(own_redis.url), "return ARGV[1]", PATIENCE_S)
    if connected:
        assert await script.run((), ("before",)) == b"before"
    own_redis.pause()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await script.run((), ("given up on",))
    finally:
        own_redis.resume()
    with redis.Redis.from_url(own_redis.url) as operator:
        operator.script_flush()
    assert await script.run((), ("after",)) == b"after"
    await script.aclose()


async def test_a_server_that_fails_over_is_resolved_again(redis_server: RedisServer, own_redis: RedisServer) -> None:
    """A demoted server answers READONLY and keeps its connections open; its name then belongs to the new primary."""
    script = RedisScript(RedisAddress(own_redis.url), "return redis.call('INCR', KEYS[1])", 1.0)
    assert await script.run(("n",), ()) == 1
    with redis.Redis.from_url(own_redis.url) as operator:
        operator.replicaof("127.0.0.1", str(redis_server.port))
    with pytest.raises(redis.exceptions.RedisError):
        await script.run(("n",), ())
    assert not script._connection.is_connected
    script._connection.port = redis_server.port
    assert await script.run(("n",), ()) == 1
    await script.aclose()
