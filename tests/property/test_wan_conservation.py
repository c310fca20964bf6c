"""For any pieces and a half-close at any moment, every byte arrives once and in order, both ways."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.wan.network import Selector, Wan
from lab.wan.wan_config import Fault, LinkPlan
from tests.support.examples import examples
from tests.support.on_uvloop import on_uvloop
from tests.support.wait import PATIENCE_S

PIECES = st.lists(st.tuples(st.integers(1, 200_000), st.sampled_from([0.0, 0.0, 0.001, 0.003])), max_size=8)
"""Sizes in bytes, and a pause (s) after each."""


async def send(writer: asyncio.StreamWriter, pieces: list[tuple[int, float]], seed: int) -> bytes:
    """Send the pieces, then half-close; returns all that was sent."""
    rng = Random(seed)
    whole = b""
    for size, pause_s in pieces:
        data = rng.randbytes(size)
        whole += data
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(pause_s)
    writer.write_eof()
    return whole


@given(up=PIECES, down=PIECES, rtt_ms=st.sampled_from([0.0, 0.6, 4.0]), jitter_ms=st.sampled_from([0.0, 3.0]))
@settings(max_examples=examples(30), deadline=None)
@on_uvloop
async def test_every_byte_arrives_once_and_in_order(
    up: list[tuple[int, float]], down: list[tuple[int, float]], rtt_ms: float, jitter_ms: float
) -> None:
    at_target: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent, received = await asyncio.gather(send(writer, down, 2), reader.read())
        writer.close()
        at_target.set_result((sent, received))

    server = await asyncio.start_server(target, "127.0.0.1", 0)
    plan = LinkPlan("l", "a", "b", "127.0.0.1", server.sockets[0].getsockname()[1], 0, rtt_ms)
    async with asyncio.timeout(PATIENCE_S), Wan([plan], Random(0)) as wan:
        await wan.apply(Selector(), Fault(jitter_ms=jitter_ms))
        reader, writer = await asyncio.open_connection("127.0.0.1", wan.links["l"].port)
        client_sent, client_got = await asyncio.gather(send(writer, up, 1), reader.read())
        target_sent, target_got = await at_target
        writer.close()
    server.close()
    assert target_got == client_sent
    assert client_got == target_sent
