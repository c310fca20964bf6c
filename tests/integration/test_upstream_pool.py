"""Connections to engines and peers: idle connections are closed if the limit is reached, and addresses are cached."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest

from penstock.http.response_head import ResponseHead
from regional_agent.upstream import host_addresses
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import ServerTrust, UpstreamPool
from regional_agent.upstream.upstream_sink import Broken, ConnectFailed, UpstreamError
from tests.support.on_uvloop import on_uvloop
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until, until_async

IDLE = 8


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Use every file descriptor that this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def idles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def connects_without_end(pool: UpstreamPool, address: Address) -> None:
    while True:
        await pool.connect(address)


@on_uvloop
async def test_opened_reused_failed_and_closed_connections_are_counted() -> None:
    server = await asyncio.start_server(idles, "127.0.0.1", 0)
    address, pool = Address(*server.sockets[0].getsockname()[:2]), UpstreamPool()
    first, second = await pool.connect(address), await pool.connect(address)
    pool.release(first)
    assert pool.idle == 1
    assert pool.take(address) is first
    assert pool.take(address) is None
    first.abort()
    second.abort()
    await until(lambda: pool.counts.closed == 2)
    server.close()
    with pytest.raises(ConnectFailed):
        await pool.connect(address)
    counts = pool.counts
    assert (counts.opened, counts.reused, counts.failed, pool.idle) == (2, 1, 1, 0)


async def test_a_stall_of_this_process_is_not_taken_for_a_silent_server() -> None:
    server = await asyncio.start_server(idles, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def stalls(host: str) -> tuple[str, ...]:
        time.sleep(1.0)  # noqa: ASYNC251 - the event loop must not run
        return ("127.0.0.1",)

    pool = UpstreamPool(resolve=stalls)
    (await pool.connect(Address("engine.test", port), 0.5)).abort()
    assert pool.counts.failed == 0
    server.close()


@on_uvloop
async def test_idle_connections_are_closed_for_a_new_one() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await idles(reader, writer)

    server = await asyncio.start_server(counts, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    pool = UpstreamPool()
    for connection in [await pool.connect(address) for _ in range(IDLE)]:
        pool.release(connection)
    # Without a descriptor the server would close a connection that it has not accepted yet, and perhaps the new one.
    await until(lambda: len(accepted) == IDLE)
    # What earlier tests left may free a descriptor at any time, which a connection then takes.
    opened: list[UpstreamConnection] = []
    with no_descriptor_left():
        while pool.idle:
            opened.append(await pool.connect(address))
        assert opened[-1].transport is not None
    for connection in opened:
        connection.abort()
    with no_descriptor_left(), pytest.raises(ConnectFailed, match="Too many open files"):
        await connects_without_end(pool, address)
    pool.close()
    server.close()


async def test_a_connection_under_former_authorities_is_not_reused() -> None:
    server = await asyncio.start_server(idles, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    pool, former, current = UpstreamPool(), ServerTrust(None, "former.test"), ServerTrust(None, "current.test")
    pool.use_trust({address: former})
    idle, in_use = [await pool.connect(address) for _ in range(2)]
    pool.release(idle)
    pool.use_trust({address: current})
    pool.release(in_use)
    assert pool.take(address) is None
    fresh = await pool.connect(address)
    pool.release(fresh)
    pool.use_trust({address: ServerTrust(None, "current.test")})
    assert pool.take(address) is fresh
    pool.use_trust({})
    pool.release(fresh)
    assert pool.take(address) is None
    pool.close()
    server.close()


@pytest.mark.parametrize(
    ("begins", "sent"),
    [(b"", 2), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 1)],
    ids=["no response", "half a response"],
)
async def test_only_a_request_without_any_response_is_sent_again(begins: bytes, sent: int) -> None:
    async def breaks_off_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(e.requests) == 2:
            writer.write(begins)
            writer.close()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    pool = UpstreamPool()
    async with engine(breaks_off_once) as server:
        await fetch(pool, server.address, FetchRequest("/report", body=b""), timeout_s=PATIENCE_S)
        with pytest.raises(Broken) if begins else nullcontext():
            await fetch(pool, server.address, FetchRequest("/report", body=b""), timeout_s=PATIENCE_S)
        assert len(server.requests) == 1 + sent
        pool.close()


@contextmanager
def one_port_on_two_addresses() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Sockets bound to the same free port of 127.0.0.1 and 127.0.0.2."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            try:
                second.bind(("127.0.0.2", first.getsockname()[1]))
            except OSError:
                continue
            yield first, second
            return


class Resolver:
    """A resolver that follows a script."""

    def __init__(self) -> None:
        self.answer: Sequence[str] | None = ("127.0.0.1",)
        self.asked = 0
        self.hangs = False

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.answer is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.answer


@on_uvloop
async def test_a_name_that_no_longer_resolves_keeps_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(idles, "127.0.0.1", 0)
    address = Address("engine.test", server.sockets[0].getsockname()[1])
    resolver = Resolver()
    pool = UpstreamPool(resolve=resolver)

    async def connects() -> None:
        (await pool.connect(address)).abort()

    monkeypatch.setattr(host_addresses, "FRESH_S", 2 * PATIENCE_S)
    await connects()
    await connects()
    assert resolver.asked == 1, "an answer is good for some time"
    monkeypatch.setattr(host_addresses, "FRESH_S", 0.0)
    resolver.answer = None
    await connects()
    resolver.answer = ()
    await connects()
    assert resolver.asked == 3
    resolver.hangs = True
    await connects()
    await connects()
    assert resolver.asked == 4, "nobody asks beside one who is waiting"
    with pytest.raises(ConnectFailed):
        await pool.connect(Address("never.test", address.port), timeout_s=0.1)
    resolver.hangs, resolver.answer = False, None
    with pytest.raises(ConnectFailed, match="not known"):
        await pool.connect(Address("unknown.test", address.port))
    pool.close()
    server.close()


@on_uvloop
async def test_a_changed_name_is_resolved_again_and_each_address_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A bound socket that does not listen refuses connections.
    with one_port_on_two_addresses() as (refusing, serving):
        address = Address("engine.test", refusing.getsockname()[1])
        server = await asyncio.start_server(idles, sock=serving)
        resolver = Resolver()
        pool = UpstreamPool(resolve=resolver)
        with pytest.raises(ConnectFailed):
            await pool.connect(address)
        monkeypatch.setattr(host_addresses, "FRESH_S", 0.0)
        for answer in (("127.0.0.2",), ("127.0.0.1", "127.0.0.2")):
            resolver.answer = answer
            (await pool.connect(address)).abort()
        pool.close()
        server.close()


def answers_as(name: bytes) -> Any:
    """A server whose responses state its name."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))
        writer.close()

    return serve


@on_uvloop
async def test_kept_connections_end_when_dns_ceases_to_list_their_address() -> None:
    with one_port_on_two_addresses() as (first, second):
        servers = [
            await asyncio.start_server(answers_as(name), sock=sock)
            for name, sock in ((b"old", first), (b"new", second))
        ]
        address = Address("engine.test", first.getsockname()[1])
        resolver = Resolver()
        pool = UpstreamPool(resolve=resolver, max_moved_s=0.3)

        async def served_by() -> bytes:
            return (await fetch(pool, address, FetchRequest("/health"), timeout_s=PATIENCE_S)).body

        assert await served_by() == b"old"
        in_use = pool.take(address)
        assert in_use is not None
        assert await served_by() == b"old"
        resolver.answer, asked = None, resolver.asked
        async with asyncio.timeout(PATIENCE_S):
            while resolver.asked < asked + 3:
                assert await served_by() == b"old", "a name that cannot be resolved has not moved"
        resolver.answer = ("127.0.0.2",)

        async def has_moved() -> bool:
            return await served_by() == b"new"

        await until_async(has_moved)
        assert in_use.transport is not None
        assert not in_use.transport.is_closing(), "a request in progress continues"
        pool.release(in_use)
        assert in_use.transport.is_closing()
        assert await served_by() == b"new"
        pool.close()
        for server in servers:
            server.close()


@on_uvloop
async def test_requests_that_wait_for_a_connection_are_counted() -> None:
    resolver = Resolver()
    resolver.hangs = True
    pool = UpstreamPool(resolve=resolver)
    waits = [asyncio.create_task(pool.connect(Address("engine.test", 1), timeout_s=PATIENCE_S)) for _ in range(2)]
    await until(lambda: pool.counts.connecting == 2)
    for task in waits:
        task.cancel()
    await asyncio.wait(waits)
    assert pool.counts.connecting == 0


class FailingSink:
    """Raises an exception at the first read."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        raise KeyError("of the agent")

    def on_broken(self, error: UpstreamError) -> None:
        self.broken.set_result(str(error))

    def on_writable(self, writable: bool) -> None:
        raise AssertionError


class Transport(asyncio.Transport):
    """A transport of a converter, whose reads no event loop calls."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nx",
    ],
)
async def test_a_sink_that_raises_an_exception_ends_its_response_and_the_text_stays_in_the_agent(data: bytes) -> None:
    pool, transport, sink = UpstreamPool(), Transport(), FailingSink()
    connection = UpstreamConnection(pool, pool.batcher, Address("engine.test", 80))
    connection.connection_made(transport)
    connection.send(sink, b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(KeyError):
        connection.data_received(data)
    assert "agent" not in await asyncio.wait_for(sink.broken, PATIENCE_S)
    assert transport.aborted or pool.idle


@on_uvloop
async def test_an_exception_of_the_agent_is_no_text_of_a_broken_connection() -> None:
    async def responds(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(responds, "127.0.0.1", 0)
    connection, sink = await UpstreamPool().connect(Address(*server.sockets[0].getsockname()[:2])), FailingSink()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    connection.send(sink, b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(sink.broken, PATIENCE_S) == "its response could not be processed"
    server.close()
