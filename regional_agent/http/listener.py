"""Where clients connect: the socket, every connection to it, and the bounds they live under together."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

from penstock.routing.reasons import Reason, Refusal
from regional_agent.background_tasks import beat, keep_running
from regional_agent.http.body_buffer import KeptBodies
from regional_agent.http.client_addresses import counted_as
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.disconnect_watcher import Departures
from regional_agent.http.limits import Limits
from regional_agent.http.listen_port import SETTLE_S, open_port, send_to_successor
from regional_agent.http.messages import NOT_FOR_ENGINES, TO_ENGINE, PassingNames, Request
from regional_agent.http.request_sequence import ClientTurns, Handler
from regional_agent.http.tls_acceptor import Doorway
from regional_agent.http.write_batcher import Outgoing
from regional_agent.upstream.tcp_keepalive import notice_vanishing

SWEEP_S = 0.5
"""How often timeouts are looked at: one timer for a listener, not one for a connection."""

BACKLOG = 1024

ADDRESS_PART = 4
"""One address gets one in so many of the connections, where the limits do not say how many."""

_TOO_MANY = Reason.TOO_MANY_CONNECTIONS


class Application(Protocol):
    """Answers requests: by `connection.respond` at once, or by a handler that it starts and returns."""

    def handle(self, request: Request, connection: ClientTurns) -> Handler | None:
        """Take a request; its body may not be whole where `knows_enough` said so or no more of it is kept."""

    def refuse_head(self, request: Request) -> Refusal | None:
        """What is wrong with a request as far as its head tells, before its body is asked for."""

    def knows_enough(self, request: Request) -> bool:
        """Whether a request with a large body can be handled with what there is of it."""

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Status, header lines and body for what was refused before it was handled; None where nothing had come."""


def trusts_nobody(address: str) -> bool:
    """A listener without proxies in front of it."""
    return False


class Listener:
    """Every connection to one application, and the limits they live under."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        trusts: Callable[[str], bool] = trusts_nobody,
        location_header: bytes = b"",
    ) -> None:
        """Not listening yet.

        Args:
            tls: gives the context for a handshake; None speaks plain HTTP.
            trusts: whether an address is a proxy of ours.
            location_header: name of the one in which those say where a client is, in lower case: it ends here, whoever
                sent it. Empty is none.
        """
        self.application = application
        self.limits = limits
        self.trusts = trusts
        self.location_header = location_header
        self.names_onward = PassingNames(NOT_FOR_ENGINES | {location_header}) if location_header else TO_ENGINE
        self.secure = tls is not None
        self.clock = asyncio.get_running_loop().time
        self.connections: set[ClientConnection] = set()
        self.bodies = KeptBodies(limits)
        self.departures = Departures()
        self.outgoing = Outgoing()
        self.draining = False
        self.draining_since = 0.0
        self._tls = tls
        self._max_of_address = limits.max_connections_per_address or max(1, limits.max_connections // ADDRESS_PART)
        self._of_address: Counter[str | bytes] = Counter()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._doorway: Doorway | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._deserted = asyncio.Event()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where. A second process may listen on the same port, so that it can take over."""
        loop = asyncio.get_running_loop()
        self._socket = open_port(host, port)
        notice_vanishing(self._socket, self.limits.write_stall_timeout_s)
        if self._tls is None:
            self._server = await loop.create_server(self._connection, sock=self._socket, backlog=BACKLOG)
        else:
            self._socket.setblocking(False)
            self._socket.listen(BACKLOG)
            self._doorway = Doorway(
                self._socket,
                self._tls,
                self._connection,
                admits=self._admits,
                on_ended=self._look_deserted,
                timeout_s=self.limits.head_timeout_s,
            )
        self._sweeper = keep_running("timeouts of connections", self._sweep)
        address = self._socket.getsockname()
        return address[0], address[1]

    def _connection(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, ClientConnection(self))

    def hand_over(self) -> None:
        """Let new connections go to whoever else listens on the port; those on their way here are still taken."""
        if self._socket is not None:
            send_to_successor(self._socket)

    def stop_accepting(self) -> None:
        """Take no new connections; those there finish what they have, and idle ones get a little time to speak."""
        self.draining, self.draining_since = True, self.clock()
        if self._server is not None:
            self._server.close()
        if self._doorway is not None:
            self._doorway.close()

    @property
    def handshakes(self) -> int:
        """Connections whose TLS handshake is under way."""
        return len(self._doorway) if self._doorway is not None else 0

    async def drain(self, grace_s: float) -> int:
        """Wait until every request is answered, `grace_s` at most, then cut; returns how many were cut."""
        if not self._is_deserted():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deserted.wait(), grace_s)
        cut = len(self.connections)
        for connection in list(self.connections):
            connection.abort()
        if self._doorway is not None:
            self._doorway.cut()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.departures.close()
        return cut

    def joined(self, connection: ClientConnection) -> Reason | None:
        """A connection has begun; the reason, where there are too many."""
        self.connections.add(connection)
        address = connection.peer_ip
        counted = counted_as(address)
        self._of_address[counted] += 1
        return None if self._fits(address, len(self.connections), self._of_address[counted]) else _TOO_MANY

    @property
    def crowded(self) -> bool:
        """There are so many that who is turned away is not even told: to tell takes time, and with it a descriptor."""
        most = self.limits.max_connections
        return len(self.connections) > most + most // 8 + 1

    def left(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        counted = counted_as(connection.peer_ip)
        self._of_address[counted] -= 1
        if self._of_address[counted] <= 0:
            del self._of_address[counted]
        self._look_deserted()

    def _is_deserted(self) -> bool:
        return not self.connections and not self.handshakes

    def _look_deserted(self) -> None:
        if self.draining and self._is_deserted():
            self._deserted.set()

    def _admits(self, address: str) -> bool:
        """Whether a TLS handshake may begin: those under way count as connections."""
        assert self._doorway is not None
        counted = counted_as(address)
        of_address = self._of_address[counted] + self._doorway.of_address[counted]
        return self._fits(address, len(self.connections) + self.handshakes + 1, of_address + 1)

    def _fits(self, address: str, together: int, of_address: int) -> bool:
        if together > self.limits.max_connections:
            return False
        return of_address <= self._max_of_address or self.trusts(address)

    async def _sweep(self) -> None:
        while True:
            await beat(SWEEP_S)
            now = self.clock()
            for connection in list(self.connections):
                connection.check_timeouts(now)


async def leave(listeners: Sequence[Listener], grace_s: float) -> int:
    """Hand the ports over, finish what has begun within `grace_s`, and cut the rest; returns how many were cut."""
    for listener in listeners:
        listener.hand_over()
    await asyncio.sleep(SETTLE_S)
    for listener in listeners:
        listener.stop_accepting()
    return sum(await asyncio.gather(*(listener.drain(grace_s) for listener in listeners)))
