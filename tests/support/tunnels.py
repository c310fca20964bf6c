"""A request to upgrade a connection, and a server that accepts upgrades and echoes the frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from regional_agent.upstream.address import Address
from tests.support.planet import MODEL

UPGRADE = (
    f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n".encode()
)
HELLO, BYE = b"\x82\x05hello", b"\x82\x03bye"
"""The first and the last frame of `echoing`."""


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Address, list[bytes]]]:
    """Run a server that accepts every upgrade and echoes the frames until the client closes the connection."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: abc\r\n\r\n" + HELLO
            )
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write(BYE)
            writer.write_eof()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2]), heads
    finally:
        server.close()
