"""An upgrade of a whole agent on real etcd and Redis: no request is lost, and other regions see no change."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import httpx
import msgspec
import pytest
import redis

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.members import AgentMember
from adapters.store.signed_store import SignedStore
from penstock.policy.kinds.spillover_and_failover import Failover
from regional_agent.endpoints.endpoint_leases import FILE
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.identities import control_plane_keyring
from tests.support.planet import MODEL, policy
from tests.support.shared_loads import published_loads
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until_async

REGION = "eu-de"
TOKEN = "0123456789abcdef-registration"
NEW_CONNECTIONS, KEPT_CONNECTIONS = 4, 4
UPGRADES = 2


class Load:
    """Clients that each send requests in sequence, with the outcomes."""

    def __init__(self, process: AgentProcess) -> None:
        self.address = process.faces()["traffic"]
        self.done = 0
        self.failed: list[str] = []
        self._enough = asyncio.Event()
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for keep, count in ((False, NEW_CONNECTIONS), (True, KEPT_CONNECTIONS)):
            self._clients += [asyncio.create_task(self._ask(keep)) for _ in range(count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enough.set()
        await asyncio.wait(self._clients, timeout=PATIENCE_S)

    async def _ask(self, keep: bool) -> None:
        while not self._enough.is_set():
            try:
                client = await RawClient.connect(self.address)
                while await self._one(client) and keep and not self._enough.is_set():
                    pass
                client.close()
            except (OSError, asyncio.IncompleteReadError, AssertionError, TimeoutError) as error:
                self.failed.append(repr(error))

    async def _one(self, client: RawClient) -> bool:
        """Send a request and return whether the connection may be reused."""
        client.send(post(BODY))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"data: 1\n\ndata: [DONE]\n\n"), answer
        self.done += 1
        return answer.headers.get("connection") != "close"


class Site:
    """A region whose agents replace each other, and another region that observes it."""

    def __init__(
        self, directory: Path, etcd: EtcdServer, shared: RedisServer, gpu: Address, stack: AsyncExitStack
    ) -> None:
        """Create the files; the stack stops the processes that are started later."""
        self._directory = directory
        self._etcd = etcd
        self._redis_url = shared.url
        self._gpu = gpu
        self._stack = stack
        self._store = SignedStore(EtcdStore([etcd.endpoint]), control_plane_keyring())
        stack.push_async_callback(self._store.close)
        self._observer: AgentProcess
        (directory / "tokens").write_text(TOKEN)

    def _process(self, region: str, directory: str, like: AgentProcess | None = None) -> AgentProcess:
        faces = like.faces() if like is not None else {}
        process = AgentProcess(
            "a",
            self._directory / directory,
            region=region,
            etcd_endpoint=self._etcd.endpoint,
            redis_url=self._redis_url if region == REGION else None,
            endpoints_file=write_endpoints(
                self._directory / region / "endpoints.yaml", [] if region == REGION else [self._gpu], slots=1000
            ),
            listens={face: faces[face] for face in ("traffic", "peer") if face in faces},
            settings={
                "STATE_DIR": str(self._directory / region / "state"),
                "LIMITS": '{"idle_linger_s": 2.0}',
                "REGISTRATION_TOKEN_FILE": str(self._directory / "tokens"),
            },
        )
        self._stack.push_async_callback(asyncio.to_thread, process.kill)
        process.start()
        return process

    async def start(self) -> AgentProcess:
        """Start the first agent; returns when it serves and the observer's view of its region is healthy.

        The observer starts afterwards, because a region in state failed becomes healthy only after a ramp, which takes
        longer than the timeouts of this test.
        """
        first = self._process(REGION, "0")
        await until_async(lambda: asyncio.to_thread(lambda: bool(first.faces())))
        await asyncio.to_thread(_register, first, self._gpu)
        await until_async(self._lease_is_stored)
        await asyncio.to_thread(first.wait_ready, PATIENCE_S)
        self._observer = self._process("eu-es", "observer")
        await asyncio.to_thread(self._observer.wait_ready, PATIENCE_S)
        await until_async(self.seen_healthy)
        return first

    async def take_over(self, running: AgentProcess, directory: str) -> AgentProcess:
        """Start an agent on the ports of the running agent; returns when its registration has replaced the other."""
        epoch = await self.registered()
        fresh = self._process(REGION, directory, like=running)
        await asyncio.to_thread(fresh.wait_ready, PATIENCE_S)

        async def replaced() -> bool:
            return await self.registered() > epoch

        await until_async(replaced)
        return fresh

    async def _lease_is_stored(self) -> bool:
        """Whether the state directory, which a successor reads, has the lease of the endpoint."""
        return (self._directory / REGION / "state" / FILE).exists()

    async def registered(self) -> int:
        """The registered epoch; 0 without a registration."""
        item = await self._store.get(keys.agent(REGION, "a"))
        return decode(item.value, AgentMember).epoch if item is not None else 0

    async def seen(self) -> str:
        """The state of the region in the observer's view."""
        status = await asyncio.to_thread(self._observer.status)
        return str(status["peers"][REGION]["state"])

    async def seen_healthy(self) -> bool:
        return await self.seen() == "healthy"


class LongStream:
    """A request whose response an engine begins at once and ends when a test permits it."""

    def __init__(self) -> None:
        self._may_end = asyncio.Event()

    async def engine(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        """Answers every other request at once."""
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        if received.header("x-request-id") == "long":
            await self._may_end.wait()
        await asyncio.sleep(0.02)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def begin(self, process: AgentProcess) -> RawClient:
        self._may_end.clear()
        client = await RawClient.connect(process.faces()["traffic"])
        client.send(post(BODY, "X-Request-Id: long"))
        await client.head()
        return client

    async def end_well(self, client: RawClient) -> None:
        self._may_end.set()
        assert [await client.chunk() for _ in range(3)] == [b"data: 1\n\n", b"data: [DONE]\n\n", b""]


async def upgraded(
    site: Site, running: AgentProcess, directory: str, long: LongStream, load: Load, shared: redis.Redis
) -> AgentProcess:
    """Replace the running agent, which loses no request, and return the successor."""
    stream = await long.begin(running)
    fresh = await site.take_over(running, directory)
    assert fresh.faces()["traffic"] == running.faces()["traffic"]
    newest, before = await site.registered(), load.done
    leaving = asyncio.create_task(asyncio.to_thread(running.stop, PATIENCE_S))
    began = time.monotonic()
    while time.monotonic() - began < 2.0:
        assert await site.seen() in ("healthy", "suspect"), "another region took the upgrade for a failure"
        await asyncio.sleep(0.05)
    assert not leaving.done(), "it waits for the long one"
    assert await asyncio.to_thread(_health, running) == {"/readyz": 503, "/livez": 200}
    assert await _published_requests(shared) >= 1
    await long.end_well(stream)
    await leaving
    assert running.returncode == 0
    assert '"cut": 0' in running.log_tail(), running.log_tail()
    assert await site.registered() == newest, "the old one's withdrawal took the new one's registration"
    assert load.done > before
    return fresh


@pytest.mark.long
async def test_an_upgrade_of_a_whole_agent_loses_no_request(
    tmp_path: Path, own_etcd: EtcdServer, own_redis: RedisServer
) -> None:
    # Probes may take long on a busy machine; a region that refuses connections still fails two probes.
    patient = Failover(probe_timeout_s=PATIENCE_S)
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open", failover=patient))
    shared = redis.Redis.from_url(own_redis.url)
    long = LongStream()
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(long.engine))
        site = Site(tmp_path, own_etcd, own_redis, gpu.address, stack)
        running = await site.start()
        async with Load(running) as load:
            for number in range(1, UPGRADES + 1):
                running = await upgraded(site, running, str(number), long, load, shared)
        assert load.failed == []

        async def nothing_published() -> bool:
            return await _published_requests(shared) == 0

        await until_async(nothing_published)
        await until_async(site.seen_healthy)
        await asyncio.to_thread(running.stop, PATIENCE_S)
        assert await site.registered() == 0


def _register(process: AgentProcess, gpu: Address) -> None:
    """Register the only endpoint; its renewal is due long after the test."""
    answer = httpx.put(
        f"http://{process.faces()['admin']}/v1/endpoints/gpu",
        headers={"authorization": f"Bearer {TOKEN}"},
        json={"url": f"http://{gpu}", "models": [MODEL], "slots": 1000, "engine": "http", "ttl_s": 3600},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 201, answer.text


def _health(process: AgentProcess) -> dict[str, int]:
    admin = process.faces()["admin"]
    return {path: httpx.get(f"http://{admin}{path}", timeout=PATIENCE_S).status_code for path in ("/readyz", "/livez")}


async def _published_requests(shared: redis.Redis) -> int:
    """The sum of the requests that the agents of the region publish."""

    def look() -> int:
        return sum(load[0] for agent in published_loads(shared, REGION) for load in agent.loads.values())

    return await asyncio.to_thread(look)
