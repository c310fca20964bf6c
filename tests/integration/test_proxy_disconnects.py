"""Disconnects are detected at once, also while nothing is read from the client, and release all reservations."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.tls_contexts import ClientTls, ServerTls
from regional_agent.websocket.websocket_frames import BINARY
from tests.support.agents import Agent, running_agent
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import BODY, full, streams_forever
from tests.support.on_uvloop import on_uvloop
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, engine, post
from tests.support.tunnels import BYE, HELLO, UPGRADE, echoing
from tests.support.uploads import LIMITS, taker, upload_head
from tests.support.wait import until
from tests.support.websockets import frame

AUDIO = ("Content-Type: audio/wav", f"X-Model: {MODEL}")
HALF = upload_head(200_000, *AUDIO) + b"x" * 70_000
"""Of a body that may be kept: its rest is read while it waits."""
HALF_OF_A_LARGE_ONE = upload_head(1_000_000, *AUDIO) + b"x" * 70_000
"""Its rest is not."""


def fin(client: RawClient) -> None:
    """Close the sending side, as a process that ends."""
    client.writer.write_eof()


def reset(client: RawClient) -> None:
    """Reset the connection, as the kernel does for a process that is killed with unread bytes."""
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def half_way(agent: Agent, half: bytes) -> RawClient:
    """A client whose request is queued while half of its body has not been sent."""
    client = await RawClient.connect(agent.traffic)
    client.send(half)
    await until(lambda: agent.waiting() == 1)
    client.send(b"x" * 5000)
    await client.writer.drain()
    return client


async def leaves_while_waiting(directory: Path, leave: Callable[[RawClient], None], half: bytes) -> None:
    async with engine(streams_forever) as gpu, full(directory, gpu.address, limits=LIMITS) as (agent, _):
        client = await half_way(agent, half)
        assert agent.listener.state.disconnects.watching == (half is HALF_OF_A_LARGE_ONE)
        leave(client)
        await until(lambda: agent.waiting() == 0)
        assert agent.counted() == {"client_left": 1}, "it was not refused for having waited too long"
        await until(lambda: agent.listener.state.bodies.bytes_kept == 0 and len(agent.listener.connections) == 1)
        assert len(gpu.requests) == 1


@pytest.mark.parametrize("half", [HALF, HALF_OF_A_LARGE_ONE])
@pytest.mark.parametrize("leave", [fin, reset])
async def test_a_client_that_leaves_during_its_body_leaves_the_queue(
    tmp_path: Path, leave: Callable[[RawClient], None], half: bytes
) -> None:
    await leaves_while_waiting(tmp_path, leave, half)


@pytest.mark.parametrize("half", [HALF, HALF_OF_A_LARGE_ONE])
@pytest.mark.parametrize("leave", [fin, reset])
@on_uvloop
async def test_the_agent_daemon_detects_disconnects_too(
    tmp_path: Path, leave: Callable[[RawClient], None], half: bytes
) -> None:
    await leaves_while_waiting(tmp_path, leave, half)


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
@on_uvloop
async def test_disconnects_are_detected_over_tls(tmp_path: Path) -> None:
    make_authority(tmp_path, "ours")
    make_certificate(tmp_path, "ours", "one")
    shown = ServerTls(tmp_path / "one.pem", tmp_path / "one.key")
    context = ClientTls(tmp_path / "ours.pem")()
    async with (
        engine(streams_forever) as gpu,
        running_agent(tmp_path, [gpu.address], slots=1, queue=0, limits=LIMITS, tls=shown) as agent,
    ):
        clients = [
            RawClient(*await asyncio.open_connection(agent.traffic.host, agent.traffic.port, ssl=context))
            for _ in range(2)
        ]
        agent.endpoints.pools[MODEL].prior_s = 0.1
        agent.endpoints.pools[MODEL].recount()
        clients[0].send(post(BODY))
        await clients[0].head()
        clients[1].send(HALF_OF_A_LARGE_ONE)
        await until(lambda: agent.waiting() == 1)
        clients[1].close()
        await until(lambda: agent.waiting() == 0)
        assert agent.counted() == {"client_left": 1}
        clients[0].close()


async def test_an_engine_that_reads_nothing_holds_no_slot_for_a_left_client(tmp_path: Path) -> None:
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(None, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        block = b"x" * (1 << 18)
        while agent.listener.state.disconnects.watching == 0:
            client.send(b"%x\r\n%b\r\n" % (len(block), block))
            await asyncio.sleep(0)
        reset(client)
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"client_left": 1}
        gpu.read_on.set()


@pytest.mark.parametrize(("half", "length"), [(HALF, 200_000), (HALF_OF_A_LARGE_ONE, 1_000_000)])
async def test_a_client_that_stays_is_not_disconnected(tmp_path: Path, half: bytes, length: int) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address, limits=LIMITS) as (agent, first):
        client = await half_way(agent, half)
        client.send(b"x" * (length - 75_000))
        await client.writer.drain()
        first.close()
        assert (await client.head())[0] == 200
        assert len(gpu.requests[1].body) == length
        assert agent.listener.state.disconnects.watching == 0
        client.close()


async def test_bytes_read_while_queued_are_bounded(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_kept_bytes=100_000)
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address, limits=limits) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        client.send(HALF)
        await until(lambda: agent.waiting() == 1)
        client.send(b"x" * 130_000)
        await until(lambda: agent.listener.state.disconnects.watching == 1)
        assert agent.waiting() == 1
        client.close()


async def test_one_half_of_a_tunnel_may_end_while_the_other_is_slow(tmp_path: Path) -> None:
    async with echoing() as (address, _), running_agent(tmp_path, [address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        assert (await client.head())[0] == 101
        block, said_bytes = frame(b"x" * (1 << 18), BINARY), 0
        while agent.listener.state.disconnects.watching == 0:
            client.send(block)
            said_bytes += len(block)
            await asyncio.sleep(0)
        client.writer.write_eof()
        received = await client.reader.readexactly(len(HELLO) + said_bytes + len(BYE))
        assert received.endswith(block + BYE)


def probed(transport: asyncio.BaseTransport) -> tuple[int, int]:
    """Whether TCP keepalive is enabled, and the TCP user timeout (ms)."""
    connection = transport.get_extra_info("socket")
    return (
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    )


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
@on_uvloop
async def test_tcp_keepalive_detects_lost_hosts(tmp_path: Path) -> None:
    limits = replace(LIMITS, write_stall_timeout_s=30.0)
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        (connection,) = agent.listener.connections
        assert probed(connection.transport.connected) == (1, 30_000)
        (upstream,) = agent.upstreams()
        assert upstream.transport is not None
        assert probed(upstream.transport) == (1, 60_000)
        client.close()
