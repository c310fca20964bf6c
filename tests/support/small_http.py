"""A small real HTTP server whose answers a test decides; keeps connections, counts them, and can go silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

Headers = list[tuple[bytes, bytes]]
Answer = Callable[[bytes, bytes, Headers, bytes], tuple[int, bytes]]
"""(method, target, headers, body) -> (status, body)"""


class SmallHttp:
    """Serves on loopback from `start` to `stop`; a restart takes the same port."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.port = 0
        self.requests = 0
        self.connections = 0
        self.silent = False
        """Take requests and answer none."""
        self.asked = asyncio.Event()
        """Set with every request."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and reset every connection, as a process that is killed does."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._exchange(reader, writer)
        self._writers.discard(writer)
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [(name.lower(), value) for name, value in (line.split(b": ", 1) for line in lines)]
        body = await reader.readexactly(int(dict(headers).get(b"content-length", b"0")))
        self.requests += 1
        self.asked.set()
        if self.silent:
            return
        status, content = self.answer(method, target, headers, body)
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(content), content))
        await writer.drain()
