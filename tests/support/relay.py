"""A TCP relay on loopback that can reset or freeze the connections through it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from adapters.servers.free_ports import LOOPBACK

CHUNK_BYTES = 65536


class Relay:
    """Forwards TCP connections to a server on loopback.

    Args:
        target_port: the server's loopback port.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self.port = 0

    @property
    def endpoint(self) -> str:
        """`host:port` of the relay."""
        return f"{LOOPBACK}:{self.port}"

    async def restore(self) -> None:
        """Accept connections, on the same port after the first call, and resume frozen connections."""
        self._flows.set()
        self._is_cut = False
        if self._server is None:
            self._server = await asyncio.start_server(self._carry, LOOPBACK, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset every connection and every new connection."""
        # The server keeps listening, since asyncio leaves a connection open that it accepts while the server closes.
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def move_to(self, target_port: int) -> None:
        """Reset every connection, and forward new ones to another server."""
        self._target_port = target_port
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Keep connections open, accept new connections, and forward no data, as a lost route does."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward again what frozen connections have sent."""
        self._flows.set()

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._flows.set()
        if self._server is not None:
            self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(there_writer)
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        self._writers -= {writer, there_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
