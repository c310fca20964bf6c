"""One request being carried: find a target, stream the answer back, try elsewhere until a byte has been sent.

The head of an answer is held until its first body byte: engines send heads before they start, and until the client has
been sent something the request may still go elsewhere.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock.reasons import Reason, Refusal
from regional_agent.carry.errors import REFUSAL_HEADER, refusal_response, stream_error_event
from regional_agent.carry.listener import ClientConnection
from regional_agent.carry.messages import (
    Header,
    Request,
    request_headers_onward,
    response_head,
    response_headers_back,
)
from regional_agent.carry.upstream import (
    ConnectFailed,
    TimedOut,
    UpstreamConnection,
    UpstreamError,
)
from regional_agent.metrics import NO_SERVER, RequestKind, RequestOutcome, RetryReason
from regional_agent.road import Target, Ticket

if TYPE_CHECKING:
    from regional_agent.carry.carrier import Carrier

BUSY_STATUSES = frozenset({429, 503})
"""What an engine answers when it will not start a request now; vLLM, TGI and Triton all use 503 or 429 for it."""


class Stage(Enum):
    """How far an exchange has come; each stage only goes to those below it, or back to SEEKING before any byte."""

    SEEKING = auto()
    """Looking for a target or connecting to it."""
    SENT = auto()
    """Written to the target; nothing of an answer's body yet."""
    REFUSED = auto()
    """The target said it will not start this; the rest of what it says is read and dropped."""
    STREAMING = auto()
    """The client has been sent a part: nothing can be taken back."""
    DONE = auto()


class Exchange:
    """Handler of one client request and sink of one upstream response at a time."""

    __slots__ = (
        "_carrier",
        "_chunked",
        "_client",
        "_connecting",
        "_first_byte_at",
        "_refused_because",
        "_request",
        "_response_headers",
        "_sent_at",
        "_stage",
        "_status",
        "_target",
        "_ticket",
        "_unsent",
        "_upstream",
    )

    def __init__(self, carrier: Carrier, client: ClientConnection, request: Request, ticket: Ticket) -> None:
        self._carrier = carrier
        self._client = client
        self._request = request
        self._ticket = ticket
        self._stage = Stage.SEEKING
        self._target: Target | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._status = 0
        self._response_headers: list[Header] = []
        self._refused_because = Reason.SATURATED
        self._chunked = False
        self._unsent: list[bytes] = []
        self._sent_at = 0.0
        self._first_byte_at: float | None = None

    @property
    def model(self) -> str:
        """What is asked for."""
        return self._ticket.model

    def seek(self) -> None:
        """Ask the road for the next target and go there; a refusal ends the exchange."""
        self._stage = Stage.SEEKING
        target = self._carrier.road.next_target(self._ticket, self._carrier.clock())
        if isinstance(target, Refusal):
            self._refuse(target)
            return
        self._target = target
        idle = self._carrier.pool.take(target.address)
        if idle is not None:
            self._send(idle)
        else:
            self._connecting = asyncio.create_task(self._connect(target))

    def check(self, now: float) -> None:
        """Give up at the deadline, and on a peer that has failed meanwhile without closing the connection."""
        if now > self._ticket.deadline_at:
            self._expire()
        elif self._stage is Stage.SENT and self._waits_for_failed_peer():
            self._lose(TimedOut("the serving region has failed"))

    def _waits_for_failed_peer(self) -> bool:
        target = self._target
        return target is not None and target.endpoint is None and self._carrier.road.has_failed(target.region)

    # Handler

    def on_client_gone(self) -> None:
        """Nobody waits any more: stop the engine at once."""
        if self._stage is not Stage.DONE:
            self._drop_upstream()
            self._settle(RequestOutcome.CANCELLED)

    def on_client_writable(self, writable: bool) -> None:
        """A slow client slows its engine's stream, not our memory."""
        if self._upstream is not None:
            if writable:
                self._upstream.resume_reading()
            else:
                self._upstream.pause_reading()

    # Sink

    def on_head(self, status: int, headers: list[Header]) -> None:
        """Hold the head; see whether it says that the request did not start."""
        self._status, self._response_headers = status, headers
        assert self._target is not None
        if self._target.endpoint is None:
            did_not_start = self._note_peer_refusal(headers)
        else:
            did_not_start = status in BUSY_STATUSES
        if did_not_start:
            self._stage = Stage.REFUSED

    def on_body(self, chunk: bytes) -> None:
        """Pass a part on; the first one commits this exchange to its target."""
        if self._stage is Stage.SENT:
            self._commit()
        if self._stage is Stage.STREAMING and self._request.method != b"HEAD":
            self._unsent.append(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)

    def on_end(self) -> None:
        """The response is whole."""
        self._upstream = None
        if self._stage is Stage.REFUSED:
            assert self._target is not None
            self._carrier.road.busy(self._ticket, self._target, self._refused_because)
            local = self._target.endpoint is not None
            self._seek_again(RetryReason.ENGINE_BUSY if local else RetryReason.PEER_REFUSED)
            return
        if self._stage is Stage.SENT:
            self._commit()
        if self._stage is Stage.STREAMING:
            self._finish()

    def on_pause(self) -> None:
        """What one read of the engine's brought goes to the client in one write."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._client.write(b"".join(unsent) if len(unsent) > 1 else unsent[0])

    def on_broken(self, error: UpstreamError) -> None:
        """The connection ended before the response did."""
        self._upstream = None
        self._lose(error)

    def on_writable(self, writable: bool) -> None:
        """The request was written whole; there is no more of it to hold back."""

    # one attempt

    async def _connect(self, target: Target) -> None:
        try:
            connection = await self._carrier.pool.connect(target.address)
        except ConnectFailed as error:
            self._connecting = None
            self._lose(error)
            return
        self._connecting = None
        self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        assert self._target is not None
        self._stage, self._upstream = Stage.SENT, connection
        self._sent_at = self._carrier.clock()
        body = self._request.body
        lines = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n"
            % (self._request.method, self._request.target, str(self._target.address).encode()),
            *request_headers_onward(self._request),
            b"content-length: %d\r\n" % len(body),
        ]
        if self._request.header(b"x-request-id") != self._ticket.request_id.encode():
            lines.append(b"x-request-id: %b\r\n" % self._ticket.request_id.encode())
        if self._target.route_header:
            lines.append(b"x-penstock-route: %b\r\n" % self._target.route_header)
        connection.send(self, b"".join([*lines, b"\r\n", body]))

    def _note_peer_refusal(self, headers: list[Header]) -> bool:
        for name, value in headers:
            if name == REFUSAL_HEADER:
                self._refused_because = Reason(value.decode()) if value.decode() in _REASONS else Reason.UNREACHABLE
                return True
        return False

    def _lose(self, error: UpstreamError) -> None:
        """An attempt came to nothing. Before a byte was sent it goes elsewhere; after, the client is told."""
        assert self._target is not None
        if self._stage is Stage.STREAMING:
            self._cut(error)
            return
        self._drop_upstream()
        self._carrier.road.unreachable(self._ticket, self._target)
        failed_connect = isinstance(error, ConnectFailed)
        self._seek_again(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _seek_again(self, why: RetryReason) -> None:
        assert self._target is not None
        self._carrier.road.settle(self._target, None)
        self._target = None
        self._carrier.metrics.retried(why)
        self.seek()

    # the answer

    def _commit(self) -> None:
        """Send the head: from here on this target's answer is the answer."""
        assert self._target is not None
        self._stage = Stage.STREAMING
        self._first_byte_at = self._carrier.clock()
        from_peer = self._target.endpoint is None
        lines = response_headers_back(self._response_headers, from_peer=from_peer)
        length = next((value for name, value in self._response_headers if name == b"content-length"), None)
        self._chunked = length is None and not self._request.http_1_0
        if length is not None:
            lines.append(b"content-length: %b\r\n" % length)
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self._keeps_alive():
            lines.append(b"connection: close\r\n")
        if not from_peer:
            assert self._target.endpoint is not None
            lines += self._signature(self._target.region, self._target.endpoint.name)
        self._unsent.append(response_head(self._status, lines))

    def _signature(self, region: str, endpoint: str) -> list[bytes]:
        engine_says = any(name == b"x-request-id" for name, _ in self._response_headers)
        lines = [b"x-penstock-region: %b\r\nx-penstock-endpoint: %b\r\n" % (region.encode(), endpoint.encode())]
        if not engine_says:
            lines.append(b"x-request-id: %b\r\n" % self._ticket.request_id.encode())
        return lines

    def _keeps_alive(self) -> bool:
        framed = self._chunked or any(name == b"content-length" for name, _ in self._response_headers)
        return framed and self._request.keep_alive and not self._client.draining

    def _finish(self) -> None:
        if self._chunked:
            self._unsent.append(b"0\r\n\r\n")
        self.on_pause()
        keeps_alive = self._keeps_alive()
        if self._status < 400:
            outcome = RequestOutcome.OK
        else:
            outcome = RequestOutcome.CLIENT_ERROR if self._status < 500 else RequestOutcome.ENGINE_ERROR
        self._settle(outcome)
        self._client.finished(keep_alive=keeps_alive)

    def _cut(self, error: UpstreamError) -> None:
        """End a stream that broke: an SSE client is told in-band, any other sees a broken connection."""
        self._drop_upstream()
        outcome = RequestOutcome.TIMEOUT if isinstance(error, TimedOut) else RequestOutcome.ENGINE_ERROR
        self._settle(outcome)
        if self._chunked and (b"content-type", b"text/event-stream") in _media_types(self._response_headers):
            event = stream_error_event(Reason.ENGINE_FAILED, f"the stream broke off: {error}")
            self._unsent.append(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            self.on_pause()
            self._client.finished(keep_alive=False)
        else:
            self._client.abort()

    def _expire(self) -> None:
        refusal = Refusal(Reason.DEADLINE_PASSED, "the request's deadline has passed")
        if self._stage is Stage.STREAMING:
            self._cut(TimedOut(refusal.detail))
        elif self._stage is not Stage.DONE:
            self._drop_upstream()
            self._refuse(refusal, RequestOutcome.TIMEOUT)

    def _refuse(self, refusal: Refusal, outcome: RequestOutcome = RequestOutcome.REFUSED) -> None:
        self._settle(outcome)
        self._carrier.metrics.refused(refusal.reason)
        status, lines, body = refusal_response(refusal)
        lines.append(b"x-request-id: %b\r\n" % self._ticket.request_id.encode())
        self._client.respond(status, lines, body)

    # the end

    def _drop_upstream(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _settle(self, outcome: RequestOutcome) -> None:
        """Give back what is held and count the request, once, on every way out."""
        if self._stage is Stage.DONE:
            return
        self._stage = Stage.DONE
        now = self._carrier.clock()
        target, server = self._target, NO_SERVER
        kind = (RequestKind.HOME if self._ticket.context is None else RequestKind.FORWARDED).value
        if target is not None:
            served = outcome is RequestOutcome.OK
            self._carrier.road.settle(target, now - self._sent_at if served else None)
            server, kind = target.region, target.kind
        ttft_s = None if self._first_byte_at is None else self._first_byte_at - self._ticket.received_at
        total_s = now - self._ticket.received_at
        self._carrier.metrics.request_done(self._ticket.model, server, kind, outcome, ttft_s, total_s)
        self._carrier.ended(self)


_REASONS = frozenset(reason.value for reason in Reason)


def _media_types(headers: list[Header]) -> list[Header]:
    """Content types without their parameters."""
    return [(name, value.partition(b";")[0].strip().lower()) for name, value in headers if name == b"content-type"]
