"""The limits of what a client sends: the time for heads and bodies, and the size and memory of large bodies.

A body is collected before its request is handled. A large body that is not JSON is an exception: its request is
handled as soon as the part that has arrived names its model, and its handler receives further parts as they arrive.
"""

from __future__ import annotations

from typing import Final

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.body_limits import NO_ROOM, BodyLimits, HeadAcceptance, HeadPostponed
from regional_agent.http.client_transport import ClientTransport
from regional_agent.http.kept_bodies import BodyOwner
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import Request
from regional_agent.http.protocol.received import SMALL_BODY_BYTES, HeadReceived, PartReceived
from regional_agent.http.protocol.request_sequencer import RequestSequencer

_BAD_REQUEST: Final = Reason.BAD_REQUEST
_TIMEOUT: Final = Reason.REQUEST_TIMEOUT


class RequestIntake:
    """Applies the limits to the requests of one connection."""

    def __init__(
        self,
        listener: ListenerState,
        sequencer: RequestSequencer,
        transport: ClientTransport,
        acceptance: HeadAcceptance,
    ) -> None:
        """Start before the first request."""
        self._listener = listener
        self._limits = listener.limits
        self._bodies = listener.bodies
        self._sequencer = sequencer
        self._transport = transport
        self._body_limits = BodyLimits(listener.limits, listener.bodies, acceptance)
        self.receiving: Request | None = None
        """The request that was being received after the last read; None after a complete request."""

    def check(
        self, received: HeadReceived | PartReceived, owner: BodyOwner, peer_ip: str
    ) -> Request | PartReceived | Refusal | HeadPostponed | None:
        """Return what is to be done about the head, or a part, of a large body; None if nothing is until more arrives.

        Args:
            owner: the connection, which gives up kept bodies for those of other tenants.
            peer_ip: the address of the TCP peer.

        Returns:
            A request to be handled in its turn with a part of its body; a further part of the body of a request that
            has started; a refusal; or a wait, after which the head is checked again.
        """
        request = received.request
        if isinstance(received, HeadReceived):
            return self._accept(request, peer_ip)
        refusal = self._body_limits.check(request, received.chunk)
        if refusal is not None:
            return refusal
        if request.started:
            return received
        if not self._bodies.make_room(request, len(received.chunk)):
            return NO_ROOM
        # A body that was displaced to make room is not kept.
        if self._sequencer.uploading is request and self._body_limits.keep(request, received.chunk, owner):
            self._sequencer.queue_early(request)
            return request
        return None

    def wait(self) -> None:
        """Begin a wait for a further read, or pause reading where requests, or a large body, wait for their turn."""
        sequencer, transport = self._sequencer, self._transport
        receiving = sequencer.receiving
        if receiving is not self.receiving:
            self.receiving = receiving
            if receiving is not None:
                transport.waits_since = self._listener.clock()
        upload = sequencer.uploading
        if sequencer.parser.has_more:
            transport.pause_reading()
        elif upload is None or upload.started or upload.received_bytes <= SMALL_BODY_BYTES:
            return
        elif upload.queued or sequencer.serving is not None:
            transport.pause_reading()

    def _accept(self, request: Request, peer_ip: str) -> Refusal | HeadPostponed | None:
        """Check a request by its head, and send `100 Continue` only if it passes; returns why it does not."""
        refusal = self._body_limits.accept(request, peer_ip)
        if refusal is not None:
            return refusal
        expected = None if request.plain or request.http_1_0 else request.header(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                return Refusal(_BAD_REQUEST, "the only supported expectation is 100-continue")
            due = self._sequencer.expect_continue()
            if due:
                self._transport.write(due)
        return None

    def is_idle_too_long(self, now: float) -> bool:
        """Whether the client has sent nothing for too long, while no request waited or was handled. `now` in s."""
        sequencer, listener = self._sequencer, self._listener
        if not sequencer.is_idle or (sequencer.receiving is not None and self._transport.reading):
            return False
        idle_s = now - max(self._transport.waits_since, listener.draining_since)
        return idle_s > (self._limits.idle_linger_s if listener.draining else self._limits.idle_timeout_s)

    def overdue(self, now: float, peer_ip: str) -> Refusal | None:
        """Return why the arriving request is refused: it is too slow, or not permitted any more. `now` in s."""
        sequencer, request = self._sequencer, self._sequencer.receiving
        if request is None or not self._transport.reading:
            return None
        refusal: Refusal | None = None
        waited_s = now - self._transport.waits_since
        if sequencer.parser.in_head:
            if sequencer.serving is None and waited_s > self._limits.head_timeout_s:
                refusal = Refusal(_TIMEOUT, "the request head did not arrive in time")
        else:
            refusal = self._body_limits.overdue(request, waited_s, peer_ip)
        return refusal

    def refuse(self, refusal: Refusal, request: Request | None) -> None:
        """Receive nothing more, and respond with a refusal; see `RequestSequencer.refuse`."""
        for dropped in self._sequencer.refuse(refusal, request):
            self.release(dropped)

    def end(self) -> None:
        """Receive nothing more, and respond to nothing more."""
        for dropped in self._sequencer.end():
            self.release(dropped)

    def release(self, request: Request) -> None:
        """Release memory and quota of a request, held since its head. A second call does nothing."""
        self._body_limits.release(request)
