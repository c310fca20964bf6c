"""A TCP server on loopback that a test can kill and restart on the same port."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from abc import ABC, abstractmethod
from typing import Self

from tests.support.reserved_ports import reserve_port


class LoopbackServer(ABC):
    """Serves from `start` to `stop`; a restart uses the same port.

    Args:
        tls: TLS context for HTTPS; None for plain text.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        if not self.port:
            # Also while the server is stopped.
            reserved = reserve_port()
            self.port = reserved.getsockname()[1]
            weakref.finalize(self, reserved.close)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)

    async def stop(self) -> None:
        """Close the listener and reset every connection, as when a process is killed."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The event loop may start this coroutine after the server was stopped.
        if self._server is None:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self.serve(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
