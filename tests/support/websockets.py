"""WebSocket frames as clients and servers send them, and an engine that speaks WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext

from regional_agent.upstream.address import Address
from regional_agent.websocket.websocket_frames import TEXT, read_head, unmask
from tests.support.wait import PATIENCE_S

MASK = b"\x01\x82\x03\xf4"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"


Frame = tuple[int, bytes]
"""Opcode and payload."""


def frame(payload: bytes, opcode: int = TEXT, *, mask: bytes = MASK, final: bool = True, reserved: int = 0) -> bytes:
    """One frame; by default of a client."""
    size, masked = len(payload), 0x80 if mask else 0
    if size <= 125:
        length = bytes([masked | size])
    elif size < 1 << 16:
        length = bytes([masked | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([masked | 127]) + size.to_bytes(8, "big")
    data = unmask(payload, mask, 0) if mask else payload
    return bytes([(0x80 if final else 0) | reserved | opcode]) + length + mask + data


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read one frame."""
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readexactly(2)
        while (found := read_head(head)) is None:
            head += await reader.readexactly(1)
        payload = await reader.readexactly(found.length)
    return found.opcode, unmask(payload, found.mask, 0) if found.mask else payload


class WebSocketEngine:
    """A server that accepts every upgrade and records the frames that it receives."""

    def __init__(self, extra: bytes) -> None:
        self.extra = extra
        """Header lines of the 101 response."""
        self.address = Address("127.0.0.1", 0)
        self.heads: list[bytes] = []
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.ended = asyncio.Event()
        """Set when a client has disconnected."""
        self.writer: asyncio.StreamWriter
        """The connection of the newest client."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            self.writer = writer
            writer.write(UPGRADED + self.extra + b"\r\n")
            while True:
                self.frames.put_nowait(await read_frame(reader))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            self.ended.set()
            writer.close()

    async def received(self) -> Frame:
        """The next frame."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.frames.get()


@asynccontextmanager
async def websocket_engine(extra: bytes = b"", tls: SSLContext | None = None) -> AsyncIterator[WebSocketEngine]:
    """Run an engine on a free port; `extra` are header lines of its 101 response."""
    engine = WebSocketEngine(extra)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=tls)
    engine.address = Address(*server.sockets[0].getsockname()[:2], tls is not None)
    try:
        yield engine
    finally:
        server.close()
