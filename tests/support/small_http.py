"""A small real HTTP server with responses of a test; keeps and counts connections, and can stop responding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.support.loopback_server import LoopbackServer

Headers = list[tuple[bytes, bytes]]
Answer = Callable[[bytes, bytes, Headers, bytes], tuple[int, bytes] | Awaitable[tuple[int, bytes]]]
"""(method, target, headers, body) -> (status, body), at once or later"""


class SmallHttp(LoopbackServer):
    """Responds to each request with the result of a function of the test."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.requests = 0
        self.connections = 0
        self.silent = False
        """Whether requests are accepted without a response."""
        self.asked = asyncio.Event()
        """Set by every request."""
        self.answering = asyncio.Event()
        """While cleared, requests are executed but their responses are held back."""
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
        answer = self.answer(method, target, headers, body)
        status, content = await answer if isinstance(answer, Awaitable) else answer
        await self.answering.wait()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(content), content))
        await writer.drain()
