"""A regional entry that follows the script of a test; health probes are independent of the script."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lab.replay.entry import Entry

Script = Callable[["Asked"], Awaitable[None]]

BACKLOG = 4096

DONE = b"data: [DONE]\n\n"


class Asked:
    """One received chat request, with methods to respond."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, connection: int) -> None:
        self.body = body
        self.connection = connection
        """Number of the connection of the request."""
        lines = head.decode().strip().split("\r\n")[1:]
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.writer.write(data)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a complete response; underscores in header names are replaced by hyphens."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *lines, "", ""])
        self.send(head.encode() + body)

    def open_stream(self, **headers: str) -> None:
        """Send the head of a stream."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(["HTTP/1.1 200 OK", "transfer-encoding: chunked", *lines, "", ""]).encode())

    def piece(self, data: bytes) -> None:
        """Send a chunk of a stream."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def tokens(self, count: int) -> None:
        """Send a chunk with `count` token events."""
        self.piece(b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n' * count)

    def end_stream(self) -> None:
        """Send the last chunk of a stream."""
        self.send(b"0\r\n\r\n")

    def stream(self, tokens: int, **headers: str) -> None:
        """Send a complete streamed response."""
        self.open_stream(**headers)
        self.tokens(tokens)
        self.piece(DONE)
        self.end_stream()

    def reset(self) -> None:
        """Close the connection with a TCP RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.writer.transport.abort()


class ScriptedEntry:
    """An entry that records the requests it received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.ready = True
        """Whether health probes receive 200; else 503."""
        self.probes = 0
        self.left = asyncio.Event()
        """Set when a client disconnects before the end of its response."""
        self.connections = 0
        self.port = 0

    def at(self, region: str) -> Entry:
        """The entry for clients."""
        return Entry(region, f"http://127.0.0.1:{self.port}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve requests on one connection until either side closes the connection."""
        self.connections += 1
        connection = self.connections
        ahead = b""
        try:
            while not writer.is_closing():
                head = ahead + await reader.readuntil(b"\r\n\r\n")
                ahead = b""
                if head.startswith(b"GET /readyz "):
                    self.probes += 1
                    Asked(head, b"", writer, connection).answer(200 if self.ready else 503)
                    continue
                asked = Asked(head, b"", writer, connection)
                asked.body = await reader.readexactly(int(asked.headers["content-length"]))
                self.asked.append(asked)
                ahead = await self._act(asked, reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _act(self, asked: Asked, reader: asyncio.StreamReader) -> bytes:
        """Run the script until the client disconnects; returns bytes that the client sent in advance."""
        acting = asyncio.ensure_future(self.script(asked))
        hearing = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((acting, hearing), return_when=asyncio.FIRST_COMPLETED)
        if hearing.done() and not acting.done():
            acting.cancel()
            self.left.set()
            raise ConnectionError
        hearing.cancel()
        await asyncio.wait((acting, hearing))
        acting.result()
        return b"" if hearing.cancelled() else hearing.result()


@asynccontextmanager
async def entry(script: Script) -> AsyncIterator[ScriptedEntry]:
    """Run a scripted entry on a free port."""
    scripted = ScriptedEntry(script)
    # After a stall many clients connect at once; those beyond the backlog would wait for a second or three.
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, backlog=BACKLOG)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()


def unreachable_port() -> socket.socket:
    """Bind a port that refuses connections until the socket is closed."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held
