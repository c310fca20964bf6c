"""The limits of what a client sends: the time for heads and bodies, and the size and memory of large bodies.

A body is collected before its request is handled. A large body that is not JSON is an exception: its request is
handled as soon as the part that has arrived names its model, and its handler receives further parts as they arrive.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_transport import ClientTransport
from regional_agent.http.kept_bodies import BodyOwner
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.protocol.received import SMALL_BODY_BYTES, HeadReceived, PartReceived, RequestRefused
from regional_agent.http.protocol.request_sequencer import RequestSequencer

_BAD_REQUEST: Final = Reason.BAD_REQUEST
_TOO_LARGE: Final = Reason.BODY_TOO_LARGE
_TIMEOUT: Final = Reason.REQUEST_TIMEOUT
DISPLACED: Final = Refusal(
    Reason.SATURATED,
    "the memory for large bodies is full, and this tenant holds the largest part of it",
    retry_after_s=MIN_RETRY_S,
)
"""The refusal of a request whose body has to make room for the bodies of other tenants."""
_NO_ROOM: Final = Refusal(Reason.SATURATED, "too many large bodies at once", retry_after_s=MIN_RETRY_S)


class HeadAcceptance(Protocol):
    """Decides about requests whose bodies have not arrived."""

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Check a request with a large body by its head, before the body is read.

        Args:
            peer_ip: the address of the TCP peer.
        """

    def release_head(self, head: AcceptedHead) -> None:
        """Release what an accepted head still holds. Called when its request has ended."""

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Check a request while its body arrives, periodically, since the policy may have changed since its head.

        Args:
            peer_ip: the address of the TCP peer.
        """

    def reads_whole(self, request: Request) -> bool:
        """Whether a request with a large body can be handled only when its body is complete."""

    def can_start_early(self, request: Request) -> bool:
        """Whether a request that does not need its whole body can be handled with the part that has arrived."""


class RequestIntake:
    """Takes the requests of one connection from its sequencer, within the limits."""

    __slots__ = ("_acceptance", "_bodies", "_limits", "_listener", "_receiving", "_sequencer", "_transport")

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
        self._acceptance = acceptance
        self._receiving: Request | None = None
        """The request that was being received after the last read."""

    def next_received(self, owner: BodyOwner, peer_ip: str) -> Request | PartReceived | RequestRefused | None:
        """Return what is to be done about what has arrived; None if nothing more is until more arrives.

        Args:
            owner: the connection, which gives up kept bodies for those of other tenants.
            peer_ip: the address of the TCP peer.

        Returns:
            A request to be handled in its turn, complete or with a part of its body; a request that has started and is
            now complete; a further part of the body of a request that has started; or a refusal.
        """
        sequencer = self._sequencer
        while True:
            received = sequencer.next_received()
            if received is None:
                self._wait()
                return None
            if isinstance(received, Request):
                if received.started and received.body_check is not None:
                    problem = received.body_check.finish()
                    if problem:
                        return RequestRefused(Refusal(_BAD_REQUEST, problem), received)
                return received
            if isinstance(received, RequestRefused):
                return received
            request = received.request
            if isinstance(received, HeadReceived):
                refusal = self._accept(request, peer_ip)
            else:
                refusal = self._check(request, received.chunk)
                if refusal is None:
                    if request.started:
                        return received
                    if not self._bodies.make_room(request, len(received.chunk)):
                        refusal = _NO_ROOM
                    # A body that was displaced to make room is not kept.
                    elif sequencer.uploading is request and self._keep(request, received.chunk, owner):
                        sequencer.queue_early(request)
                        return request
            if refusal is not None:
                return RequestRefused(refusal, request)

    def _wait(self) -> None:
        """Begin a wait for a further read, or pause reading where requests, or a large body, wait for their turn."""
        sequencer, transport = self._sequencer, self._transport
        receiving = sequencer.receiving
        if receiving is not self._receiving:
            self._receiving = receiving
            if receiving is not None:
                transport.waits_since = self._listener.clock()
        upload = sequencer.uploading
        if sequencer.holds_bytes:
            transport.pause_reading()
        elif upload is None or upload.started or upload.received_bytes <= SMALL_BODY_BYTES:
            return
        elif upload.queued or sequencer.serving is not None:
            transport.pause_reading()

    def _accept(self, request: Request, peer_ip: str) -> Refusal | None:
        """Check a request by its head, and send `100 Continue` only if it passes; returns why it is refused."""
        limits = self._limits
        if request.length is not None and request.length > limits.max_body_bytes:
            return self._too_large()
        accepted = self._acceptance.accept_head(request, peer_ip)
        if isinstance(accepted, Refusal):
            return accepted
        request.accepted_head = accepted
        request.needs_whole = self._acceptance.reads_whole(request)
        if request.needs_whole and (request.length or 0) > limits.json_bytes:
            return self._json_too_large()
        expected = None if request.plain or request.http_1_0 else request.header(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                return Refusal(_BAD_REQUEST, "the only supported expectation is 100-continue")
            due = self._sequencer.expect_continue()
            if due:
                self._transport.write(due)
        return None

    def _check(self, request: Request, chunk: bytes) -> Refusal | None:
        """Count a part of a body, and check it; returns why the request is refused.

        The end of a body with a known length is checked with its last part, since an engine that has received the last
        part regards the body as complete.
        """
        received_bytes = request.received_bytes = request.received_bytes + len(chunk)
        if received_bytes > self._limits.max_body_bytes:
            return self._too_large()
        if not request.started:
            return self._json_too_large() if request.needs_whole and received_bytes > self._limits.json_bytes else None
        check = request.body_check
        if check is None:
            return None
        problem = check.feed(chunk) or (check.finish() if received_bytes == request.length else "")
        return Refusal(_BAD_REQUEST, problem) if problem else None

    def _keep(self, request: Request, chunk: bytes, owner: BodyOwner) -> bool:
        """Keep a part of a body; returns whether the request may be handled now, before its body is complete.

        It may once the application can handle it, or no more may be kept. The application is asked each time the body
        has doubled, so that the total cost of its search stays linear.
        """
        before = len(request.body)
        self._bodies.keep(request, chunk, owner)
        if request.queued or request.needs_whole:
            return False
        size = len(request.body)
        if size >= self._limits.kept_body_bytes:
            return True
        return before.bit_length() != size.bit_length() and self._acceptance.can_start_early(request)

    def is_idle_too_long(self, now: float) -> bool:
        """Whether the client has sent nothing for too long, while no request waited or was handled. `now` in s."""
        sequencer, listener = self._sequencer, self._listener
        if not sequencer.is_idle or (sequencer.receiving is not None and self._transport.reading):
            return False
        idle_s = now - max(self._transport.waits_since, listener.draining_since)
        return idle_s > (self._limits.idle_linger_s if listener.draining else self._limits.idle_timeout_s)

    def overdue(self, now: float, peer_ip: str) -> RequestRefused | None:
        """Return the refusal of a request that arrives too slowly, or is not permitted any more. `now` in s."""
        sequencer, request = self._sequencer, self._sequencer.receiving
        if request is None or not self._transport.reading:
            return None
        refusal: Refusal | None = None
        waited_s = now - self._transport.waits_since
        if sequencer.in_head:
            if sequencer.serving is None and waited_s > self._limits.head_timeout_s:
                refusal = Refusal(_TIMEOUT, "the request head did not arrive in time")
        elif waited_s > self._allowed_s(request, waited_s):
            refusal = Refusal(_TIMEOUT, "the request body did not arrive in time")
        elif not request.started:
            refusal = self._acceptance.refuse_receiving(request, peer_ip)
        return None if refusal is None else RequestRefused(refusal, request)

    def _allowed_s(self, request: Request, waited_s: float) -> float:
        """Return the time (s) that the body may have taken until now. A fast start does not permit a stall later."""
        limits = self._limits
        allowed_s, seen_bytes = request.pace or (limits.body_timeout_s, 0)
        earned_s = (request.received_bytes - seen_bytes) / limits.min_body_bytes_per_s
        allowed_s = max(allowed_s, min(allowed_s + earned_s, waited_s + limits.body_timeout_s))
        if not request.started:
            # A request that has not started has no other deadline.
            allowed_s = min(allowed_s, limits.request_timeout_s)
        request.pace = allowed_s, request.received_bytes
        return allowed_s

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
        if request.accepted_head is not None:
            self._bodies.release(request)
            self._acceptance.release_head(request.accepted_head)

    def _too_large(self) -> Refusal:
        return Refusal(_TOO_LARGE, f"the body is larger than {self._limits.max_body_bytes} bytes")

    def _json_too_large(self) -> Refusal:
        limit = self._limits.json_bytes
        return Refusal(_TOO_LARGE, f"the JSON body is larger than {limit} bytes (see max_json_bytes)")
