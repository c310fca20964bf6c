"""The order of requests and responses on one client connection, without IO.

Requests are handled one at a time, strictly in the order of their arrival; complete requests wait. `add` takes what the
parser returns, and `next_turn` returns what the connection does next: handle a request, or write. The states are in
`connection_state`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.http.protocol.connection_state import (
    END,
    HEAD,
    LAST_REQUEST,
    OFFER,
    PART,
    REFUSAL,
    REQUEST,
    REQUESTS,
    UPGRADE,
    Event,
    InvalidEvent,
    State,
)
from regional_agent.http.protocol.received import SMALL_BODY_BYTES, HeadReceived, PartReceived, RequestRefused
from regional_agent.http.protocol.request_parser import RequestParser

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestSequencer:
    """The requests of one connection."""

    def __init__(self, parser: RequestParser, max_waiting: int) -> None:
        """Start before the first request.

        Args:
            max_waiting: number of waiting requests from which on `is_full` is true.
        """
        self.parser = parser
        """Receives the bytes of the client, and returns what they contain."""
        self._max_waiting = max_waiting
        self.state: State = REQUESTS
        self.uploading: Request | None = None
        """The announced request whose body is arriving."""
        self.serving: Request | None = None
        """The request that is being handled."""
        self.waiting: deque[Request] = deque()
        """The requests whose turn has not come."""
        self._final_refusal: RequestRefused | None = None
        """The refusal that ends the connection after the waiting requests."""
        self._continue_due = False
        """Whether `uploading` expects 100 Continue and has to wait for earlier responses."""

    # what the client sends

    def add(self, request: Request, *, may_start: bool) -> bool:
        """Add a complete request; returns whether its turn has come, so that it is handled now.

        Args:
            may_start: whether a request may start now; otherwise `next_turn` returns it later.
        """
        may_keep_alive = request.keep_alive and not request.upgrade
        self._enter(OFFER if request.upgrade else REQUEST if may_keep_alive else LAST_REQUEST)
        self.uploading, self._continue_due = None, False
        request.whole, request.may_keep_alive = True, may_keep_alive
        if request.length is None:
            request.length = request.received_bytes
        if request.queued or request.started:
            return False
        if may_start and self.serving is None and not self.waiting:
            self.serving, request.started = request, True
            return True
        self.waiting.append(request)
        return False

    def add_part(self, received: HeadReceived | PartReceived) -> None:
        """Add the head, or a further part, of a request with a large body."""
        if isinstance(received, HeadReceived):
            self._enter(HEAD)
            self.uploading = received.request
        else:
            self._enter(PART)

    @property
    def receiving(self) -> Request | None:
        """The request of which a part has arrived, perhaps a part of its head."""
        if self.uploading is not None or not self.state.receives_requests or self.parser.has_more:
            return self.uploading
        return self.parser.request

    @property
    def is_full(self) -> bool:
        """Whether no further request should be taken, because of the number or size of `waiting`."""
        waiting = self.waiting
        return len(waiting) >= self._max_waiting or (
            len(waiting) > 1 and sum(len(request.body) for request in waiting) > SMALL_BODY_BYTES
        )

    # turns

    def next_turn(self) -> Request | RequestRefused | bytes | None:
        """Return what is due now: a request to handle, the last response, or bytes to write; None if nothing is."""
        if self.serving is not None:
            return None
        if self.waiting:
            request = self.serving = self.waiting.popleft()
            request.started = True
            return request
        if self._final_refusal is not None:
            final, self._final_refusal = self._final_refusal, None
            return final
        if self._continue_due:
            self._continue_due = False
            return CONTINUE
        return None

    def has(self, request: Request) -> bool:
        """Whether a request is arriving or waits for its turn."""
        return request is self.uploading or request in self.waiting

    @property
    def has_turn(self) -> bool:
        """Whether `next_turn` would return something once no request is being handled."""
        return bool(self.waiting) or self._final_refusal is not None or self._continue_due

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or is being handled."""
        return self.serving is None and not self.waiting

    def queue_early(self, request: Request) -> None:
        """Let a request wait for its turn before its body is complete. The client needs no 100 Continue any more."""
        request.queued, self._continue_due = True, False
        self.waiting.append(request)

    def expect_continue(self) -> bytes:
        """Return `100 Continue` for `uploading`, or nothing: then it is due after all earlier responses."""
        if self.serving is None:
            return CONTINUE
        self._continue_due = True
        return b""

    def finish(self) -> Request | None:
        """End the request that is being handled, and return it."""
        request, self.serving = self.serving, None
        return request

    # the end of requests

    def refuse(self, refusal: Refusal, request: Request | None) -> list[Request]:
        """Receive nothing more, and respond with a refusal in the turn of the refused request.

        Args:
            request: the refused request; its handler responds, if it has started. None if the bytes are no request.

        Returns:
            The requests that are dropped: the refused one, unless it has started, and all later ones.
        """
        dropped: list[Request] = []
        if request is not None and request in self.waiting:
            while not dropped or dropped[-1] is not request:
                dropped.append(self.waiting.pop())
        self._stop(REFUSAL, dropped)
        if request is None or not request.started:
            self._final_refusal = RequestRefused(refusal, request)
        return dropped

    def end(self) -> list[Request]:
        """Receive nothing more, and respond to nothing more; returns the requests that are dropped."""
        dropped = list(self.waiting)
        if self.serving is not None:
            dropped.append(self.serving)
        self._stop(END, dropped)
        self.waiting.clear()
        self.serving = self._final_refusal = None
        return dropped

    def upgrade(self) -> bytes:
        """Give all further bytes to the new protocol, and return those that have been received."""
        self._enter(UPGRADE)
        return self.parser.take_rest()

    def _stop(self, event: Event, dropped: list[Request]) -> None:
        self._enter(event)
        self.parser.take_rest()
        if self.uploading is not None and self.uploading not in dropped:
            dropped.append(self.uploading)
        self.uploading, self._continue_due = None, False

    def _enter(self, event: Event) -> None:
        """Change the state; raises InvalidEvent for an event that the table lacks in this state."""
        successor = self.state.successors.get(event)
        if successor is None:
            raise InvalidEvent(f"{event} in state {self.state}")
        self.state = successor
