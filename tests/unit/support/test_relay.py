"""A cut of the relay ends every connection, including one that is just being accepted."""

from __future__ import annotations

import asyncio
import socket

import pytest

from adapters.servers.free_ports import LOOPBACK
from tests.support.relay import Relay
from tests.support.wait import PATIENCE_S


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(100):
        writer.write(chunk)
    writer.close()


async def read_to_end(client: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(client, 100):
        pass
    raise ConnectionResetError


@pytest.mark.parametrize("steps_before_cut", range(8))
async def test_cut_ends_a_connection_in_any_state(steps_before_cut: int) -> None:
    server = await asyncio.start_server(echo, LOOPBACK, 0)
    async with server, Relay(server.sockets[0].getsockname()[1]) as relay:
        # A blocking connect: the kernel completes it before the event loop of the relay runs.
        client = socket.create_connection((LOOPBACK, relay.port))
        client.sendall(b"before the cut")
        client.setblocking(False)
        for _ in range(steps_before_cut):
            await asyncio.sleep(0)
        relay.cut()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionResetError):
                await read_to_end(client)
        client.close()
