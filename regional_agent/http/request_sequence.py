"""The requests of one client connection, handled one at a time, strictly in order; parsed requests wait."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Any, Final, Protocol

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_transport import ClientTransport
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import KEEP_ALIVE_1_0, AcceptedHead, Request, response_head, with_common_lines
from regional_agent.http.request_handler import Handler, TunnelReceiver

SMALL_BODY_BYTES: Final = 64 * 1024
"""Maximum size of a small body. A request with a larger body may be handled before the body is complete, and its body
counts towards `Limits.max_kept_bytes`."""

LINGER_S: Final = 2.0
"""Time (s) without data after which a connection is closed whose client is still sending when the final response is
written. The data is dropped. Closing at once would reset the connection, and the client might not read the response."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


_DISPLACED: Final = "the memory for large bodies is full, and this tenant holds the largest part of it"


class Application(Protocol):
    """Responds to requests: at once by `connection.respond`, or by a handler that it returns."""

    def handle(self, request: Request, connection: Any) -> Handler | None:
        """Handle a request. Its body may be incomplete if it is large."""

    def accept_head(self, request: Request) -> AcceptedHead | Refusal:
        """Check a request with a large body by its head, before the body is read."""

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

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Return status, header lines and body of a refusal before handling; `request` is None if none was parsed."""


class Mode(Enum):
    """How bytes from the client are interpreted. A connection only moves forward in this list."""

    REQUESTS = auto()
    UPGRADING = auto()
    """An upgrade was requested and is undecided: bytes are buffered."""
    TUNNEL = auto()
    CLOSING = auto()
    """Bytes are dropped: the response that ends the connection has been, or will be, written."""


REQUESTS, UPGRADING, TUNNEL, CLOSING = Mode
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""


class RequestSequence(ClientTransport):
    """Gives requests to an application one at a time and writes its responses."""

    __slots__ = (
        "_application",
        "_buffered",
        "_continue_due",
        "_current",
        "_final_refusal",
        "_handler",
        "_mode",
        "_receiver",
        "_serve_loop_active",
        "_serving",
        "_waiting",
    )

    def __init__(self, listener: ListenerState, application: Application) -> None:
        super().__init__(listener)
        self._application = application
        self._mode = REQUESTS
        self._current: Request | None = None
        """The request that is being received."""
        self._serving: Request | None = None
        """The request that is being handled."""
        self._waiting: deque[Request] = deque()
        self._handler: Handler | None = None
        self._receiver: TunnelReceiver | None = None
        self._buffered: list[bytes] = []
        """Bytes received while an upgrade is undecided."""
        self._final_refusal: tuple[Refusal, Request | None] | None = None
        """The refusal that ends the connection, and the request that it responds to."""
        self._continue_due = False
        """Whether the current request expects 100 Continue and has to wait for earlier responses."""
        self._serve_loop_active = False

    def respond(self, status: int, headers: list[bytes], body: bytes) -> None:
        """Write a complete response to the current request, with an x-request-id and its `cors_lines`."""
        request = self._serving
        lines = [*with_common_lines(headers, request), b"content-length: %d\r\n" % len(body)]
        keep_alive = request is not None and self.may_keep_alive(request)
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        elif request is not None and request.http_1_0:
            lines.append(KEEP_ALIVE_1_0)
        head_only = request is not None and request.method == b"HEAD"
        self.write(response_head(status, lines) + (b"" if head_only else body))
        self.finished(keep_alive=keep_alive)

    def may_keep_alive(self, request: Request) -> bool:
        """Whether the connection can be used for another request after the response to `request`."""
        return request.keep_alive and request.whole and not request.upgrade and not self.listener.draining

    def finished(self, *, keep_alive: bool) -> None:
        """The current response is complete: continue with the next request, or close.

        If the response had no `connection: close`, because a drain began later, the client may be sending its next
        request, so the connection stays open.
        """
        request, self._serving, self._handler = self._serving, None, None
        self._since = self.listener.clock()
        if request is not None and request.accepted_head is not None:
            self._release(request, request.accepted_head)
        if request is None or not keep_alive or not request.keep_alive:
            self._start_closing(linger=request is not None and not request.whole)
        elif self._waiting or self._final_refusal is not None or self._continue_due or not self._reading:
            self._serve_next()

    def hand_over(self, request: Request, handler: Handler | None) -> None:
        """Replace the handler of a request, unless its response is complete."""
        if self._is_serving(request):
            self._handler = handler

    def tunnel_to(self, receiver: TunnelReceiver) -> None:
        """Give all further bytes from the client to `receiver`."""
        self._mode, self._receiver = TUNNEL, receiver
        buffered, self._buffered = self._buffered, []
        for data in buffered:
            receiver.on_client_bytes(data)
        self.resume_reading()

    def on_disconnect(self, *, fully: bool) -> None:
        """Abort the connection. A half-close counts as a disconnect, except in a tunnel."""
        if fully or self._mode is not TUNNEL:
            self.abort()

    def displace(self, request: Request) -> None:
        """Drop the kept body of a request, because another tenant needs the memory. A request that has been sent
        continues, but cannot be sent again; any other request is refused.
        """
        handler = self._handler if self._serving is request else None
        if handler is not None and handler.drop_body():
            return
        refusal = Refusal(Reason.SATURATED, _DISPLACED, retry_after_s=MIN_RETRY_S)
        if request is self._current:
            self._end_with(refusal)
        elif handler is not None:
            handler.on_request_refused(refusal)
        elif request in self._waiting:
            self._end_before(request, refusal)

    def refuse_upload(self, reason: Reason) -> None:
        """End the connection with a refusal if the body of a request that no handler has received is arriving."""
        if self._current is not None and not self._current.started and self._mode is REQUESTS:
            self._refuse(reason, "the agent stops before the body of the request has arrived")

    def pause_writing(self) -> None:
        self._write_stalled_since = self.listener.clock()
        if self._handler is not None:
            self._handler.on_client_writable(False)

    def resume_writing(self) -> None:
        self._write_stalled_since = None
        if self._handler is not None:
            self._handler.on_client_writable(True)
        elif self._serving is None:
            self._serve_next()

    def _serve_next(self) -> None:
        """Handle waiting requests until a response is not complete at once. A loop, to avoid recursion.

        No request is started while the write buffer is above its high-water mark, because responses would accumulate
        in memory.
        """
        if self._serve_loop_active:
            return
        self._serve_loop_active = True
        handle = self._application.handle
        while (
            self._serving is None
            and self._waiting
            and self._write_stalled_since is None
            and self._transport is not None
        ):
            request = self._waiting.popleft()
            self._serving = request
            request.started = True
            try:
                handler = handle(request, self)
            except Exception:
                # The caller may be an upstream connection, which the event loop would close instead of this one.
                self.abort()
                raise
            if self._is_serving(request):
                self._handler = handler
            else:
                # The response is complete. It is sent now, so that a full write buffer stops the loop.
                self.listener.batcher.flush()
        self._serve_loop_active = False
        if self._serving is None and not self._waiting:
            if self._final_refusal is not None:
                self._send_final_refusal(*self._final_refusal)
            elif self._continue_due:
                self._continue_due = False
                self.write(CONTINUE)
        if not self._reading and self._mode is REQUESTS and not self._too_many_waiting:
            self._resume_unless_uploading()

    def _is_serving(self, request: Request) -> bool:
        """Whether `request` is being handled. A method, since mypy assumes that calls do not change `_serving`."""
        return self._serving is request

    @property
    def _too_many_waiting(self) -> bool:
        """Whether reading stops because of the number or size of waiting requests."""
        waiting = self._waiting
        return len(waiting) >= self._limits.max_pipelined or (
            len(waiting) > 1 and sum(len(request.body) for request in waiting) > SMALL_BODY_BYTES
        )

    def _resume_unless_uploading(self) -> None:
        """Resume reading, unless the handler of an incomplete body controls it."""
        if self._serving is None or self._serving.whole:
            self.resume_reading()

    def _release(self, request: Request, head: AcceptedHead) -> None:
        """Release memory and quota of a request with a large body, held since its head. A second call does nothing."""
        self.listener.bodies.release(request)
        self._application.release_head(head)

    def _refuse(self, reason: Reason, detail: str) -> None:
        self._end_with(Refusal(reason, detail, retry_after_s=MIN_RETRY_S if reason in _RETRYABLE else None))

    def _end_with(self, refusal: Refusal) -> None:
        """End the connection with a refusal, in order. A request that is being handled is refused by its handler."""
        self._mode = CLOSING
        current, self._current = self._current, None
        if current is not None and current.accepted_head is not None:
            self._release(current, current.accepted_head)
        if current is not None and current.started:
            if self._serving is current and self._handler is not None:
                self._handler.on_request_refused(refusal)
            else:
                self.abort()
            return
        if current is not None and current.queued:
            self._waiting.remove(current)
        self._final_refusal = refusal, current
        if self._serving is None:
            self._serve_next()

    def _end_before(self, request: Request, refusal: Refusal) -> None:
        """Refuse a complete request that waits, and end the connection with the refusal; later requests are dropped."""
        self._mode = CLOSING
        dropped = [] if self._current is None else [self._current]
        self._current = None
        while not dropped or dropped[-1] is not request:
            dropped.append(self._waiting.pop())
        for each in dropped:
            if each.accepted_head is not None:
                self._release(each, each.accepted_head)
        self._final_refusal = refusal, request
        if self._serving is None:
            self._serve_next()

    def _send_final_refusal(self, refusal: Refusal, request: Request | None) -> None:
        self._final_refusal = None
        status, lines, body = self._application.refuse(refusal, request)
        lines = with_common_lines(lines, request)
        lines += [b"content-length: %d\r\n" % len(body), b"connection: close\r\n"]
        head_only = request is not None and request.method == b"HEAD"
        self.write(response_head(status, lines) + (b"" if head_only else body))
        self._start_closing(linger=True)

    def _start_closing(self, *, linger: bool) -> None:
        """Close after all data has been sent; with `linger`, read and drop what the client still sends first."""
        self._mode, self._continue_due = CLOSING, False
        for request in self._waiting:
            if request.accepted_head is not None:
                self._release(request, request.accepted_head)
        self._waiting.clear()
        if linger:
            self._linger(LINGER_S)
        else:
            self._close()


_RETRYABLE: Final = frozenset({Reason.SATURATED, Reason.SHUTTING_DOWN, Reason.TOO_MANY_CONNECTIONS})
