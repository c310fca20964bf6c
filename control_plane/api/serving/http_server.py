"""The HTTP server of the control plane: accepts connections within limits, and serves them by uvicorn."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import uvicorn

from adapters.tcp_acceptor import TcpAcceptor
from control_plane.api.serving.client_connections import IO_TIMEOUT_S, BoundedConnection
from control_plane.api.serving.open_connections import OpenConnection, OpenConnections

BACKLOG = 4096
"""Length of the queue of connections that are not accepted yet; the kernel limits it to net.core.somaxconn."""


class HttpServer:
    """Serves one listening socket.

    Args:
        config: uvicorn's configuration; its settings of the protocol, of sockets and of TLS are not used.
        connections: the open connections and their limits.
        tls: returns the TLS context of a handshake; None: plain HTTP.
        io_timeout_s: see IO_TIMEOUT_S; also the limit of a handshake.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: OpenConnections,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        io_timeout_s: float = IO_TIMEOUT_S,
    ) -> None:
        self._config = config
        self._connections = connections
        self._tls = tls
        self._io_timeout_s = io_timeout_s
        self._server = UnsignalledServer(config)
        self._acceptor: TcpAcceptor | None = None

    @property
    def protocols(self) -> Collection[object]:
        """The open connections whose handshake is complete."""
        return self._server.server_state.connections

    async def serve(self, bound: socket.socket) -> None:
        """Accept and serve connections until `stop`, and for up to `timeout_graceful_shutdown` afterwards.

        Args:
            bound: a bound socket.
        """
        bound.listen(BACKLOG)
        self._acceptor = TcpAcceptor(bound, self._accept_from, tls=self._tls, handshake_timeout_s=self._io_timeout_s)
        try:
            await self._server.serve([])
        finally:
            self._acceptor.close()
            self._acceptor.abort()

    def stop(self) -> None:
        """Accept no further connections, and end `serve` when the requests in progress are complete."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._server.should_exit = True

    def _accept_from(self, address: str, abort: Callable[[], object]) -> _AcceptedConnection:
        return _AcceptedConnection(self._connections.open(address, abort), self._make_protocol)

    def _make_protocol(self, connection: OpenConnection) -> asyncio.BaseProtocol:
        return BoundedConnection(
            connection,
            io_timeout_s=self._io_timeout_s,
            config=self._config,
            server_state=self._server.server_state,
            app_state={},
        )


class _AcceptedConnection:
    def __init__(
        self, connection: OpenConnection, make_protocol: Callable[[OpenConnection], asyncio.BaseProtocol]
    ) -> None:
        self._connection = connection
        self._make_protocol = make_protocol

    def make_protocol(self) -> asyncio.BaseProtocol:
        return self._make_protocol(self._connection)

    def on_opened(self, *, connected: bool) -> None:
        if not connected:
            self._connection.close()


class UnsignalledServer(uvicorn.Server):
    """Leaves signals to the caller, which resigns leadership before the server stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
