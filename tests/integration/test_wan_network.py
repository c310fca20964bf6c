"""A WAN on real sockets: distance, order, half-close, back-pressure, refusal and every fault."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from time import monotonic

import pytest

from lab.wan.crossing import MAX_WAITING_BYTES
from lab.wan.network import Selector, Wan
from lab.wan.wan_config import Fault, FaultMode, LinkPlan, WanConfigError
from tests.support.on_uvloop import on_uvloop
from tests.support.wait import PATIENCE_S, until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


@asynccontextmanager
async def serving(handler: Handler = echo) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def wan_to(port: int, rtt_ms: float) -> AsyncIterator[tuple[Wan, int]]:
    plan = LinkPlan("a-b", "a", "b", "127.0.0.1", port, 0, rtt_ms)
    async with asyncio.timeout(PATIENCE_S), Wan([plan], Random(1)) as wan:
        yield wan, wan.links["a-b"].port


@on_uvloop
async def test_a_round_trip_takes_its_configured_time() -> None:
    async with serving() as port, wan_to(port, 80.0) as (_, near):
        began_s = monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        # One round trip for the handshake, one for the request and its answer.
        assert monotonic() - began_s >= 0.155
        took_s = []
        for _ in range(5):
            began_s = monotonic()
            writer.write(b"again")
            await reader.readexactly(5)
            took_s.append(monotonic() - began_s)
        assert min(took_s) >= 0.077
        writer.close()


@on_uvloop
async def test_the_target_accepts_half_a_round_trip_after_the_connect() -> None:
    seen_s: list[float] = []

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen_s.append(monotonic())
        writer.write(b"hello")
        writer.close()

    async with serving(greet) as port, wan_to(port, 100.0) as (_, near):
        began_s = monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        assert await reader.read() == b"hello"
        assert seen_s[0] - began_s >= 0.045
        assert monotonic() - began_s >= 0.095
        writer.close()


@on_uvloop
async def test_a_refused_connect_is_a_reset_after_a_round_trip() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with wan_to(taken.getsockname()[1], 60.0) as (wan, near):
            began_s = monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", near)
            writer.write(b"anyone?")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert monotonic() - began_s >= 0.055
            writer.close()
            await until(lambda: wan.statuses()[0].crossings == 0)


@on_uvloop
async def test_half_close_is_relayed_in_each_direction() -> None:
    async def answer_after_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()
        writer.write(b"you said " + asked)
        writer.write_eof()
        writer.close()

    async with serving(answer_after_end) as port, wan_to(port, 10.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"everything")
        writer.write_eof()
        assert await reader.read() == b"you said everything"
        writer.close()
        await until(lambda: wan.statuses()[0].crossings == 0)


@on_uvloop
async def test_a_disconnect_of_the_client_reaches_the_target() -> None:
    left = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.read()
        left.set()
        writer.close()

    async with serving(wait_for_end) as port, wan_to(port, 10.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        await reader.readexactly(1)
        writer.close()
        await left.wait()
        await until(lambda: wan.statuses()[0].crossings == 0)


@pytest.mark.parametrize("who_resets", ["client", "target"])
@on_uvloop
async def test_a_reset_crosses_as_a_reset(who_resets: str) -> None:
    errors: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def reset_or_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if who_resets == "target":
            await reader.readexactly(1)
            reset(writer)
            return
        try:
            await reader.readexactly(2)
        except (ConnectionResetError, asyncio.IncompleteReadError) as error:
            errors.put_nowait(error)
        writer.close()

    async with serving(reset_or_read) as port, wan_to(port, 10.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"x")
        if who_resets == "client":
            await until(lambda: wan.statuses()[0].crossings == 1)
            await asyncio.sleep(0.05)
            reset(writer)
            assert isinstance(await errors.get(), ConnectionResetError)
        else:
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
        await until(lambda: wan.statuses()[0].crossings == 0)


def reset(writer: asyncio.StreamWriter) -> None:
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@on_uvloop
async def test_back_pressure_reaches_the_sender_and_nothing_is_lost() -> None:
    may_read = asyncio.Event()
    size = 16 * MAX_WAITING_BYTES  # the kernel may hold 30 MB in the buffers of the four sockets

    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        count = 0
        while data := await reader.read(1 << 20):
            count += len(data)
        writer.write(b"%d" % count)
        writer.close()

    async with serving(slow_reader) as port, wan_to(port, 4.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"x" * size)
        transport = writer.transport
        stuck = transport.get_write_buffer_size() + 1
        while transport.get_write_buffer_size() < stuck:
            stuck = transport.get_write_buffer_size()
            await asyncio.sleep(0.1)
        assert stuck > size / 4, "the sender got rid of more than the link may hold"
        (crossing,) = wan.links["a-b"]._crossings
        assert crossing.client.line.waiting_bytes < MAX_WAITING_BYTES + 1_000_000
        may_read.set()
        writer.write_eof()
        assert await reader.read() == b"%d" % size
        writer.close()


@on_uvloop
async def test_a_cut_resets_and_refuses_connections_until_it_ends() -> None:
    async with serving() as port, wan_to(port, 2.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"x")
        await reader.readexactly(1)
        assert await wan.apply(Selector(), Fault(FaultMode.CUT)) == ["a-b"]
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", near)
        await wan.apply(Selector(link="a-b"), Fault())
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()


@on_uvloop
async def test_the_end_of_a_black_hole_resets_connections_that_lost_bytes() -> None:
    async with serving() as port, wan_to(port, 2.0) as (wan, near):
        talking, idle = [await asyncio.open_connection("127.0.0.1", near) for _ in range(2)]
        for reader, writer in (talking, idle):
            writer.write(b"x")
            await reader.readexactly(1)
        await wan.apply(Selector(), Fault(FaultMode.BLACKHOLE))
        new = await asyncio.open_connection("127.0.0.1", near)
        talking[1].write(b"lost")
        new[1].write(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(talking[0].read(1), 0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(new[0].read(1), 0.01)
        await wan.apply(Selector(), Fault())
        for reader, writer in (talking, new):
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
        idle[1].write(b"y")
        assert await idle[0].readexactly(1) == b"y"
        idle[1].close()
        await until(lambda: wan.statuses()[0].crossings == 0)


@on_uvloop
async def test_extra_delay_and_jitter_apply_at_once_and_keep_order() -> None:
    async with serving() as port, wan_to(port, 2.0) as (wan, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        writer.write(b"x")
        await reader.readexactly(1)
        await wan.apply(Selector(to="b"), Fault(extra_rtt_ms=60.0, jitter_ms=20.0))
        began_s = monotonic()
        for number in range(10):
            writer.write(b"%d" % number)
            await asyncio.sleep(0.002)
        assert await reader.readexactly(10) == b"0123456789"
        assert monotonic() - began_s >= 0.060
        writer.close()


@on_uvloop
async def test_a_fault_hits_only_the_links_it_selects() -> None:
    plans = [LinkPlan(f"{a}-{b}", a, b, "127.0.0.1", 9, 0, 1.0) for a in ("a", "b", "c") for b in ("a", "b", "c")]
    async with Wan(plans, Random(1)) as wan:
        assert await wan.apply(Selector(origin="a", to="b"), Fault(FaultMode.CUT)) == ["a-b"]
        assert await wan.apply(Selector(to="c"), Fault(FaultMode.CUT)) == ["a-c", "b-c", "c-c"]
        assert await wan.apply(Selector(link="x"), Fault(FaultMode.CUT)) == []
        cut = [status.link for status in wan.statuses() if status.fault.mode is FaultMode.CUT]
        assert cut == ["a-b", "a-c", "b-c", "c-c"]


@on_uvloop
async def test_a_used_port_is_named_and_no_listener_is_left() -> None:
    async with serving() as taken, wan_to(taken, 1.0) as (_, near):
        for port in (taken, near):
            plans = [
                LinkPlan("x", "a", "b", "127.0.0.1", 9, 0, 1.0),
                LinkPlan("y", "a", "b", "127.0.0.1", 9, port, 1.0),
            ]
            with pytest.raises(WanConfigError, match=f"link 'y': cannot listen on 127.0.0.1:{port}"):
                await Wan(plans, Random(1)).start()


@on_uvloop
async def test_closing_resets_connections_and_frees_the_port() -> None:
    async with serving() as port:
        async with wan_to(port, 2.0) as (_, near):
            reader, writer = await asyncio.open_connection("127.0.0.1", near)
            writer.write(b"x")
            await reader.readexactly(1)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", near)
