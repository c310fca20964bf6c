"""One request being carried: find a target, stream the answer back, try elsewhere until a byte has been sent.

The head of an answer is held until its first body byte: engines send heads before they start, and until the client has
been sent something the request may still go elsewhere. A request whose body is not whole yet is passed on as it comes;
what has been kept of it decides whether it can be sent again.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock import orca
from penstock.reasons import Reason, Refusal
from penstock.usage import TAIL_BYTES
from regional_agent.carry.access_log import AccessLine
from regional_agent.carry.client_turns import ClientTurns
from regional_agent.carry.errors import REFUSAL_HEADER, refusal_response, stream_error_event
from regional_agent.carry.messages import Header, Request, response_headers_back, status_line
from regional_agent.carry.onward import request_onward
from regional_agent.carry.tunnel import Tunnel
from regional_agent.carry.upstream import NO_BODY_STATUSES, UpstreamConnection
from regional_agent.carry.upstream_sink import ConnectFailed, TimedOut, UpstreamError
from regional_agent.metrics import NO_SERVER, RequestKind, RequestOutcome, RetryReason
from regional_agent.road import Target, Ticket

if TYPE_CHECKING:
    from regional_agent.carry.carrier import Carrier
    from regional_agent.waiting import Place

BUSY_STATUSES = frozenset({429, 503})
"""What an engine answers when it will not start a request now; vLLM, TGI and Triton all use 503 or 429 for it."""


class Stage(Enum):
    """How far an exchange has come; each stage only goes to those below it, or back to SEEKING before any byte."""

    SEEKING = auto()
    """Looking for a target or connecting to it."""
    WAITING = auto()
    """Nothing has room; it is told when something has."""
    SENT = auto()
    """Written to the target; nothing of an answer's body yet."""
    REFUSED = auto()
    """The target said it will not start this; the rest of what it says is read and dropped."""
    STREAMING = auto()
    """The client has been sent a part: nothing can be taken back."""
    TUNNEL = auto()
    """Bytes go both ways, and are no HTTP any more."""
    DONE = auto()


_SEEKING, _WAITING, _SENT, _REFUSED, _STREAMING, _TUNNEL, _DONE = Stage
"""In Python 3.11, to read a member off its class is a function call; so for the outcome and kinds of most requests."""
_OK, _HOME, _FORWARDED = RequestOutcome.OK, RequestKind.HOME, RequestKind.FORWARDED


class Exchange:
    """Handler of one client request and sink of one upstream response at a time."""

    __slots__ = (
        "_carrier",
        "_chunked",
        "_client",
        "_client_stuck",
        "_connecting",
        "_first_byte_at",
        "_heard",
        "_heard_at",
        "_keep_alive",
        "_place",
        "_refused_because",
        "_request",
        "_response_by_name",
        "_response_headers",
        "_sent_at",
        "_sent_bytes",
        "_stage",
        "_status",
        "_tail",
        "_target",
        "_ticket",
        "_tunnel",
        "_unsent",
        "_upstream",
    )

    def __init__(self, carrier: Carrier, client: ClientTurns, request: Request, ticket: Ticket) -> None:
        self._carrier = carrier
        self._client = client
        self._request = request
        self._ticket = ticket
        self._stage = _SEEKING
        self._target: Target | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tunnel: Tunnel | None = None
        self._place: Place | None = None
        self._status = 0
        self._response_headers: list[Header] = []
        self._response_by_name: dict[bytes, bytes] = {}
        """The same; of a repeated one the last."""
        self._refused_because = Reason.SATURATED
        self._chunked = False
        self._keep_alive = False
        self._unsent: list[bytes] = []
        self._tail = (b"", b"")
        """The last two reads' worth of the answer: engines say at its end what it took."""
        self._sent_bytes = 0
        self._sent_at = 0.0
        self._first_byte_at: float | None = None
        self._heard = False
        """Something came of the answer since the last look at it."""
        self._heard_at = 0.0
        self._client_stuck = False
        """The client takes nothing now, so neither do we."""

    @property
    def model(self) -> str:
        """What is asked for."""
        return self._ticket.model

    def seek(self) -> None:
        """Ask the road for the next target and go there; a refusal ends the exchange."""
        self._stage = _SEEKING
        if not self._request.whole:
            self._client.pause_reading()
        target = self._carrier.road.next_target(self._ticket, self._carrier.clock())
        if isinstance(target, Target):
            self._go_to(target)
        elif target.reason is Reason.SATURATED:
            self._wait(target)
        else:
            self._refuse_unless_lighter(target)

    def _refuse_unless_lighter(self, refusal: Refusal) -> None:
        """There is no place to run it: refuse it, or let a lighter model serve it where policy says so."""
        if self._carrier.road.fall_back(self._ticket, self._request, refusal):
            self.seek()
        else:
            self._refuse(refusal)

    def _wait(self, refusal: Refusal) -> None:
        """Everything is full: wait for room, unless that is of no use."""
        place = self._carrier.road.wait(self._ticket, len(self._request.body), self._on_turn, self._carrier.clock())
        if isinstance(place, Refusal):
            self._refuse_unless_lighter(
                Refusal(refusal.reason, f"{refusal.detail}; {place.detail}", refusal.rejected, place.retry_after_s)
            )
        else:
            self._stage, self._place = _WAITING, place

    def _on_turn(self, target: Target | Refusal) -> None:
        """There is room for it, or it is of no use to wait longer."""
        if self._stage is not _WAITING:
            if isinstance(target, Target):
                self._carrier.road.settle(target, None)
            return
        self._stage, self._place = _SEEKING, None
        if isinstance(target, Target):
            self._go_to(target)
        elif target.reason is Reason.DEADLINE_PASSED:
            self._refuse(target, RequestOutcome.TIMEOUT)
        else:
            self._refuse_unless_lighter(target)

    def _go_to(self, target: Target) -> None:
        self._target = target
        idle = self._carrier.pool_for(target).take(target.address)
        if idle is not None:
            self._send(idle)
        else:
            self._connecting = asyncio.create_task(self._connect(target))

    def check(self, now: float) -> None:
        """Give up at the deadline, on an engine that says nothing, and on a peer that has failed unheard."""
        stage, limits = self._stage, self._carrier.limits
        if stage is _TUNNEL:
            if self._tunnel is not None and self._tunnel.idle_s(now) > limits.tunnel_idle_timeout_s:
                self._end_tunnel()
        elif now > self._ticket.deadline_at:
            self._expire()
        elif stage is _SENT:
            if self._target is not None:
                self._carrier.road.look(self._target, now)
            if self._waits_for_failed_peer():
                self._lose(TimedOut("the serving region has failed"))
            elif self._request.whole and now - self._sent_at > limits.first_byte_timeout_s:
                self._give_up_waiting()
        elif stage is _STREAMING:
            if self._heard or self._client_stuck:
                self._heard, self._heard_at = False, now
            elif now - self._heard_at > limits.stall_timeout_s:
                self._stall()

    def _waits_for_failed_peer(self) -> bool:
        target = self._target
        return target is not None and target.endpoint is None and self._carrier.road.has_failed(target.region)

    # Handler

    def on_client_gone(self) -> None:
        """Nobody waits any more: stop the engine at once."""
        if self._stage is not _DONE:
            outcome = _OK if self._stage is _TUNNEL else RequestOutcome.CANCELLED
            self._drop_upstream()
            self._settle(outcome)

    def on_client_writable(self, writable: bool) -> None:
        """A slow client slows its engine's stream, not our memory."""
        self._client_stuck = not writable
        if self._upstream is not None:
            if writable:
                self._upstream.resume_reading()
            else:
                self._upstream.pause_reading()

    def on_request_body(self, chunk: bytes) -> None:
        """More of a large body: keep it while it fits and nobody has it yet, pass it on once somebody has."""
        request, upstream = self._request, self._upstream
        bodies = self._client.bodies
        if upstream is None or (not request.forgotten and bodies.fits(request, chunk)):
            # While nobody has the body, reading is paused: what is left of one read must fit.
            bodies.keep(request, chunk)
        elif not request.forgotten:
            bodies.forget(request)
        if upstream is not None:
            upstream.send_more(chunk)

    def on_request_end(self) -> None:
        """The body is whole."""
        if self._upstream is not None:
            self._sent_at = self._carrier.clock()
            self._upstream.end_request()

    # Sink

    def on_head(self, status: int, headers: list[Header]) -> None:
        """Hold the head; see whether it says that the request did not start."""
        self._status, self._response_headers, by_name = status, headers, dict(headers)
        self._response_by_name = by_name
        assert self._target is not None
        if self._target.endpoint is None:
            if REFUSAL_HEADER in by_name:
                self._refused_because = _REASONS.get(by_name[REFUSAL_HEADER], Reason.UNREACHABLE)
                self._stage = _REFUSED
        elif status >= 400 or orca.HEADER in by_name:
            self._carrier.road.answered(self._target, status, headers)
            if status in BUSY_STATUSES:
                self._stage = _REFUSED

    def on_body(self, chunk: bytes) -> None:
        """Pass a part on; the first one commits this exchange to its target."""
        if self._stage is _SENT:
            self._commit()
        if self._stage is _STREAMING:
            self._unsent.append(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)

    def on_end(self) -> None:
        """The response is whole."""
        self._upstream = None
        if self._stage is _REFUSED:
            assert self._target is not None
            self._carrier.road.busy(self._ticket, self._target, self._refused_because)
            local = self._target.endpoint is not None
            self._seek_again(RetryReason.ENGINE_BUSY if local else RetryReason.PEER_REFUSED)
            return
        if self._stage is _SENT:
            self._commit()
        if self._stage is _STREAMING:
            self._finish()

    def on_pause(self) -> None:
        """What one read of the engine's brought goes to the client in one write."""
        unsent = self._unsent
        if unsent:
            self._heard = True
            data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
            unsent.clear()
            self._sent_bytes += len(data)
            self._tail = (self._tail[1], data if len(data) <= TAIL_BYTES else data[-TAIL_BYTES:])
            self._client.write(data)

    def on_broken(self, error: UpstreamError) -> None:
        """The connection ended before the response did."""
        self._upstream = None
        if self._stage is _TUNNEL:
            self._end_tunnel()
        else:
            self._lose(error)

    def on_writable(self, writable: bool) -> None:
        """A slow engine slows its client's upload, or its half of a tunnel."""
        if writable:
            self._client.resume_reading()
        elif not self._request.whole or self._stage is _TUNNEL:
            self._client.pause_reading()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """The engine speaks the client's protocol: tell the client, and get out of the way."""
        assert self._target is not None
        assert self._upstream is not None
        self._stage, self._status, self._response_headers = _TUNNEL, 101, headers
        lines = [
            status_line(101),
            b"connection: upgrade\r\nupgrade: %b\r\n" % self._request.upgrade,
            *response_headers_back(headers, dict(headers), from_peer=self._target.endpoint is None),
            *self._signature(),
            b"\r\n",
        ]
        self._client.write(b"".join(lines))
        now = self._carrier.clock()
        tunnel = self._tunnel = Tunnel(self._client, self._upstream, now, self._end_tunnel)
        self._client.tunnel_to(tunnel)
        return tunnel

    # one attempt

    async def _connect(self, target: Target) -> None:
        try:
            connection = await self._carrier.pool_for(target).connect(target.address)
        except ConnectFailed as error:
            self._connecting = None
            self._lose(error)
            return
        self._connecting = None
        self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        request, target = self._request, self._target
        assert target is not None
        now = self._carrier.clock()
        self._stage, self._upstream, self._sent_at = _SENT, connection, now
        head = request_onward(request, self._ticket, target, self._client, self._carrier.via, now)
        if request.whole:
            if request.upgrade:
                connection.offer_upgrade(self, head)
            else:
                connection.send(self, head + request.body if request.body else head)
            return
        connection.send_beginning(self, head, bytes(request.body), chunked=request.length is None)
        if connection.writable:
            self._client.resume_reading()

    def _lose(self, error: UpstreamError) -> None:
        """An attempt came to nothing. Before a byte was sent it goes elsewhere; after, the client is told."""
        assert self._target is not None
        if self._stage is _STREAMING:
            self._carrier.road.broke_off(self._target)
            self._cut(Reason.ENGINE_FAILED, f"the stream broke off: {error}", RequestOutcome.ENGINE_ERROR)
            return
        self._drop_upstream()
        self._carrier.road.unreachable(self._ticket, self._target)
        failed_connect = isinstance(error, ConnectFailed)
        self._seek_again(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _seek_again(self, why: RetryReason) -> None:
        assert self._target is not None
        self._carrier.road.settle(self._target, None)
        self._target = None
        if self._request.forgotten:
            detail = f"{why.value}, and the body is larger than what is kept to send it again"
            self._refuse(Refusal(Reason.ENGINE_FAILED, detail))
        elif not self._carrier.retries.withdraw(self._carrier.clock()):
            reason = Reason.ENGINE_FAILED if why in _FAILURES else Reason.SATURATED
            self._refuse(Refusal(reason, f"{why.value}, and too many requests are being retried", retry_after_s=1.0))
        else:
            self._carrier.metrics.retried(why)
            self.seek()

    # the answer

    def _commit(self) -> None:
        """Send the head: from here on this target's answer is the answer."""
        target, request, status, by_name = self._target, self._request, self._status, self._response_by_name
        assert target is not None
        self._stage = _STREAMING
        self._first_byte_at = self._heard_at = now = self._carrier.clock()
        if self._ticket.errand.streaming:
            self._carrier.road.first_byte(target, now)
        length = by_name.get(b"content-length")
        has_body = status not in NO_BODY_STATUSES
        self._chunked = has_body and length is None and not request.http_1_0
        framed = self._chunked or length is not None or not has_body
        self._keep_alive = (
            framed and request.keep_alive and request.whole and not request.upgrade and not self._client.draining
        )
        parts = self._unsent
        parts.append(status_line(status))
        parts += response_headers_back(self._response_headers, by_name, from_peer=target.endpoint is None)
        if length is not None and status != 204:
            parts += (b"content-length: ", length, b"\r\n")
        elif self._chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self._keep_alive:
            parts.append(b"connection: close\r\n")
        parts += self._signature()
        parts.append(b"\r\n")

    def _signature(self) -> list[bytes]:
        """Who served it; of a peer's answer, the peer says so itself."""
        target = self._target
        assert target is not None
        ticket = self._ticket
        request_id = b"x-request-id: %b\r\n" % ticket.request_id.encode()
        if ticket.model != ticket.asked_for:
            request_id += b"x-penstock-model: %b\r\n" % ticket.model.encode()
        if target.endpoint is None:
            return [request_id]
        return [request_id, self._carrier.signature(target.region, target.endpoint.name)]

    def _finish(self) -> None:
        if self._chunked:
            self._unsent.append(b"0\r\n\r\n")
        self.on_pause()
        if self._status < 400:
            outcome = _OK
        else:
            outcome = RequestOutcome.CLIENT_ERROR if self._status < 500 else RequestOutcome.ENGINE_ERROR
        self._settle(outcome)
        self._client.finished(keep_alive=self._keep_alive)

    def _cut(self, reason: Reason, detail: str, outcome: RequestOutcome) -> None:
        """End a stream that broke: an SSE client is told in-band, any other sees a broken connection."""
        self._drop_upstream()
        if self._chunked and _is_event_stream(self._response_by_name.get(b"content-type", b"")):
            event = stream_error_event(reason, detail)
            self._unsent.append(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            self.on_pause()
            self._settle(outcome)
            self._client.finished(keep_alive=False)
        else:
            self._settle(outcome)
            self._client.abort()

    def _stall(self) -> None:
        """Nothing has come for too long: the engine is counted as failing, the client is told."""
        assert self._target is not None
        self._carrier.road.stalled(self._target)
        allowed_s = self._carrier.limits.stall_timeout_s
        self._cut(Reason.STREAM_STALLED, f"nothing came for {allowed_s:g} s", RequestOutcome.ENGINE_ERROR)

    def _give_up_waiting(self) -> None:
        """It may have started, so it is not tried elsewhere."""
        assert self._target is not None
        self._carrier.road.stalled(self._target)
        self._drop_upstream()
        allowed_s = self._carrier.limits.first_byte_timeout_s
        detail = f"the engine did not begin to answer within {allowed_s:g} s"
        self._refuse(Refusal(Reason.ENGINE_TIMEOUT, detail), RequestOutcome.TIMEOUT)

    def _expire(self) -> None:
        detail = "the request's deadline has passed"
        if self._stage is _STREAMING:
            self._cut(Reason.DEADLINE_PASSED, detail, RequestOutcome.TIMEOUT)
        elif self._stage is not _DONE:
            self._drop_upstream()
            self._refuse(Refusal(Reason.DEADLINE_PASSED, detail), RequestOutcome.TIMEOUT)

    def _refuse(self, refusal: Refusal, outcome: RequestOutcome = RequestOutcome.REFUSED) -> None:
        status, lines, body = refusal_response(refusal)
        self._status, self._sent_bytes = status, len(body)
        self._settle(outcome)
        self._carrier.metrics.refused(refusal.reason)
        lines.append(b"x-request-id: %b\r\n" % self._ticket.request_id.encode())
        self._client.respond(status, lines, body)

    # the end

    def _end_tunnel(self) -> None:
        """Both sides are done, or one of them is gone."""
        if self._stage is not _DONE:
            if self._upstream is not None:
                self._upstream.close()
                self._upstream = None
            self._settle(_OK)
            self._client.finished(keep_alive=False)

    def _drop_upstream(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _settle(self, outcome: RequestOutcome) -> None:
        """Give back what is held and count the request, once, on every way out."""
        if self._stage is _DONE:
            return
        carrier, ticket, target, stage = self._carrier, self._ticket, self._target, self._stage
        self._stage = _DONE
        if self._place is not None:
            carrier.road.leave(self._place)
        now = carrier.clock()
        server = NO_SERVER
        kind: str = _HOME if ticket.context is None else _FORWARDED
        if target is not None:
            measured = outcome is _OK and stage is not _TUNNEL
            service_s = now - self._sent_at if measured else None
            carrier.road.settle(target, service_s, self._tail)
            server, kind = target.region, target.kind
        carrier.road.over(ticket)
        received_at, first_byte_at = ticket.received_at, self._first_byte_at
        ttft_s = None if first_byte_at is None else first_byte_at - received_at
        if ticket.context is None:
            carrier.road.answers.ended(outcome, ttft_s)
        carrier.metrics.request_done(ticket.model, server, kind, outcome, ttft_s, now - received_at)
        if carrier.access_log is not None and carrier.access_log.wants(outcome is _OK):
            carrier.access_log.add(self._line(server, kind, outcome, ttft_s, now - received_at))
        carrier.ended(self)

    def _line(
        self, server: str, kind: str, outcome: RequestOutcome, ttft_s: float | None, total_s: float
    ) -> AccessLine:
        ticket, request, target = self._ticket, self._request, self._target
        tunnelled_bytes = self._tunnel.carried_bytes if self._tunnel is not None else 0
        return AccessLine(
            at=self._carrier.wall_clock(),
            request_id=ticket.request_id,
            tenant=ticket.facts.tenant,
            model=ticket.model,
            path=request.path.decode("latin-1"),
            kind=kind,
            server=server,
            endpoint=target.endpoint.name if target is not None and target.endpoint is not None else "",
            outcome=outcome,
            status=self._status,
            attempts=ticket.attempts,
            received_bytes=request.received_bytes,
            sent_bytes=self._sent_bytes + tunnelled_bytes,
            total_ms=total_s * 1000,
            ttft_ms=None if ttft_s is None else ttft_s * 1000,
            origin=self._carrier.road.origin_of(ticket),
            country=ticket.facts.location.country or "",
            subdivision=ticket.facts.location.subdivision or "",
        )


_FAILURES = frozenset({RetryReason.CONNECT_FAILED, RetryReason.CLOSED_EARLY})
_REASONS = {reason.value.encode(): reason for reason in Reason}


def _is_event_stream(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"
