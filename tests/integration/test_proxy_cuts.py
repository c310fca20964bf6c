"""Clients detect that a response was cut. One without a length is reset: an orderly close would be its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from adapters.tls_contexts import ClientTls, ServerTls
from regional_agent.http.drain import drain_all
from regional_agent.http.limits import Limits
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.agents import Agent, running_agent
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.on_uvloop import on_uvloop
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
OLD = post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")


class Streaming:
    """An engine whose streams have begun and end as a test decides."""

    def __init__(self, head: bytes = SSE_HEAD) -> None:
        self.head = head
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.head + chunk(b"data: 1\n\n"))
        await asyncio.Event().wait()


async def dies(agent: Agent, gpu: Streaming) -> None:
    gpu.writers[0].transport.abort()


async def ends_too_early(agent: Agent, gpu: Streaming) -> None:
    gpu.writers[0].close()


async def becomes_invalid(agent: Agent, gpu: Streaming) -> None:
    gpu.writers[0].write(b"zz\r\n")


async def expires(agent: Agent, gpu: Streaming) -> None:
    for exchange in list(agent.proxy.active):
        exchange.check(float("inf"))


async def is_forbidden(agent: Agent, gpu: Streaming) -> None:
    agent.config.policy = msgspec.structs.replace(agent.config.policy, anonymous_tenant=None)


async def drains(agent: Agent, gpu: Streaming) -> None:
    await drain_all([agent.listener], 0.0, agent.proxy.shut_down)


CUTS = [dies, ends_too_early, becomes_invalid, expires, is_forbidden, drains]


async def begin(agent: Agent, request: bytes, tls: ClientTls | None = None) -> RawClient:
    """Send a request and read the first part of its stream."""
    context = tls() if tls is not None else None
    client = RawClient(*await asyncio.open_connection(*agent.traffic[:2], ssl=context))
    client.send(request)
    assert (await client.head())[0] == 200
    async with asyncio.timeout(PATIENCE_S):
        await client.reader.readuntil(b"data: 1\n\n")
    return client


async def expect_reset(client: RawClient) -> bytes:
    """Read until the connection is reset; returns what was read."""
    received = bytearray()

    async def read() -> None:
        while data := await client.reader.read(1 << 16):
            received.extend(data)

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(read(), PATIENCE_S)
    return bytes(received)


@pytest.mark.parametrize("head", [SSE_HEAD, LONG_HEAD], ids=["stream", "length"])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_a_cut_response_to_http_1_0_is_reset(
    tmp_path: Path, cut: Callable[[Agent, Streaming], Awaitable[None]], head: bytes
) -> None:
    @on_uvloop
    async def test() -> None:
        if head is LONG_HEAD and cut is becomes_invalid:
            return  # with a length, nothing is
        script = Streaming(head)
        async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
            client = await begin(agent, OLD)
            await cut(agent, script)
            await expect_reset(client)
            await until(lambda: agent.held() == 0)

    test()


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
async def test_a_cut_response_without_a_format_for_errors_is_incomplete(
    tmp_path: Path, cut: Callable[[Agent, Streaming], Awaitable[None]]
) -> None:
    script = Streaming(PLAIN_HEAD)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await begin(agent, post(BODY))
        await cut(agent, script)
        assert await client.until_cut() == b"\r\n", "the end of the first chunk, and no last chunk"
        await until(lambda: agent.held() == 0)


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
@on_uvloop
async def test_a_cut_response_over_tls_has_no_close_notify(tmp_path: Path) -> None:
    make_authority(tmp_path, "ours")
    make_certificate(tmp_path, "ours", "one")
    tls, script = ServerTls(tmp_path / "one.pem", tmp_path / "one.key"), Streaming()
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], tls=tls) as agent:
        client = await begin(agent, OLD, ClientTls(tmp_path / "ours.pem"))
        await dies(agent, script)
        await expect_reset(client)


async def test_a_response_that_a_peer_cuts_is_reset_after_its_error_event(tmp_path: Path) -> None:
    away, script = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0), Streaming()
    async with (
        engine(script) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        client = await begin(agent, OLD)
        await dies(server, script)
        await expect_reset(client)


async def test_a_complete_response_without_a_length_is_closed_in_an_orderly_way(tmp_path: Path) -> None:
    large = b"data: %b\n\n" % (b"x" * (4 << 20))

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(large) + b"0\r\n\r\n")

    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(OLD)
        await client.head()
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.read() == large


@asynccontextmanager
async def agent_process(directory: Path, engine_port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    program = ("-m", "tests.support.takeover_agent", str(directory), "0", str(engine_port))
    process = await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_end_of_a_killed_agent_is_a_reset(tmp_path: Path) -> None:
    async with engine(Streaming()) as gpu, agent_process(tmp_path, gpu.address.port) as (process, port):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        client.send(OLD)
        assert (await client.head())[0] == 200
        process.send_signal(signal.SIGKILL)
        await expect_reset(client)


async def test_a_client_that_reads_nothing_is_reset(tmp_path: Path) -> None:
    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"x" * (16 << 20)) + b"0\r\n\r\n")

    limits = Limits(write_stall_timeout_s=0.5)
    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(OLD)
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: not agent.listener.connections)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await expect_reset(client)


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
@pytest.mark.parametrize("notifies", [True, False])
def test_a_response_over_tls_that_ends_without_close_notify_is_incomplete(tmp_path: Path, notifies: bool) -> None:
    @on_uvloop
    async def test() -> None:
        async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            await writer.drain()
            if notifies:
                writer.close()
            else:
                # Below TLS, which would send close_notify.
                with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as below:
                    below.shutdown(socket.SHUT_WR)

        make_authority(tmp_path, "ours")
        make_certificate(tmp_path, "ours", "one")
        context = ServerTls(tmp_path / "one.pem", tmp_path / "one.key")()
        pool = UpstreamPool(ClientTls(tmp_path / "ours.pem"))
        async with engine(streams, tls=context) as gpu, running_agent(tmp_path, [gpu.address], pool=pool) as agent:
            client = await RawClient.connect(agent.traffic)
            client.send(post(BODY))
            body = (await client.answer()).body
            assert body.startswith(b"data: 1\n\n")
            assert (b"engine_failed" in body) is not notifies
            assert agent.counted() == ({"ok": 1} if notifies else {"engine_cut": 1})

    test()


class LateClient(asyncio.Protocol):
    """A client that keeps what arrives, although a reset follows."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.mark.parametrize("forwarded", [False, True])
async def test_an_error_event_precedes_the_reset(tmp_path: Path, forwarded: bool) -> None:
    away, script = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0), Streaming()
    async with (
        engine(script) as gpu,
        running_agent(tmp_path / "es", [gpu.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        address = (agent if forwarded else server).traffic
        transport, client = await asyncio.get_running_loop().create_connection(LateClient, *address[:2])
        transport.write(OLD)
        await until(lambda: b"data: 1" in client.received)
        await dies(server, script)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await client.lost, ConnectionResetError)
        assert client.received.count(b"engine_failed") == 1
        assert client.received.endswith(b"}\n\n"), "no framing of chunks"
