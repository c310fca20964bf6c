"""Connections that are kept make room for one that is needed, where the process may have no more."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from regional_agent.carry.upstream import Address, UpstreamPool
from regional_agent.carry.upstream_sink import ConnectFailed
from tests.on_uvloop import on_uvloop

IDLE = 8


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every descriptor that this process may have is taken."""
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


@on_uvloop
async def test_idle_connections_make_room_for_one_that_is_needed() -> None:
    server = await asyncio.start_server(idles, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    pool = UpstreamPool()
    for connection in [await pool.connect(address) for _ in range(IDLE)]:
        pool.give_back(connection)
    with no_descriptor_left():
        connection = await pool.connect(address)
        assert connection.usable()
        assert pool.take(address) is None
    connection.abort()
    with no_descriptor_left(), pytest.raises(ConnectFailed, match="Too many open files"):
        await pool.connect(address)
    pool.close()
    server.close()
