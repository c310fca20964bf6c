"""A listening socket and its connections: accepting, counting, timeouts, and draining."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routing.reasons import Reason, Refusal
from regional_agent.background_tasks import keep_running, sleep_until_tick
from regional_agent.http.client_connection import Application, ClientConnection
from regional_agent.http.connection_counts import CONNECTION_RATE, REQUEST_RATE, ConnectionCounts
from regional_agent.http.limits import Limits
from regional_agent.http.listen_port import open_port, steer_to_successor
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.tls_handshakes import TlsHandshakes
from regional_agent.tcp_keepalive import set_tcp_timeout

SWEEP_S = 0.5
"""Interval (s) of the checks of timeouts and request rates: one timer per listener checks all connections."""

BACKLOG = 1024

_TOO_MANY = Refusal(Reason.TOO_MANY_CONNECTIONS, "too many connections", retry_after_s=MIN_RETRY_S)
_TOO_FAST = Refusal(
    Reason.TOO_MANY_REQUESTS, "too many requests from this address or its network", retry_after_s=MIN_RETRY_S
)
_SHUTTING_DOWN = Refusal(
    Reason.SHUTTING_DOWN,
    "the agent stops before the body of the request has arrived",
    retry_after_s=MIN_RETRY_S,
)


def trusts_none(address: str) -> bool:
    """Return False: the default of a listener without trusted proxies."""
    return False


class Listener:
    """One port on which an application is served."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        trusts: Callable[[str], bool] = trusts_none,
        location_header: bytes = b"",
        for_processes: bool = False,
    ) -> None:
        """Create a listener; `start` binds it.

        Args:
            tls: returns the context for a handshake; None serves plain HTTP.
            trusts: whether an address is a trusted proxy.
            location_header: see `ListenerState`.
            for_processes: see `ConnectionCounts`.
        """
        self.state = ListenerState(limits, trusts, location_header, secure=tls is not None)
        self.connections: set[ClientConnection] = set()
        self._application = application
        self._limits = limits
        self._tls = tls
        self.counts = ConnectionCounts(limits, trusts, for_processes=for_processes)
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> tuple[str, int]:
        """Start to listen; returns the address. Another process may listen on the same port to take over the port.

        Args:
            host: address to bind.
            port: port to bind; 0 selects a free one.
            bound: a bound socket to use instead, from which other processes may accept too.
        """
        loop = asyncio.get_running_loop()
        self._socket = bound if bound is not None else open_port(host, port)
        set_tcp_timeout(self._socket, self._limits.write_stall_timeout_s)
        if self._tls is None:
            self._server = await loop.create_server(self._protocol, sock=self._socket, backlog=BACKLOG)
        else:
            self._socket.listen(BACKLOG)
            self._handshakes = TlsHandshakes(
                self._socket,
                self._tls,
                self._protocol,
                counts=self.counts,
                limits=self._limits,
                on_end=self._check_drained,
            )
        self._sweeper = keep_running("timeouts of connections", self._sweep)
        address = self._socket.getsockname()
        return address[0], address[1]

    def connection(self) -> ClientConnection:
        """Return a connection of this listener that is not yet attached to a transport."""
        return ClientConnection(self.state, self._application, self)

    def _protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self.connection())

    def hand_over(self) -> None:
        """Steer new connections to the other process that listens on the port; queued ones are still accepted."""
        if self._socket is not None:
            steer_to_successor(self._socket)

    def stop_accepting(self) -> None:
        """Start to drain: accept no connections, finish requests, and close idle connections after a short time."""
        self.state.draining, self.state.draining_since = True, self.state.clock()
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()

    @property
    def handshakes(self) -> int:
        """Number of TLS handshakes in progress."""
        return self.counts.handshakes

    async def wait_drained(self, grace_s: float) -> bool:
        """Wait up to `grace_s` (s) until all connections have closed; returns whether they have."""
        if not self.counts.none_left:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), grace_s)
        return self.counts.none_left

    def refuse_uploads(self) -> None:
        """Refuse the requests whose bodies are still arriving and that no handler has received."""
        for connection in list(self.connections):
            request = connection.sequencer.receiving
            if request is not None and not request.started:
                connection.refuse(_SHUTTING_DOWN, request)

    async def drain(self, grace_s: float) -> int:
        """Wait up to `grace_s` (s) until all connections have closed, then abort open ones; returns how many."""
        await self.wait_drained(grace_s)
        aborted = len(self.connections)
        for connection in list(self.connections):
            connection.transport.abort()
        if self._handshakes is not None:
            self._handshakes.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.state.disconnects.close()
        return aborted

    # ConnectionRegistry

    def on_connected(self, connection: ClientConnection) -> None:
        """Count a connection, and refuse it over the limits; without a response where too many are refused."""
        self.connections.add(connection)
        arrived_at = None if self.state.secure else self.state.clock()
        exceeded = self.counts.add_connection(connection.peer_ip, arrived_at)
        if not exceeded:
            return
        if self.counts.crowded or exceeded in (CONNECTION_RATE, REQUEST_RATE):
            connection.transport.abort()
        else:
            connection.refuse(_TOO_MANY, None)

    def on_closed(self, connection: ClientConnection) -> None:
        """Count a closed connection."""
        self.connections.discard(connection)
        self.counts.remove_connection(connection.peer_ip)
        if connection.requests:
            self.counts.add_requests(connection.peer_ip, connection.requests, self.state.clock())
        self._check_drained()

    def _check_drained(self) -> None:
        if self.state.draining and self.counts.none_left:
            self._drained.set()

    async def _sweep(self) -> None:
        while True:
            await sleep_until_tick(SWEEP_S)
            now = self.state.clock()
            for connection in list(self.connections):
                connection.check_timeouts(now)
            if self.counts.limits_requests:
                self.limit_requests(now)

    def limit_requests(self, now: float) -> None:
        """Count the requests since the last sweep, and end the connections of clients above the rate. `now` in s."""
        counts = self.counts
        clients = set()
        for connection in self.connections:
            if connection.requests:
                counts.add_requests(connection.peer_ip, connection.requests, now)
                connection.requests = 0
                clients.add(connection.peer_ip)
        too_fast = {address for address in clients if not counts.admits_requests(address, now)}
        if too_fast:
            for connection in list(self.connections):
                sequencer = connection.sequencer
                request = sequencer.receiving
                # The handler of an upload that has started ends it.
                is_upload = request is not None and request.started
                if connection.peer_ip in too_fast and sequencer.state.receives_requests and not is_upload:
                    counts.refused[REQUEST_RATE] += 1
                    connection.refuse(_TOO_FAST, request)
