"""One request being carried: find a target, stream the answer back, try elsewhere until a byte has been sent.

The head of an answer is held until its first body byte: engines send heads before they start, and until the client has
been sent something the request may still go elsewhere. A request whose body is not whole yet is passed on as it comes;
what has been kept of it decides whether it can be sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.health import orca
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.header_rules import NO_BODY_STATUSES, REFUSAL_HEADER, Header, response_lines_to_client
from regional_agent.http.messages import status_line
from regional_agent.http.request_sequence import KEEP_ALIVE_1_0
from regional_agent.proxy.ending import DONE, REFUSED, SEEKING, SENT, STREAMING, TUNNEL, WAITING, Ending
from regional_agent.proxy.tunnel import Tunnel
from regional_agent.proxy.upstream_request import build_upstream_request
from regional_agent.routing.request_context import Target
from regional_agent.telemetry.agent_metrics import RequestOutcome, RetryReason
from regional_agent.upstream.chunk_relay import ChunkRelay
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_sink import ConnectFailed, Stale, TimedOut, UpstreamError

BUSY_STATUSES: Final = frozenset({429, 503})
"""What an engine answers when it will not start a request now; vLLM, TGI and Triton all use 503 or 429 for it."""

REFUSAL_S: Final = 1.0
"""How long (s) the rest of a refusal is read, so that its connection can be used again; then it is closed."""

STALE_S: Final = 1.0
"""A kept connection that ends so soon (s) after a request was written to it was closing already."""

LOOKS_FOR_STALL: Final = 20
"""A stream is looked at so often in the time that it may bring nothing; a stall is noticed so much later."""

_OK, _SATURATED = RequestOutcome.OK, Reason.SATURATED
"""In Python 3.11, to read a member off its class is a function call."""


class Exchange(Ending):
    """Handler of one client request and sink of one upstream response at a time."""

    __slots__ = ()

    def seek(self, now: float) -> None:
        """Ask the road for the next target and go there; a refusal ends the exchange. `now` is in seconds."""
        self._stage = SEEKING
        if not self._request.whole:
            self._client.pause_reading()
        target = self._carrier.road.next_target(self._context, now)
        if not isinstance(target, Refusal):
            self._go_to(target, now)
        elif target.reason is _SATURATED:
            self._wait(target)
        else:
            self._refuse_unless_lighter(target)

    def _refuse_unless_lighter(self, refusal: Refusal) -> None:
        """There is no place to run it: refuse it, or let a lighter model serve it where policy says so."""
        if self._carrier.road.fall_back(self._context, self._request, refusal):
            self.seek(self._carrier.clock())
        else:
            self._refuse(refusal)

    def _wait(self, refusal: Refusal) -> None:
        """Everything is full: wait for room, unless that is of no use."""
        request = self._request
        # What is still coming of a body that may be kept is read while it waits: so the client's leaving is noticed.
        reads_on = request.length is not None and request.length <= self._carrier.limits.kept_body_bytes
        size_bytes = max(len(request.body), request.length or 0) if reads_on else len(request.body)
        entry = self._carrier.road.wait(self._context, size_bytes, self._on_turn, self._carrier.clock())
        if isinstance(entry, Refusal):
            self._refuse_unless_lighter(
                Refusal(refusal.reason, f"{refusal.detail}; {entry.detail}", refusal.rejected, entry.retry_after_s)
            )
        else:
            self._stage, self._entry = WAITING, entry
            if reads_on and not request.whole:
                self._client.resume_reading()

    def _on_turn(self, target: Target | Refusal) -> None:
        """There is room for it, or it is of no use to wait longer."""
        if self._stage is not WAITING:
            if not isinstance(target, Refusal):
                self._carrier.road.settle(target, self._carrier.clock())
            return
        self._stage, self._entry = SEEKING, None
        if not isinstance(target, Refusal):
            self._go_to(target, self._carrier.clock())
        elif target.reason is Reason.DEADLINE_PASSED:
            self._refuse(target, RequestOutcome.TIMEOUT)
        else:
            self._refuse_unless_lighter(target)

    def _go_to(self, target: Target, now: float) -> None:
        self._target = target
        idle = self._carrier.pool_for(target).take(target.address)
        if idle is not None:
            self._send(idle, now)
        else:
            self._connecting = asyncio.create_task(self._connect(target))

    def check(self, now: float) -> float:
        """Give up at the deadline, on an engine that says nothing or does not end, and on a peer that has failed.

        Returns when to look again: soon, but for a stream that flows.
        """
        stage, limits = self._stage, self._carrier.limits
        if stage is TUNNEL:
            if self._tunnel is not None and self._tunnel.idle_s(now) > limits.tunnel_idle_timeout_s:
                self._end_tunnel()
        elif now > self._context.deadline_at:
            self._expire()
        elif stage is SENT:
            self._check_sent(now)
        elif stage is REFUSED:
            if now - self._heard_at > REFUSAL_S:
                self._drop_upstream()
                self._turned_down()
        elif stage is STREAMING:
            if self._relay is not None:
                self._take_stock(self._relay)
            if self._heard or self._waits_for_client:
                self._heard, self._heard_at = False, now
            elif now - self._heard_at > limits.stall_timeout_s:
                self._stall()
            return min(self._context.deadline_at, now + limits.stall_timeout_s / LOOKS_FOR_STALL)
        return now

    def _check_sent(self, now: float) -> None:
        """Give up on who was sent the request and neither begins to answer nor takes all of it."""
        limits = self._carrier.limits
        if self._target is not None:
            self._carrier.road.check_prefill_done(self._target, now)
        if self._waits_for_failed_peer():
            self._lose(TimedOut("the serving region has failed"))
        elif self._request.whole:
            if now - self._sent_at > limits.first_byte_timeout_s:
                self._give_up(f"did not begin to answer within {limits.first_byte_timeout_s:g} s")
        elif self._engine_stuck and now - self._heard_at > limits.stall_timeout_s:
            self._give_up(f"took nothing more of the body for {limits.stall_timeout_s:g} s")

    @property
    def _engine_stuck(self) -> bool:
        return self._upstream is not None and not self._upstream.writable

    @property
    def _waits_for_client(self) -> bool:
        """That an answer does not go on may be its client's doing: it takes none, or its upload is not over."""
        return self._client_stuck or not (self._request.whole or self._engine_stuck)

    def _waits_for_failed_peer(self) -> bool:
        target = self._target
        return target is not None and target.endpoint is None and self._carrier.road.has_failed(target.region)

    # Handler

    def on_client_gone(self) -> None:
        """Nobody waits any more: stop the engine at once."""
        if self._stage is not DONE:
            outcome = _OK if self._stage is TUNNEL else RequestOutcome.CANCELLED
            self._drop_upstream()
            self._settle(outcome)

    def on_client_writable(self, writable: bool) -> None:
        """A slow client slows its engine's stream, not our memory."""
        self._client_stuck = not writable
        # Until it answers, an engine is listened to whatever its client takes of the answers before.
        if self._upstream is not None and self._stage is not SENT:
            if writable:
                self._upstream.resume_reading()
            else:
                self._upstream.pause_reading()

    def on_request_body(self, chunk: bytes) -> None:
        """More of a large body: keep it while it fits and nobody has it yet, pass it on once somebody has."""
        request, upstream = self._request, self._upstream
        bodies = self._client.listener.bodies
        if upstream is None or (not request.body_dropped and bodies.fits(request, chunk)):
            # Until somebody has the body all of it is kept. Reading pauses early enough for the rest of a read to fit.
            bodies.keep(request, chunk)
            if upstream is None and not bodies.has_room(len(chunk)):
                self._client.pause_reading()
        elif not request.body_dropped:
            bodies.drop(request)
        if upstream is not None:
            upstream.send_body(chunk)

    def on_request_end(self) -> None:
        """The body is whole."""
        if self._upstream is not None:
            self._sent_at = self._carrier.clock()
            self._upstream.end_request()

    def on_request_refused(self, refusal: Refusal) -> None:
        """The client's own fault: say so, unless its answer has begun."""
        self._drop_upstream()
        if self._stage is STREAMING:
            self._settle(RequestOutcome.CLIENT_ERROR)
            self._client.abort()
        else:
            self._refuse(refusal, RequestOutcome.CLIENT_ERROR)

    # Sink

    def on_head(self, head: ResponseHead) -> None:
        """Hold the head; see whether it says that the request did not start."""
        self._answer, status, by_name = head, head.status, head.by_name
        assert self._target is not None
        if self._target.endpoint is None:
            if REFUSAL_HEADER in by_name:
                self._refused_because = _REASONS.get(by_name[REFUSAL_HEADER], Reason.UNREACHABLE)
                self._stage, self._heard_at = REFUSED, self._carrier.clock()
        elif status >= 400 or orca.HEADER in by_name:
            self._carrier.road.answered(self._target, status, head.headers)
            if status in BUSY_STATUSES:
                self._stage, self._heard_at = REFUSED, self._carrier.clock()

    def on_body(self, chunk: bytes) -> None:
        """Pass a part on; the first one commits this exchange to its target."""
        if self._stage is SENT:
            self._commit()
        if self._stage is STREAMING:
            self._unsent.append(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)

    def on_end(self) -> None:
        """The response is whole."""
        upstream, self._upstream = self._upstream, None
        if self._stage is REFUSED:
            self._turned_down()
            return
        if self._stage is SENT:
            self._commit()
        if self._stage is STREAMING:
            self._finish(upstream.error_trailer if upstream is not None else b"")

    def on_broken(self, error: UpstreamError) -> None:
        """The connection ended before the response did."""
        self._upstream = None
        if self._stage is TUNNEL:
            self._end_tunnel()
        elif self._stage is REFUSED:
            self._turned_down()
        else:
            self._lose(error)

    def on_writable(self, writable: bool) -> None:
        """A slow engine slows its client's upload, or its half of a tunnel."""
        if writable:
            self._client.resume_reading()
        elif not self._request.whole or self._stage is TUNNEL:
            self._client.pause_reading()
            if self._stage is SENT:
                self._heard_at = self._carrier.clock()

    def on_upgraded(self, headers: list[Header]) -> Tunnel:
        """The engine speaks the client's protocol: tell the client, and get out of the way."""
        assert self._target is not None
        assert self._upstream is not None
        self._stage, self._status = TUNNEL, 101
        lines = [
            status_line(101),
            b"connection: upgrade\r\nupgrade: %b\r\n" % self._request.upgrade,
            *response_lines_to_client(headers, dict(headers), from_peer=self._target.endpoint is None),
            b"x-request-id: %b\r\n" % self._context.request_id.encode(),
            self._signature(self._target),
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
        self._send(connection, self._carrier.clock())

    def _send(self, connection: UpstreamConnection, now: float) -> None:
        request, target = self._request, self._target
        assert target is not None
        self._stage, self._upstream, self._sent_at = SENT, connection, now
        onward = build_upstream_request(request, self._context, target, self._client, self._carrier.via, now)
        if request.upgrade:
            connection.send_upgrade(self, onward)
            return
        if request.whole:
            connection.send(self, onward)
            return
        connection.send_partial(self, onward, bytes(request.body), chunked=request.length is None)
        if connection.writable:
            self._client.resume_reading()

    def _turned_down(self) -> None:
        """The target has said that it will not start this one; or, a peer, that its engine may have."""
        assert self._target is not None
        if self._refused_because is Reason.ENGINE_TIMEOUT:
            detail = f"the engine in {self._target.region} did not begin in time"
            self._refuse(Refusal(Reason.ENGINE_TIMEOUT, detail), RequestOutcome.TIMEOUT)
            return
        self._carrier.road.busy(self._context, self._target, self._refused_because)
        local = self._target.endpoint is not None
        self._seek_again(RetryReason.ENGINE_BUSY if local else RetryReason.PEER_REFUSED)

    def _lose(self, error: UpstreamError) -> None:
        """An attempt came to nothing. Before a byte was sent it goes elsewhere; after, the client is told."""
        assert self._target is not None
        if self._stage is STREAMING:
            self._carrier.road.broke_off(self._target)
            self._cut(Reason.ENGINE_FAILED, f"the stream broke off: {error}", RequestOutcome.ENGINE_ERROR)
            return
        if isinstance(error, Stale) and self._may_reconnect():
            self._reconnected, self._stage = True, SEEKING
            if not self._request.whole:
                self._client.pause_reading()
            self._carrier.metrics.retried(RetryReason.STALE_CONNECTION)
            self._connecting = asyncio.create_task(self._connect(self._target))
            return
        self._drop_upstream()
        failed_connect = isinstance(error, ConnectFailed)
        self._carrier.road.unreachable(self._context, self._target, broke=not failed_connect)
        self._seek_again(RetryReason.CONNECT_FAILED if failed_connect else RetryReason.CLOSED_EARLY)

    def _may_reconnect(self) -> bool:
        """Whether its target has not seen the request, as far as can be told; once, for it may be what breaks it."""
        soon = self._carrier.clock() - self._sent_at < STALE_S
        return soon and not self._reconnected and not self._request.body_dropped

    def _seek_again(self, why: RetryReason) -> None:
        assert self._target is not None
        now = self._carrier.clock()
        self._carrier.road.settle(self._target, now)
        self._target = None
        if self._request.body_dropped:
            detail = f"{why.value}, and the body is larger than what is kept to send it again"
            self._refuse(Refusal(Reason.ENGINE_FAILED, detail))
        elif not self._carrier.retries.withdraw(now):
            reason = Reason.ENGINE_FAILED if why in _FAILURES else Reason.SATURATED
            detail = f"{why.value}, and too many requests are being retried"
            more_in_s = self._carrier.retries.more_in_s(now)
            self._refuse(Refusal(reason, detail, retry_after_s=more_in_s))
        else:
            self._carrier.metrics.retried(why)
            self.seek(now)

    # the answer

    def _commit(self) -> None:
        """Send the head: from here on this target's answer is the answer."""
        target, request, answer = self._target, self._request, self._answer
        assert target is not None
        assert answer is not None
        self._stage, self._status = STREAMING, answer.status
        # It is sent to nobody again, and its answer may take minutes.
        request.body = b""
        if request.kept_bytes:
            self._client.listener.bodies.drop(request)
        self._first_byte_at = self._heard_at = now = self._carrier.clock()
        if self._context.estimate.streaming:
            self._carrier.road.first_byte(target, now)
        length = answer.by_name.get(b"content-length")
        framed, framing = True, b""
        if length is None:
            framed, framing = self._frame(answer.status)
        elif answer.status != 204:
            framing = b"content-length: %b\r\n" % length
        draining = self._client.listener.draining
        self._keep_alive = framed and request.keep_alive and request.whole and not request.upgrade and not draining
        self._unsent.append(
            b"%b%b%bx-request-id: %b\r\n%b\r\n"
            % (
                answer.lines_to_client(from_peer=target.endpoint is None),
                framing,
                (KEEP_ALIVE_1_0 if request.http_1_0 else b"") if self._keep_alive else b"connection: close\r\n",
                self._context.request_id.encode(),
                self._signature(target),
            )
        )

    def _frame(self, status: int) -> tuple[bool, bytes]:
        """Whether an answer without a length goes on in a way that tells its end, and the header line that says so."""
        if status in NO_BODY_STATUSES:
            return True, b""
        if self._request.http_1_0:
            return False, b""
        self._chunked = True
        if self._upstream is not None:
            self._relay = ChunkRelay(self._client.listener.batcher, self._client.transport)
            self._upstream.relay_to(self._relay)
        return True, b"transfer-encoding: chunked\r\n"

    def _signature(self, target: Target) -> bytes:
        """Who served it, and as what; of a peer's answer, the peer says the first itself."""
        context, endpoint = self._context, target.endpoint
        lines = b"" if endpoint is None else self._carrier.signatures[endpoint.name]
        return (
            lines
            if context.model == context.asked_for
            else b"x-penstock-model: %b\r\n%b" % (context.model.encode(), lines)
        )

    def _finish(self, broke_off: bytes) -> None:
        """Its client has it all; `broke_off`: but a peer says that it had to end it, and why."""
        if self._chunked:
            self._unsent.append(b"0\r\n\r\n")
        self.on_pause()
        if broke_off and self._target is not None and self._target.endpoint is None:
            late = broke_off == Reason.DEADLINE_PASSED.encode()
            outcome = RequestOutcome.TIMEOUT if late else RequestOutcome.ENGINE_ERROR
        elif self._status < 400:
            outcome = _OK
        else:
            outcome = RequestOutcome.CLIENT_ERROR if self._status < 500 else RequestOutcome.ENGINE_ERROR
        self._settle(outcome)
        self._client.finished(keep_alive=self._keep_alive)


_FAILURES: Final = frozenset({RetryReason.CONNECT_FAILED, RetryReason.CLOSED_EARLY})
_REASONS: Final = {reason.value.encode(): reason for reason in Reason}
