"""Raw sockets: an engine that follows a script, and a client that sends exact bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from regional_agent.upstream.address import Address
from tests.support.wait import PATIENCE_S


class ReceivedRequest(NamedTuple):
    """One request, as received by an engine."""

    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header; None if absent."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name:
                return value.strip().decode()
        return None


Script = Callable[["ScriptedEngine", ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


class ScriptedEngine:
    """A server that reads complete requests and runs a script for each request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[ReceivedRequest] = []
        self.closed_by_client = asyncio.Event()
        """Set when a client closes or resets its connection."""
        self.address = Address("127.0.0.1", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve requests on one connection until either side closes the connection."""
        ahead = b""
        try:
            while True:
                head = ahead + await reader.readuntil(b"\r\n\r\n")
                received = ReceivedRequest(head, await _body(reader, ReceivedRequest(head, b"")))
                self.requests.append(received)
                answer = asyncio.ensure_future(self.script(self, received, writer))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done() and not gone.result() and not answer.done():
                    answer.cancel()
                    self.closed_by_client.set()
                    return
                await answer
                if writer.is_closing():
                    return
                gone.cancel()
                await asyncio.wait((gone,))
                ahead = b"" if gone.cancelled() else gone.result()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed_by_client.set()
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, head: ReceivedRequest) -> bytes:
    if (head.header("transfer-encoding") or "").lower() != "chunked":
        return await reader.readexactly(int(head.header("content-length") or "0"))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


@asynccontextmanager
async def engine(
    script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedEngine]:
    """Run a scripted engine on a free port."""
    scripted = ScriptedEngine(script)
    server = await asyncio.start_server(scripted.serve, host, 0, ssl=tls)
    scripted.address = Address(*server.sockets[0].getsockname()[:2], tls is not None)
    try:
        yield scripted
    finally:
        server.close()


class Answer(NamedTuple):
    """One response, as read by a client."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    """One connection that sends exactly the given bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: Address) -> RawClient:
        """Connect to an address."""
        return cls(*await asyncio.open_connection(address.host, address.port, limit=1 << 22))

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read status and headers of the next response."""
        async with asyncio.timeout(PATIENCE_S):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = raw.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(status_line.split()[1]), headers

    async def chunk(self) -> bytes:
        """Read the next chunk of a chunked body; empty at the end of the body."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        return data

    async def answer(self) -> Answer:
        """Read the complete next response."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return Answer(status, headers, b"".join(parts))
        async with asyncio.timeout(PATIENCE_S):
            return Answer(status, headers, await self.reader.readexactly(int(headers.get("content-length", "0"))))

    async def until_cut(self) -> bytes:
        """Read all that arrives until the server closes or resets the connection."""
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while data := await self.reader.read(1 << 16):
                    received += data
        return received

    async def closed(self) -> bool:
        """Whether the server closes the connection without sending more data."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """Encode a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
