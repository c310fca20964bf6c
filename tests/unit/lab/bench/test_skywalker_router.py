"""The lab's router by SkyWalker's rule: where it sends requests while engines have pending ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adapters.servers.free_ports import LOOPBACK, free_ports
from lab.bench.outside.skywalker_router import RegionConfig, Router, RouterConfig
from lab.bench.peers.peer import READY_PATH

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
ROUND_TRIP_MS = 20.0


class _Engine:
    """Responds with its name when it is told to; the first byte of a response is its first token."""

    def __init__(self, name: bytes) -> None:
        self.name, self.may_answer, self.requests = name, asyncio.Event(), 0
        self.received = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close\r\n" in head
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        self.requests += 1
        self.received.set()
        await self.may_answer.wait()
        writer.write(ANSWER + self.name)
        writer.close()


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[dict[str, int], dict[str, _Engine]]]:
    """Two regions with an engine of one slot each."""
    engines = {name: _Engine(name.encode()) for name in ("home", "away")}
    servers = [await asyncio.start_server(engine.serve, LOOPBACK, 0) for engine in engines.values()]
    ports = dict(zip(engines, free_ports(2), strict=True))
    regions = {
        name: RegionConfig(ports[name], {server.sockets[0].getsockname()[1]: 1}, {other: ROUND_TRIP_MS})
        for (name, other), server in zip((("home", "away"), ("away", "home")), servers, strict=True)
    }
    servers += await Router(RouterConfig(regions)).start()
    try:
        yield ports, engines
    finally:
        for server in servers:
            server.close()


async def _ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    body = b'{"messages":[]}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\nConnection: x\r\n\r\n" % len(body) + body
    )
    answer = await reader.read()
    writer.close()
    return answer[-4:]


async def test_the_router_says_that_it_is_ready() -> None:
    async with _running() as (ports, _):
        reader, writer = await asyncio.open_connection(LOOPBACK, ports["away"])
        writer.write(b"GET %b HTTP/1.1\r\n\r\n" % READY_PATH.encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_requests_leave_a_region_whose_engines_have_pending_requests_and_wait_when_all_have() -> None:
    async with _running() as (ports, engines):
        # One runs and one is pending at home, so that the third goes away; there the fourth is pending.
        asked = []
        for engine, count in (("home", 1), ("home", 2), ("away", 1), ("away", 2)):
            engines[engine].received.clear()
            asked.append(asyncio.create_task(_ask(ports["home"])))
            await asyncio.wait_for(engines[engine].received.wait(), 10.0)
            assert engines[engine].requests == count
        asked.append(asyncio.create_task(_ask(ports["home"])))
        engines["home"].received.clear()
        engines["home"].may_answer.set()
        await asyncio.wait_for(engines["home"].received.wait(), 10.0)
        assert (engines["home"].requests, engines["away"].requests) == (3, 2), "the fifth waited in the router"
        engines["away"].may_answer.set()
        answers = await asyncio.wait_for(asyncio.gather(*asked), 10.0)
        assert answers == [b"home", b"home", b"away", b"away", b"home"]
