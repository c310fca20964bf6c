"""Agents as processes, on a real Redis: after any sequence of faults every count equals what the engines run.

Requests succeed, fail, break off, are rejected or cancelled by their clients; agents are killed with SIGKILL; engines
stop and restart; Redis is flushed or restarted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from regional_agent.shared_load.published_load import PublishedLoad
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.examples import examples
from tests.support.loopback_server import LoopbackServer
from tests.support.planet import MODEL, policy
from tests.support.shared_loads import has_no_load, published_loads
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, post

REGION = "eu-de"
AGENTS = ("a", "b")
ENGINES = 2
SLOTS = 2
KINDS = ("whole", "stream", "silent", "error", "breaks off", "vanishes", "busy")
PATIENCE_S = 40.0
BODY = msgspec.json.encode({"model": MODEL, "stream": True, "messages": []})
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT, LAST = b"9\r\ndata: 1\n\n\r\n", b"0\r\n\r\n"

T = TypeVar("T")


class FlappingEngine(LoopbackServer):
    """An engine that counts running requests, treats each as its id specifies, and can be stopped and restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0
        self.go_on = asyncio.Event()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def finish(self) -> None:
        """Let every running request succeed."""
        self.go_on.set()
        self.go_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ScriptedEngine(self._answer).serve(reader, writer)

    async def _answer(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return
        kind = (received.header("x-request-id") or "").partition(":")[0]
        self.running += 1
        try:
            await self._do(kind, writer)
        finally:
            self.running -= 1

    async def _do(self, kind: str, writer: asyncio.StreamWriter) -> None:
        if kind in ("stream", "breaks-off"):
            writer.write(SSE_HEAD + EVENT)
        if kind in ("stream", "silent"):
            await self.go_on.wait()
        if kind in ("breaks-off", "vanishes"):
            writer.close()
        elif kind == "stream":
            writer.write(EVENT + LAST)
        elif kind == "error":
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops")
        elif kind == "busy":
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


class Region:
    """Engines and clients on a separate event loop, which runs continuously; agents and Redis are processes."""

    def __init__(self, directory: Path, etcd: EtcdServer, server: RedisServer) -> None:
        self.redis = server
        self.shared = redis.Redis.from_url(server.url)
        self._loop = asyncio.new_event_loop()
        # `ast` parses the source of a logged traceback, and Hypothesis that of a test; two threads at once fail:
        # https://github.com/python/cpython/issues/106905
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.engines = [FlappingEngine() for _ in range(ENGINES)]
        self.clients: list[RawClient] = []
        for engine in self.engines:
            self.do(engine.start())
        file = write_endpoints(directory / "endpoints.yaml", [engine.address for engine in self.engines], SLOTS)
        self.do(publish(etcd, msgspec.structs.replace(policy(), anonymous_tenant="open")))
        self.agents = {
            name: AgentProcess(
                name,
                directory / name,
                region=REGION,
                etcd_endpoint=etcd.endpoint,
                redis_url=server.url,
                endpoints_file=file,
                settings={"EJECTION_S": "0.2", "WARM_UP_S": "0"},
            )
            for name in AGENTS
        }
        for agent in self.agents.values():
            agent.start()
        for agent in self.agents.values():
            agent.wait_ready(PATIENCE_S)

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    async def ask(self, agent: str, kind: str) -> None:
        """Send a request without reading the response."""
        client = await RawClient.connect(self.agents[agent].faces()["traffic"])
        self.clients.append(client)
        client.send(post(BODY, f"X-Request-Id: {kind.replace(' ', '-')}:{len(self.clients)}"))

    async def leave(self, which: int) -> None:
        """Disconnect a client, in any state of its request."""
        if self.clients:
            self.clients.pop(which % len(self.clients)).close()

    async def finish(self) -> None:
        """Let every engine end all its requests."""
        for engine in self.engines:
            engine.finish()

    def views(self) -> list[tuple[dict[str, int], int, int]]:
        """The view of each agent: requests by endpoint, its own requests, and those in its queue."""
        found = []
        for agent in self.agents.values():
            status = agent.status()
            by_endpoint = {endpoint["name"]: endpoint["in_flight"] for endpoint in status["endpoints"]}
            found.append((by_endpoint, sum(status["in_flight"].values()), sum(status["waiting"].values())))
        return found

    def run(self) -> dict[str, int]:
        """The requests that the engines run."""
        return {f"gpu-{n}": engine.running for n, engine in enumerate(self.engines)}

    def published(self) -> list[PublishedLoad]:
        """The loads that the agents publish in Redis."""
        return published_loads(self.shared, REGION)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition` holds; there is no event for it."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"never: {what}; {self.views()}, engines {self.run()}, {self.published()}"
            )
            time.sleep(0.05)

    def settled(self) -> bool:
        """Whether every agent's view equals the engines' requests, and no request is queued while a slot is free."""
        truth = self.run()
        views = self.views()
        full = all(count >= SLOTS for count in truth.values())
        return all(by_endpoint == truth and (full or not waiting) for by_endpoint, _, waiting in views)

    def close(self) -> None:
        for agent in self.agents.values():
            agent.kill()
        for engine in self.engines:
            self.do(engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)


class Counters(RuleBasedStateMachine):
    region: Region

    @rule(requests=st.lists(st.tuples(st.sampled_from(AGENTS), st.sampled_from(KINDS)), min_size=1, max_size=8))
    def requests_come(self, requests: list[tuple[str, str]]) -> None:
        for agent, kind in requests:
            self.region.do(self.region.ask(agent, kind))

    @rule(which=st.lists(st.integers(0, 20), min_size=1, max_size=4))
    def clients_leave(self, which: list[int]) -> None:
        for client in which:
            self.region.do(self.region.leave(client))

    @rule()
    def engines_finish(self) -> None:
        self.region.do(self.region.finish())

    @rule(pause_s=st.floats(0.0, 0.3))
    def time_passes(self, pause_s: float) -> None:
        time.sleep(pause_s)

    @rule(agent=st.sampled_from(AGENTS))
    def an_agent_is_killed_and_started_again(self, agent: str) -> None:
        process = self.region.agents[agent]
        process.kill()
        process.start()
        process.wait_ready(PATIENCE_S)

    @rule(which=st.integers(0, ENGINES - 1), away_s=st.floats(0.0, 0.5))
    def an_engine_flaps(self, which: int, away_s: float) -> None:
        engine = self.region.engines[which]
        self.region.do(engine.stop())
        time.sleep(away_s)
        self.region.do(engine.start())

    @rule()
    def redis_is_flushed(self) -> None:
        self.region.shared.flushall()

    @rule()
    def redis_is_restarted(self) -> None:
        self.region.redis.kill()
        self.region.redis.restart()

    @invariant()
    def nothing_is_negative(self) -> None:
        for by_endpoint, carried, waiting in self.region.views():
            assert min(*by_endpoint.values(), carried, waiting) >= 0

    def teardown(self) -> None:
        region = self.region
        region.until(region.settled, "agents believe what engines run")
        for _ in range(len(region.clients)):
            region.do(region.leave(0))
        region.do(region.finish())
        nothing = dict.fromkeys(region.run(), 0)
        region.until(lambda: region.run() == nothing, "engines are let go of")
        region.until(lambda: region.views() == [(nothing, 0, 0)] * len(AGENTS), "every count is zero")
        region.until(
            lambda: [has_no_load(load) for load in region.published()] == [True] * len(AGENTS), "Redis has no load"
        )


@contextmanager
def region_at(directory: Path, etcd: EtcdServer, server: RedisServer) -> Iterator[Region]:
    region = Region(directory, etcd, server)
    try:
        yield region
    finally:
        region.close()


def test_counts_of_whole_agents_converge_to_the_engines(
    tmp_path: Path, own_etcd: EtcdServer, own_redis: RedisServer
) -> None:
    with region_at(tmp_path, own_etcd, own_redis) as region:
        Counters.region = region
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Counters,
            settings=settings(
                max_examples=examples(3),
                phases=[Phase.generate],
                stateful_step_count=15,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
