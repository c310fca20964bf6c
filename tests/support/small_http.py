"""A small real HTTP server whose answers a test decides; keeps connections, counts them, and can go silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.support.loopback_server import LoopbackServer

Headers = list[tuple[bytes, bytes]]
Answer = Callable[[bytes, bytes, Headers, bytes], tuple[int, bytes]]
"""(method, target, headers, body) -> (status, body)"""


class SmallHttp(LoopbackServer):
    """Answers each request with what a test decides."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.requests = 0
        self.connections = 0
        self.silent = False
        """Take requests and answer none."""
        self.asked = asyncio.Event()
        """Set with every request."""
        self.answering = asyncio.Event()
        """While it is cleared, requests are carried out and their answers held back."""
        self.answering.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._exchange(reader, writer)

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
        await self.answering.wait()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(content), content))
        await writer.drain()
