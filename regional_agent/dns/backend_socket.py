"""The unix socket at which PowerDNS asks this agent: bounded connections, bounded lines, one answer a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import structlog

from penstock.dns.remote_backend import MAX_LINE_BYTES, BadMessage, Message, read_message

MAX_CONNECTIONS = 64
"""Maximum number of connections: PowerDNS opens one for each of its threads."""

MODE = 0o660
"""Permissions of the socket: PowerDNS runs in the group of the agent."""

log = structlog.get_logger()


class BackendSocket:
    """Listens until closed. A socket file that a crashed agent left is replaced."""

    def __init__(self, path: Path, answer: Callable[[Message], bytes]) -> None:
        """Create a socket at `path`; `answer` returns the line that answers a request."""
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._logged: set[str] = set()

    async def listen(self) -> None:
        """Listen; raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), str(self._path))
        self._path.chmod(MODE)

    async def close(self) -> None:
        """Close the socket and its connections, and remove its file unless a successor has replaced it."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        await self._server.wait_closed()
        self._server = None

    def accept(self, connection: _Connection) -> bool:
        """Whether another connection may be used."""
        if len(self._connections) >= MAX_CONNECTIONS:
            self.report("too many connections")
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """Release the place of a connection."""
        self._connections.discard(connection)

    def respond(self, line: bytes) -> bytes:
        """Return the answer to one line.

        Raises:
            BadMessage: the line is not a request.
        """
        return self._answer(read_message(line))

    def report(self, problem: str, detail: str = "") -> None:
        """Log a problem of a client of the socket, once for each kind."""
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning("connection of PowerDNS closed; further ones are not logged", problem=problem, detail=detail)


class _Connection(asyncio.Protocol):
    """One connection of PowerDNS, or of another process that may open the socket."""

    def __init__(self, socket: BackendSocket) -> None:
        self._socket = socket
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._socket.accept(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket.forget(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while (end := received.find(b"\n")) >= 0 and self._transport is not None:
            line = bytes(received[:end])
            del received[: end + 1]
            try:
                self._transport.write(self._socket.respond(line))
            except BadMessage as error:
                self._end("not a request", str(error))
                return
        if len(received) > MAX_LINE_BYTES:
            self._end("not a request", f"a line has more than {MAX_LINE_BYTES} bytes")

    def pause_writing(self) -> None:
        # PowerDNS reads each answer before it asks again; a client that does not must not grow the agent's memory.
        self._end("answers are not read", "")

    def close(self) -> None:
        """Close the connection after the answers that were written."""
        if self._transport is not None:
            self._transport.close()

    def _end(self, problem: str, detail: str) -> None:
        self._received.clear()
        if self._transport is not None:
            self._socket.report(problem, detail)
            self._transport.abort()
            self._transport = None
