"""How carrying a request ends: on every way out what is held is given back, and the request counted and logged, once.

Before the client has been sent a byte it is refused; after, a stream of events ends with one that says why, and any
other answer breaks off.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import structlog

from penstock.routing.reasons import Reason, Refusal
from penstock.routing.usage import TAIL_BYTES
from regional_agent.http.header_rules import REFUSAL_HEADER
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import RequestSequence
from regional_agent.proxy.access_log import AccessLine
from regional_agent.proxy.error_responses import refusal_response, stream_error_event
from regional_agent.proxy.tunnel import Tunnel
from regional_agent.routing.request_context import RequestContext, Target
from regional_agent.telemetry.agent_metrics import NO_SERVER, RequestKind, RequestOutcome
from regional_agent.upstream.chunk_relay import ChunkRelay
from regional_agent.upstream.response_head import ResponseHead
from regional_agent.upstream.upstream_connection import UpstreamConnection

if TYPE_CHECKING:
    from regional_agent.proxy.proxy import Proxy
    from regional_agent.routing.admission_queue import QueueEntry


log = structlog.get_logger()

_EVENT_ENDS: Final = (b"\n\n\r\n", b"\r\n\r\n\r\n")
"""The empty line that ends an event, and the end of its chunk."""


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


SEEKING, WAITING, SENT, REFUSED, STREAMING, TUNNEL, DONE = Stage
"""In Python 3.11, to read a member off its class is a function call; so for the outcome and kinds of most requests."""
_OK, _HOME, _FORWARDED = RequestOutcome.OK, RequestKind.HOME, RequestKind.FORWARDED
_SATURATED: Final = Reason.SATURATED


class Ending:
    """What is held for a request that is being carried, and the ways to be done with it."""

    __slots__ = (
        "_answer",
        "_carrier",
        "_chunked",
        "_client",
        "_client_stuck",
        "_connecting",
        "_context",
        "_entry",
        "_first_byte_at",
        "_heard",
        "_heard_at",
        "_keep_alive",
        "_reconnected",
        "_refused_because",
        "_relay",
        "_request",
        "_sent_at",
        "_sent_bytes",
        "_stage",
        "_status",
        "_tail",
        "_target",
        "_tunnel",
        "_unsent",
        "_upstream",
        "slot",
    )

    def __init__(self, carrier: Proxy, client: RequestSequence, request: Request, context: RequestContext) -> None:
        self._carrier = carrier
        self._client = client
        self._request = request
        self._context = context
        self._stage = SEEKING
        self._target: Target | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reconnected = False
        """A kept connection turned out to be closing, and its target got the request again on a new one."""
        self._tunnel: Tunnel | None = None
        self._relay: ChunkRelay | None = None
        """What takes the answer's chunks from the engine to the client past this."""
        self._entry: QueueEntry | None = None
        self._status = 0
        self._answer: ResponseHead | None = None
        self._refused_because = _SATURATED
        """Why its target did not start it."""
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
        self.slot: set[Ending] = set()
        """Where the timer wheel has it."""

    @property
    def model(self) -> str:
        """What is asked for."""
        return self._context.model

    def on_pause(self) -> None:
        """What one read of the engine's brought goes to the client in one write."""
        unsent = self._unsent
        if unsent:
            data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
            unsent.clear()
            if self._relay is not None:
                self._take_stock(self._relay)
            self._heard = True
            size_bytes = len(data)
            self._sent_bytes += size_bytes
            self._tail = (self._tail[1], data if size_bytes <= TAIL_BYTES else data[-TAIL_BYTES:])
            self._client.write(data)
            if self._client_stuck and self._upstream is not None:
                self._upstream.pause_reading()

    def _take_stock(self, relay: ChunkRelay) -> None:
        """Note what has been relayed since the last time."""
        if relay.sent_bytes:
            self._heard = True
            self._sent_bytes += relay.sent_bytes
            self._tail = (relay.before_last or self._tail[1], relay.last)
            relay.sent_bytes, relay.last, relay.before_last = 0, b"", b""

    def _cut(self, reason: Reason, detail: str, outcome: RequestOutcome) -> None:
        """End a stream that broke: an SSE client is told in-band, any other sees a broken connection."""
        self._drop_upstream()
        if self._chunked and self._answer is not None and self._answer.is_event_stream:
            event = stream_error_event(reason, detail)
            if self._relay is not None:
                self._take_stock(self._relay)
            self.on_pause()
            if not self._tail[1].endswith(_EVENT_ENDS):
                event = b"\n\n" + event
            # To the agent that forwarded it this would look like a whole answer: it reads the trailer, and nobody else.
            last = b"%b: %b\r\n" % (REFUSAL_HEADER, reason.encode()) if self._context.route_context is not None else b""
            self._unsent.append(b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(event), event, last))
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

    def _give_up(self, because: str) -> None:
        """The engine took too long. It may have started, so the request is refused and not tried elsewhere."""
        assert self._target is not None
        self._carrier.road.stalled(self._target)
        self._drop_upstream()
        self._refuse(Refusal(Reason.ENGINE_TIMEOUT, f"the engine {because}"), RequestOutcome.TIMEOUT)

    def _expire(self) -> None:
        detail = "the request's deadline has passed"
        if self._stage is STREAMING:
            self._cut(Reason.DEADLINE_PASSED, detail, RequestOutcome.TIMEOUT)
        elif self._stage is not DONE:
            self._drop_upstream()
            self._refuse(Refusal(Reason.DEADLINE_PASSED, detail), RequestOutcome.TIMEOUT)

    def _refuse(self, refusal: Refusal, outcome: RequestOutcome = RequestOutcome.REFUSED) -> None:
        status, lines, body = refusal_response(refusal, self._carrier.rng)
        self._status, self._sent_bytes = status, len(body)
        self._settle(outcome)
        self._carrier.metrics.refused(refusal.reason)
        lines.append(b"x-request-id: %b\r\n" % self._context.request_id.encode())
        self._client.respond(status, lines, body)

    # the end

    def _end_tunnel(self) -> None:
        """Both sides are done, or one of them is gone."""
        if self._stage is not DONE:
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
        if self._stage is DONE:
            return
        if self._relay is not None:
            self._take_stock(self._relay)
        carrier, context, target, stage = self._carrier, self._context, self._target, self._stage
        self._stage = DONE
        # Everything that is held is released before anything is counted: what fails there must not keep a slot.
        carrier.active.remove(self)
        now = carrier.clock()
        try:
            if self._entry is not None:
                carrier.road.leave(self._entry)
        finally:
            try:
                if target is not None:
                    measured = outcome is _OK and stage is not TUNNEL
                    carrier.road.settle(target, now, now - self._sent_at if measured else None, self._tail)
            finally:
                if context.counted:
                    carrier.road.release_quota(context)
        try:
            self._count(outcome, now)
        except Exception:
            log.exception("counting a finished request failed", model=context.model, outcome=outcome)

    def _count(self, outcome: RequestOutcome, now: float) -> None:
        """Adds the finished request to what the region reports, to the metrics and to the access log."""
        carrier, context, target = self._carrier, self._context, self._target
        server = NO_SERVER
        kind: str = _HOME if context.route_context is None else _FORWARDED
        if target is not None:
            server, kind = target.region, target.kind
        received_at, first_byte_at = context.received_at, self._first_byte_at
        ttft_s = None if first_byte_at is None else first_byte_at - received_at
        if context.route_context is None:
            carrier.road.request_tally.ended(context.model, outcome, ttft_s)
        carrier.metrics.request_done(context.model, server, kind, outcome, ttft_s, now - received_at)
        access_log = carrier.access_log
        if access_log is not None and access_log.wants(outcome is _OK):
            access_log.add(self._line(server, kind, outcome, ttft_s, now - received_at))

    def _line(
        self, server: str, kind: str, outcome: RequestOutcome, ttft_s: float | None, total_s: float
    ) -> AccessLine:
        context, request, target = self._context, self._request, self._target
        tunnel = self._tunnel
        location = context.facts.location
        # By position and in the order of its fields: by name it takes fifteen times as long.
        return AccessLine(
            self._carrier.wall_clock(),
            context.request_id,
            context.facts.tenant,
            context.model,
            request.path.decode("latin-1"),
            kind,
            server,
            target.endpoint.name if target is not None and target.endpoint is not None else "",
            outcome,
            self._status,
            context.attempts,
            request.received_bytes if tunnel is None else tunnel.received_bytes,
            self._sent_bytes if tunnel is None else tunnel.sent_bytes,
            total_s * 1000,
            None if ttft_s is None else ttft_s * 1000,
            context.route_context.origin if context.route_context is not None else self._carrier.road.region,
            location.country or "",
            location.subdivision or "",
        )
