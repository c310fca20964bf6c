"""The upstream side of an exchange: one connection at a time, to the target of the current attempt.

A request with an incomplete body is forwarded as it arrives. The request can be sent again as long as all sent bytes
are also kept.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from penstock.continuation.stream_usage import StreamUsage
from penstock.http.header_rules import Header, agent_lines
from penstock.jobs.response_progress import PROGRESS_HEADER, interim_head, interim_progress
from penstock.retries.exchange_state import AWAITING, CONNECTING, ExchangeState
from penstock.routes.timeouts import TimeLimits
from regional_agent.converters.converted_connection import is_converted, open_converted
from regional_agent.http.client_connection import ClientConnection
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.upstream_request import client_lines, withdraw_usage
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.telemetry.tracing.request_trace import SpanEvent
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_sink import ConnectFailed, TunnelSink
from regional_agent.websocket.websocket_offer import handshake_lines

STALE_S: Final = 1.0
"""Time (s) after a request was sent within which the close of a reused connection is attributed to the server, which
was already closing it."""

_SENT: Final = SpanEvent.SENT
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_ASKS_FOR_PROGRESS: Final = b"%b: wanted\r\n" % PROGRESS_HEADER

_CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"


class TargetSink(TunnelSink, Protocol):
    """Receives the response of a target, and the result of connecting: `on_connected`, or `on_broken`."""

    state: ExchangeState
    """The state of the exchange."""
    attempt: Attempt | None
    """The current attempt."""
    usage: StreamUsage | None
    """What the agent asks the engine to report; None if the response is no stream."""

    def on_connected(self) -> None:
        """The connection is open; the request can be sent."""


class TargetConnection:
    """Connects to a target, sends the request, and forwards the rest of its body.

    Holds no reference to its sink, so that a finished exchange is freed without the cyclic garbage collector.
    """

    def __init__(self, proxy: Proxy, client: ClientConnection, context: RequestContext) -> None:
        """Start without a connection."""
        self._proxy = proxy
        self._client = client
        self._request = context.request
        self._context = context
        self._connecting: asyncio.Task[None] | None = None
        self._reconnected = False
        """Whether the request was sent again to the same target because its connection was stale."""
        self._time_limits: TimeLimits | None = None
        """Cached result of `time_limits`."""
        self.upstream: UpstreamConnection | None = None
        """None while not connected, and once the connection has closed or belongs to its pool again."""
        self.sent_at = 0.0
        """Time (s) at which the complete request was sent; while its body is incomplete, at which its head was sent."""
        self.waits_since = 0.0
        """Time (s) at which data last arrived from the target, or a wait for the target began."""

    def go_to(self, attempt: Attempt, sink: TargetSink, now: float) -> None:
        """Send the request to a target, at once or when a new connection is open. `now` by the agent's clock (s)."""
        context, usage = self._context, sink.usage
        sink.attempt = attempt
        may_ask = self._proxy.usage_requests.may_ask(context.model, now, attempt.endpoint_name)
        if usage is not None and usage.flag is not None and not may_ask:
            withdraw_usage(context, usage)
        trace, address = context.trace, attempt.address
        if trace is not None:
            now = self._proxy.clock()
            trace.attempt(attempt.region, attempt.endpoint_name, attempt.kind, address.host, address.port, now)
        sink.state.enter(AWAITING)
        if not self.send(attempt, sink, now):
            sink.state.enter(CONNECTING)
            self._connecting = asyncio.create_task(self._connect(attempt, sink))

    async def _connect(self, attempt: Attempt, sink: TargetSink) -> None:
        began_at = self._proxy.clock()
        try:
            pool = self._proxy.pools.peers if attempt.from_peer else self._proxy.pools.endpoints
            connection = await pool.connect(attempt.address, self.time_limits.connect_s)
            if is_converted(self._request, attempt):
                # The converter uses the connection, which shows that the engine is reachable.
                pool.release(connection)
                connection = await open_converted(pool, attempt, self._request, self.time_limits.connect_s)
        except ConnectFailed as error:
            self._connecting = None
            sink.on_broken(error)
            return
        self._connecting, self.upstream = None, connection
        if isinstance(attempt, LocalAttempt):
            attempt.endpoint.traffic.connects.observe(self._proxy.clock() - began_at)
        sink.on_connected()

    def send(self, attempt: Attempt, sink: TargetSink, now: float) -> bool:
        """Send the request over the open connection, or over an idle one to the target; returns whether it was sent.

        It is not sent without such a connection, nor over an idle one if it must not be sent twice.

        Args:
            sink: receives the response.
            now: by the agent's clock (s).
        """
        context, connection = self._context, self.upstream
        # A target may close an idle connection just when the request is sent, which is then sent again.
        if (
            connection is None
            and context.is_repeatable
            and (self._request.reader is None or not is_converted(self._request, attempt))
        ):
            pools = self._proxy.pools
            pool = pools.peers if attempt.from_peer else pools.endpoints
            connection = self.upstream = pool.take(attempt.address)
        if connection is None:
            return False
        if context.trace is not None:
            context.trace.note(_SENT, now)
        self.sent_at, self._time_limits = now, None
        ledger = self._proxy.recorder.ledger
        if ledger is not None and not context.is_in_ledger:
            ledger.started(context)
        request = self._request
        if isinstance(attempt, LocalAttempt) and attempt.rewrite is not None:
            request = attempt.rewritten(request)
        received_via = () if request.plain else request.every(b"via")
        # Joined, since `%` takes four times as long.
        parts: list[bytes | bytearray] = [
            request.method,
            b" ",
            request.target,
            b" HTTP/1.1\r\n",
            connection.host_line,
            agent_lines(
                context.request_id, context.traceparent, context.deadline_at - now, self._proxy.via, received_via
            ),
            request.upstream_lines or client_lines(request, context, self._client),
            attempt.target_lines,
        ]
        reports = request.route is not None and request.route.converter != "" and self._reports_progress
        if reports and attempt.from_peer:
            parts.append(_ASKS_FOR_PROGRESS)
        if request.length is None:
            parts.append(_CHUNKED)
        elif request.upgrade:
            parts += [b"connection: upgrade\r\nupgrade: ", request.upgrade, b"\r\n", handshake_lines(request), b"\r\n"]
        else:
            parts += [b"content-length: ", str(request.length).encode(), b"\r\n\r\n"]
            if request.whole:
                parts.append(request.body)
        data = b"".join(parts)
        if request.method == b"HEAD":
            connection.expect_head_only()
        if request.upgrade:
            connection.send_upgrade(sink, data)
        elif request.whole:
            connection.send(sink, data)
        else:
            connection.send_partial(sink, data, bytes(request.body), chunked=request.length is None)
            if connection.writable:
                self._client.resume_reading()
        if reports:
            connection.on_interim = self._on_interim
        return True

    @property
    def _reports_progress(self) -> bool:
        """Whether the sender is a job, or the agent of one in another region, and reads interim responses."""
        context = self._context
        if context.route_context is None:
            return context.job_deadline_at is not None
        return self._request.header(PROGRESS_HEADER) is not None

    def _on_interim(self, headers: list[Header]) -> None:
        """Report the progress of a converter to the job, or to the agent of its region."""
        progress = interim_progress(dict(headers))
        if progress is not None:
            self._client.write(interim_head(progress))

    def send_body(self, chunk: bytes) -> None:
        """Keep a part of a large body while it fits, and forward it if the request has been sent."""
        request, upstream = self._request, self.upstream
        bodies = self._client.listener.bodies
        if upstream is None or (not request.body_dropped and bodies.fits(request, chunk)):
            # Before the request is sent, all parts are kept. Reading pauses early enough for the rest of a read to fit.
            bodies.keep(request, chunk, self._client)
            if upstream is None and not bodies.make_room(request, len(chunk)):
                self._client.pause_reading()
        elif not request.body_dropped:
            bodies.drop(request)
        if upstream is not None:
            upstream.send_body(chunk)

    def end_body(self) -> None:
        """End the request's body at the target, if the request has been sent."""
        if self.upstream is not None:
            self.sent_at = self._proxy.clock()
            self.upstream.end_request()

    def overdue(self, now: float, *, has_begun: bool) -> str:
        """Why the target is overdue: it did not begin to respond, or stopped. Empty if it is not.

        Args:
            has_begun: whether a part of its response has arrived, which is not forwarded yet.
        """
        limits = self.time_limits
        if has_begun:
            if now - self.waits_since > limits.idle_s:
                return f"sent a part of its response, and then nothing for {limits.idle_s:g} s"
        elif self._request.whole:
            limit_s = limits.first_byte_limit_s(streaming=self._context.estimate.streaming)
            if now - self.sent_at > limit_s:
                return f"did not begin to respond within {limit_s:g} s"
        elif self.write_stalled and now - self.waits_since > limits.idle_s:
            return f"read nothing more of the body for {limits.idle_s:g} s"
        return ""

    @property
    def time_limits(self) -> TimeLimits:
        """The time limits of the request, by its model, its route and the agent."""
        if self._time_limits is None:
            self._time_limits = self._proxy.time_limits_of(self._context)
        return self._time_limits

    @property
    def write_stalled(self) -> bool:
        """Whether the target reads more slowly than the client sends."""
        return self.upstream is not None and not self.upstream.writable

    def may_reconnect(self) -> bool:
        """Whether the target has probably not received the request. True only once: the request may cause the close."""
        soon = self._proxy.clock() - self.sent_at < STALE_S
        return soon and not self._reconnected and not self._request.body_dropped

    def reconnect(self, attempt: Attempt, sink: TargetSink) -> None:
        """Connect again to the same target, after its connection turned out to be stale."""
        self._reconnected = True
        if not self._request.whole:
            self._client.pause_reading()
        self._connecting = asyncio.create_task(self._connect(attempt, sink))

    def set_reading(self, reading: bool) -> None:
        """Apply the client's back-pressure: pause or resume reading the response."""
        if self.upstream is not None:
            if reading:
                self.upstream.resume_reading()
            else:
                self.upstream.pause_reading()

    def drop(self) -> None:
        """Stop connecting, or abort the connection, which makes the target cancel the request."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abort()
