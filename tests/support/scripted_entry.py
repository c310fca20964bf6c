"""A regional entry that follows a test's script: responds, streams, stalls, resets; health probes are apart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lab.replay.entry import Entry

Script = Callable[["Asked"], Awaitable[None]]

DONE = b"data: [DONE]\n\n"


class Asked:
    """One chat request as the entry got it, and the ways to answer it."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, connection: int) -> None:
        self.body = body
        self.connection = connection
        """Number of the connection that it came on."""
        lines = head.decode().strip().split("\r\n")[1:]
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole response; underscores in header names stand for hyphens."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *lines, "", ""])
        self.send(head.encode() + body)

    def open_stream(self, **headers: str) -> None:
        """The head of a stream."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(["HTTP/1.1 200 OK", "transfer-encoding: chunked", *lines, "", ""]).encode())

    def piece(self, data: bytes) -> None:
        """A chunk of a stream."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def tokens(self, count: int) -> None:
        """A chunk with so many token events."""
        self.piece(b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n' * count)

    def end_stream(self) -> None:
        """The end of a stream, as HTTP has it."""
        self.send(b"0\r\n\r\n")

    def stream(self, tokens: int, **headers: str) -> None:
        """A whole streamed answer."""
        self.open_stream(**headers)
        self.tokens(tokens)
        self.piece(DONE)
        self.end_stream()

    def reset(self) -> None:
        """Drop the connection with a RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.writer.transport.abort()


class ScriptedEntry:
    """An entry that records the requests it received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.ready = True
        """What health probes receive."""
        self.probes = 0
        self.left = asyncio.Event()
        """Set when a client leaves before its answer is over."""
        self.connections = 0
        self.port = 0

    def at(self, region: str) -> Entry:
        """The way to here."""
        return Entry(region, f"http://127.0.0.1:{self.port}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests on one connection, until either side closes it."""
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
        """Follow the script, unless the client leaves meanwhile; returns what it sent ahead."""
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
    """A scripted entry on a free port."""
    scripted = ScriptedEntry(script)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()


def unreachable_port() -> socket.socket:
    """A port that refuses connections for as long as the socket lives."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held
