"""The TLS handshakes of one listener, with limits of their own.

A handshake costs more than most requests. A connection over the limits and rates of connections is closed before its
handshake.
Over the limits of handshakes, the handshake that began first is closed: its client is slow, or never completes it.
Networks that have completed a handshake, such as those of other agents, have a limit of their own.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

from adapters.tcp_acceptor import TcpAcceptor
from penstock.admission.client_network import client_network
from penstock.admission.connection_limits import CountedConnection
from penstock.admission.handshake_limits import LimitedHandshakes
from regional_agent.http.connection_counts import ConnectionCounts
from regional_agent.http.limits import Limits

MAX_HANDSHAKES = 1024
"""Maximum number of handshakes in progress, and at most half of the connections. One core completes about as many in a
second."""


class TlsHandshakes:
    """Accepts the connections of one listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        tls: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        counts: ConnectionCounts,
        limits: Limits,
        on_end: Callable[[], None],
    ) -> None:
        """Start to accept.

        Args:
            listening: a socket that listens.
            tls: returns the context for a handshake.
            make_protocol: returns the protocol of a connection, attached after the handshake.
            counts: the connections and handshakes of the listener.
            on_end: called after every handshake, whether it succeeded or failed.
        """
        self._limited = LimitedHandshakes(min(MAX_HANDSHAKES, limits.max_connections // 2))
        self._aborts: dict[CountedConnection, Callable[[], object]] = {}
        self._make_protocol = make_protocol
        self._counts = counts
        self._on_end = on_end
        self._clock = asyncio.get_running_loop().time
        self._acceptor = TcpAcceptor(listening, self._accept_from, tls=tls, handshake_timeout_s=limits.head_timeout_s)

    def close(self) -> None:
        """Stop accepting; handshakes in progress continue."""
        self._acceptor.close()

    def abort(self) -> None:
        """Cancel the handshakes in progress."""
        self._acceptor.abort()

    def _accept_from(self, address: str, abort: Callable[[], object]) -> _Handshake | None:
        now = self._clock()
        holder = None if self._counts.trusts(address) else client_network(address)
        is_exempt = self._counts.for_processes and self._limited.is_known(holder)
        if not self._counts.permits_handshake(address, None if is_exempt else now):
            return None
        counted, evicted = self._limited.open(holder, now)
        if evicted is not None:
            self._aborts[evicted]()
        self._aborts[counted] = abort
        self._counts.add_handshake(address)
        return _Handshake(self._make_protocol, partial(self._end, address, counted))

    def _end(self, address: str, counted: CountedConnection, *, completed: bool) -> None:
        self._limited.close(counted, completed=completed)
        del self._aborts[counted]
        self._counts.remove_handshake(address, self._clock(), completed=completed)
        self._on_end()


class _Handshake:
    def __init__(self, make_protocol: Callable[[], asyncio.BaseProtocol], on_end: Callable[..., None]) -> None:
        self.make_protocol = make_protocol
        self._on_end = on_end

    def on_opened(self, *, connected: bool) -> None:
        self._on_end(completed=connected)
