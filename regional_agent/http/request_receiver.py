"""Limits of the requests of a client: the time for heads and bodies, and the size and memory of bodies.

A body is collected before its request is handled. A large body that is not JSON is an exception: its request is
handled as soon as the part that has arrived names its model, and the handler receives further parts as they arrive.
"""

from __future__ import annotations

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import Request
from regional_agent.http.request_sequence import (
    CLOSING,
    CONTINUE,
    REQUESTS,
    SMALL_BODY_BYTES,
    Application,
    RequestSequence,
)


class RequestReceiver(RequestSequence):
    """Receives the requests of one connection within the limits. Subclasses parse them."""

    __slots__ = ("_in_head",)

    def __init__(self, listener: ListenerState, application: Application) -> None:
        super().__init__(listener, application)
        self._in_head = True
        """Whether the head of the current request is incomplete."""

    # timeouts

    def check_timeouts(self, now: float) -> None:
        """Close a connection that sends or reads too slowly, or is idle for too long."""
        limits = self._limits
        if self._write_stalled_since is not None and now - self._write_stalled_since > limits.write_stall_timeout_s:
            self.abort()
        elif self._mode is CLOSING:
            if self._linger_until is not None and now > self._linger_until:
                assert self._transport is not None
                self.abort() if self._transport.is_closing() else self._close()
        elif self._current is not None and self._reading:
            self._check_receiving(self._current, now)
        elif self._serving is None and not self._waiting:
            self._check_idle(now)

    def _check_receiving(self, request: Request, now: float) -> None:
        waited_s = now - self._since
        if self._in_head:
            if self._serving is None and waited_s > self._limits.head_timeout_s:
                self._refuse(Reason.REQUEST_TIMEOUT, "the request head did not arrive in time")
            return
        if waited_s > self._allowed_s(request, waited_s):
            self._refuse(Reason.REQUEST_TIMEOUT, "the request body did not arrive in time")
        elif not request.started:
            refusal = self._application.refuse_receiving(request, self.peer_ip)
            if refusal is not None:
                self._end_with(refusal)

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

    def _check_idle(self, now: float) -> None:
        idle_s = now - max(self._since, self.listener.draining_since)
        if idle_s > (self._limits.idle_linger_s if self.listener.draining else self._limits.idle_timeout_s):
            self._start_closing(linger=False)

    def _expect_body(self, request: Request) -> None:
        """Check a request with a body by its head, and send `100 Continue` only if it passes."""
        limit = self._limits.max_body_bytes
        if request.length is not None and request.length > limit:
            self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {limit} bytes")
            return
        expected = None if request.plain else request.header(b"expect")
        if expected is None and request.length is not None and request.length <= SMALL_BODY_BYTES:
            return
        accepted = self._application.accept_head(request)
        if isinstance(accepted, Refusal):
            self._end_with(accepted)
            return
        request.accepted_head = accepted
        request.needs_whole = self._application.reads_whole(request)
        if request.needs_whole and (request.length or 0) > self._limits.json_bytes:
            self._refuse_large_json()
            return
        if expected is not None and not request.http_1_0:
            if expected.lower() != b"100-continue":
                self._refuse(Reason.BAD_REQUEST, "the only supported expectation is 100-continue")
            elif self._serving is None:
                self.write(CONTINUE)
            else:
                self._continue_due = True

    def _receive_large_body(self, request: Request, chunk: bytes) -> None:
        """Keep a part of a body above SMALL_BODY_BYTES, or pass it to the handler of its request."""
        if request.received_bytes > self._limits.max_body_bytes:
            self._refuse(Reason.BODY_TOO_LARGE, f"the body is larger than {self._limits.max_body_bytes} bytes")
        elif request.started:
            problem = _problem_of(request, chunk)
            if problem:
                self._refuse(Reason.BAD_REQUEST, problem)
            elif self._serving is request and self._handler is not None:
                self._handler.on_request_body(chunk)
        elif request.needs_whole and request.received_bytes > self._limits.json_bytes:
            self._refuse_large_json()
        elif not self.listener.bodies.make_room(request, len(chunk)):
            self._refuse(Reason.SATURATED, "too many large bodies at once")
        elif self._current is request and self._mode is REQUESTS:
            before = len(request.body)
            self.listener.bodies.keep(request, chunk, self)
            self._start_early(request, before)

    def _refuse_large_json(self) -> None:
        limit = self._limits.json_bytes
        self._refuse(Reason.BODY_TOO_LARGE, f"the JSON body is larger than {limit} bytes (see max_json_bytes)")

    def _start_early(self, request: Request, before_bytes: int) -> None:
        """Handle a request before its body is complete, once the application can do so or no more may be kept.

        The application is asked each time the body has doubled, so that the total cost of its search stays linear.
        """
        size = len(request.body)
        full = size >= self._limits.kept_body_bytes
        doubled = before_bytes.bit_length() != size.bit_length()
        may_start = not request.queued and not request.needs_whole
        if may_start and (full or (doubled and self._application.can_start_early(request))):
            request.queued, self._continue_due = True, False
            self._waiting.append(request)
            if self._serving is None:
                self._serve_next()
        if self._mode is REQUESTS and self._serving is not request and (self._serving is not None or request.queued):
            self.pause_reading()


def _problem_of(request: Request, chunk: bytes) -> str:
    """Return why a further part of a body must not be forwarded, or an empty string.

    The end of a body with a known length is checked before its last part is forwarded, since an engine that has
    received the last part regards the body as complete.
    """
    check = request.body_check
    if check is None:
        return ""
    return check.feed(chunk) or (check.finish() if request.received_bytes == request.length else "")
