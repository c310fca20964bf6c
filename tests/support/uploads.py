"""The head of an upload request, and a server that reads an upload at the pace that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.sockets import ReceivedRequest

LIMITS = Limits(kept_body_bytes=256 * 1024, max_body_bytes=256 * 1024 * 1024, idle_linger_s=0.0)
"""Limits with a small buffer, so that uploads exceed the buffer."""
TRANSCRIPTIONS = "/v1/audio/transcriptions"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Taker:
    """A server that counts the bytes it reads, at the pace that a test sets, and responds at the end."""

    def __init__(self) -> None:
        self.head = b""
        self.body_bytes = 0
        self.read_on = asyncio.Event()
        self.address = Address("127.0.0.1", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.head = await reader.readuntil(b"\r\n\r\n")
            length = ReceivedRequest(self.head, b"").header("content-length")
            await self.read_on.wait()
            tail = b""
            while length is None or self.body_bytes < int(length):
                data = await reader.read(1 << 16)
                self.body_bytes += len(data)
                tail = (tail + data)[-5:]
                if not data or (length is None and tail == b"0\r\n\r\n"):
                    break
            writer.write(OK)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def taker() -> AsyncIterator[Taker]:
    uploads = Taker()
    server = await asyncio.start_server(uploads.serve, "127.0.0.1", 0)
    uploads.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield uploads
    finally:
        server.close()


def upload_head(length: int | None, *headers: str, path: str = TRANSCRIPTIONS) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", framing, *headers, "", ""]).encode()
