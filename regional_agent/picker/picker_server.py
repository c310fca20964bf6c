"""The server of the endpoint picker: one call for each request of Envoy, gRPC's health checks, and the access log."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import structlog

from penstock.routing.reasons import Reason, Refusal
from penstock.wire.identity import BadIdentity, ProcessRole, TrustBundle
from regional_agent.background_tasks import keep_running, sleep_until_tick
from regional_agent.http.connection_counts import ConnectionCounts
from regional_agent.http.limits import Limits
from regional_agent.http.listen_port import open_port
from regional_agent.http.messages import with_common_lines
from regional_agent.http.tls_handshakes import TlsHandshakes
from regional_agent.picker import grpc_stream as grpc
from regional_agent.picker.conversation import PickerParts
from regional_agent.picker.early_ends import LOG_SERVICE
from regional_agent.picker.envoy_responses import NOT_SERVING, SERVING, immediate_response
from regional_agent.picker.grpc_connection import GrpcConnection
from regional_agent.picker.http2_frames import ENHANCE_YOUR_CALM, Http2Error
from regional_agent.picker.process_call import AccessLogCall, HealthCall, ProcessCall, RefusedCall
from regional_agent.picker.processing_request import HEALTH_SERVICE, SERVICE
from regional_agent.upstream.address import Address

ROLES: Final = frozenset({ProcessRole.AGENT, ProcessRole.SERVER})
"""The roles whose certificates Envoy may have: that of the agent beside it, or one for a server (`certs issue server`).

The picker's messages contain the credentials of endpoints, which no monitoring system may read."""

CONNECTION_LIMITS: Final = Limits(max_connections=1024)
"""Limits of connections: an Envoy opens one for each of its threads."""

SWEEP_S: Final = 0.5
"""Interval (s) of the checks of bodies that are arriving, and of the certificates of open connections."""

BACKLOG: Final = 128

MAX_OTHER_CALLS: Final = 1024
"""Maximum number of health checks and access logs at once."""

FRAME_BYTES: Final = 64 * 1024
"""Size (bytes) that a message may have beside the body in it."""

_PROCESS: Final = f"/{SERVICE}/Process".encode()
_CHECK: Final = f"/{HEALTH_SERVICE}/Check".encode()
_LOG: Final = f"/{LOG_SERVICE}/StreamAccessLogs".encode()

log = structlog.get_logger()


class PickerTls:
    """The certificate of the server, and the authorities of the fleet."""

    def __init__(self, context: Callable[[], ssl.SSLContext], trust: Callable[[], TrustBundle]) -> None:
        """Serve with the context that `context` returns for each handshake.

        Args:
            trust: returns the authorities of the fleet, with the revoked certificates.
        """
        self.context = context
        self._trust = trust

    def permits(self, certificate: bytes | None) -> bool:
        """Whether the holder of a client certificate (DER) may use the picker."""
        try:
            self._trust().verify(certificate or b"", time.time(), ROLES)
        except BadIdentity:
            return False
        return True


class PickerServer:
    """Serves Envoy's External Processing API on one port. Drained like the listeners of the agent."""

    def __init__(
        self, parts: PickerParts, not_ready_reason: Callable[[], str | None], tls: PickerTls | None = None
    ) -> None:
        """Create a server; `start` binds it.

        Args:
            parts: the parts of the agent that requests use.
            not_ready_reason: why the agent is not ready; None if it is.
            tls: None serves without TLS.
        """
        self._parts = parts
        self._not_ready_reason = not_ready_reason
        self._tls = tls
        self.counts = ConnectionCounts(CONNECTION_LIMITS, lambda address: True)
        """The connections of Envoys."""
        self._connections: set[GrpcConnection] = set()
        self._calls: set[ProcessCall] = set()
        self._other_calls = 0
        self._buffered_bytes = 0
        self._stopping = False
        self._drained = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._mode_logged = False
        self._trust_logged = False
        self.max_message_bytes = parts.limits.json_bytes + FRAME_BYTES
        self.max_streams = parts.limits.max_connections
        """Maximum number of streams of a connection, and of requests of all connections."""

    async def start(self, listen: Address) -> Address:
        """Start to listen; returns the address, with the port that was bound.

        Raises:
            OSError: the address cannot be bound.
        """
        listening: socket.socket = open_port(listen.host, listen.port)
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connection, sock=listening, backlog=BACKLOG)
        else:
            listening.listen(BACKLOG)
            self._handshakes = TlsHandshakes(
                listening,
                self._tls.context,
                self._connection,
                counts=self.counts,
                limits=CONNECTION_LIMITS,
                on_end=lambda: None,
            )
        self._sweeper = keep_running("bodies of picked requests", self._sweep)
        host, port = listening.getsockname()[:2]
        return Address(host, port)

    def _connection(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, GrpcConnection(self))

    async def _sweep(self) -> None:
        while True:
            await sleep_until_tick(SWEEP_S)
            now = self._parts.proxy.clock()
            for call in list(self._calls):
                call.stream.check_body(now)
            # An Envoy keeps its connections for days; a certificate may expire or be revoked meanwhile.
            for connection in list(self._connections):
                if not self._permits(connection):
                    connection.abort()
                connection.sweep()

    # GrpcService

    def connected(self, connection: GrpcConnection) -> bool:
        """Count a connection; returns whether it is within the limits, and its certificate permits it."""
        self._connections.add(connection)
        fits = not self.counts.add_connection(connection.peer_ip, None)
        accepted = self._permits(connection) and fits
        if accepted and not (self._trust_logged or self._parts.trusts(connection.peer_ip)):
            self._trust_logged = True
            remedy = "add the address to trusted_proxies: without it, all clients of this Envoy have its location"
            log.warning("an Envoy is no trusted proxy", address=connection.peer_ip, remedy=remedy)
        return accepted

    def _permits(self, connection: GrpcConnection) -> bool:
        if self._tls is None or self._tls.permits(connection.certificate):
            return True
        log.warning("a client of the endpoint picker is no agent and no server", address=connection.peer_ip)
        return False

    def disconnected(self, connection: GrpcConnection) -> None:
        """Count a closed connection."""
        self._connections.discard(connection)
        self.counts.remove_connection(connection.peer_ip)

    def buffered(self, grown_bytes: int) -> None:
        """Count messages that wait; above the memory for bodies, close the connection that holds most of them."""
        self._buffered_bytes += grown_bytes
        if grown_bytes > 0 and self._buffered_bytes > self._parts.limits.max_kept_bytes:
            largest = max(self._connections, key=_buffered_by)
            largest.end(Http2Error(ENHANCE_YOUR_CALM, "the memory for messages that wait is full"))

    def call(self, path: bytes, stream: grpc.GrpcStream) -> grpc.GrpcCall | None:
        """Return the call of a method."""
        if path in (_CHECK, _LOG):
            if self._other_calls >= MAX_OTHER_CALLS:
                stream.end(grpc.RESOURCE_EXHAUSTED, "too many health checks and access logs")
                return None
            self._other_calls += 1
            if path == _LOG:
                return AccessLogCall(stream, self._parts.early_ends, self._other_ended)
            return HealthCall(stream, self._status_of, self._other_ended)
        if path != _PROCESS:
            stream.end(grpc.UNIMPLEMENTED, "no such method")
            return None
        if self._stopping:
            stream.end(grpc.UNAVAILABLE, "the agent stops")
            return None
        if len(self._calls) >= self.max_streams:
            return RefusedCall(stream, self._refusal_of_full())
        call = ProcessCall(self._parts, stream, self._ended, self._reject_mode)
        self._calls.add(call)
        return call

    def _refusal_of_full(self) -> bytes:
        full = Refusal(Reason.TOO_MANY_CONNECTIONS, "the endpoint picker has too many requests")
        status, lines, body = self._parts.traffic.refuse(full, None)
        return immediate_response(status, with_common_lines(list(lines), None), body, full.reason.value)

    def _other_ended(self) -> None:
        self._other_calls -= 1

    def _ended(self, call: ProcessCall) -> None:
        self._calls.discard(call)
        if self._stopping and not self._calls:
            self._drained.set()

    def _reject_mode(self, remedy: str) -> None:
        if not self._mode_logged:
            self._mode_logged = True
            log.error("Envoy's configuration does not fit the endpoint picker", remedy=remedy)

    def _status_of(self, service: str) -> int | None:
        """The status of a health check: of liveness, of readiness, or of the service; None for an unknown one."""
        if service == "liveness":
            return SERVING
        if service not in ("", "readiness", SERVICE):
            return None
        is_ready = not self._stopping and self._not_ready_reason() is None
        return SERVING if is_ready else NOT_SERVING

    # the same as `Listener`

    def hand_over(self) -> None:
        """Report not ready, and refuse further requests, so that Envoy sends them to another agent."""
        self._stopping = True

    def stop_accepting(self) -> None:
        """Accept no connections; requests in progress continue."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in self._connections:
            connection.go_away()
        if not self._calls:
            self._drained.set()

    async def wait_drained(self, grace_s: float) -> bool:
        """Wait up to `grace_s` (s) until no request is in progress; returns whether none is."""
        if self._calls:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), grace_s)
        return not self._calls

    def refuse_uploads(self) -> None:
        """Refuse the requests whose bodies are arriving."""
        for call in list(self._calls):
            call.stream.shut_down()

    async def drain(self, grace_s: float) -> int:
        """Wait up to `grace_s` (s) for requests in progress, then end them and all connections; returns how many."""
        await self.wait_drained(grace_s)
        aborted = len(self._calls)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._handshakes is not None:
            self._handshakes.abort()
        for connection in list(self._connections):
            connection.abort()
        self._parts.early_ends.settle_all()
        return aborted


def _buffered_by(connection: GrpcConnection) -> int:
    return connection.buffered_bytes
