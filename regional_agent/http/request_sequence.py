"""Requests of one connection in turn: strictly in order, later ones wait parsed, and a refusal may be the last word."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_transport import ClientWire
from regional_agent.http.messages import Request, response_head

if TYPE_CHECKING:
    from regional_agent.http.listener import Listener

SMALL_BODY_BYTES: Final = 64 * 1024
"""A body above this is looked at before it is whole, and counts towards `Limits.max_kept_bytes`."""

LINGER_S: Final = 2.0
"""After a refusal, what the client still sends is read and dropped for this long (s): closing at once would reset the
connection, and the client might never read why."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


STAYS: Final = b"connection: keep-alive\r\n"
"""Said to HTTP/1.0 clients alone: without it they take the connection's end for the answer's."""


class Handler(Protocol):
    """What is at work on a request and must hear how its client fares."""

    def on_client_gone(self) -> None: ...
    def on_client_writable(self, writable: bool) -> None: ...
    def on_request_body(self, chunk: bytes) -> None:
        """More of a body that was not whole when its request was handled."""

    def on_request_end(self) -> None:
        """The end of such a body."""

    def on_request_refused(self, refusal: Refusal) -> None:
        """Its end will not come: what came of it is bad, too much, or too slow."""


class Receiver(Protocol):
    """Who takes the bytes of a connection that has become a tunnel."""

    def on_client_bytes(self, data: bytes) -> None: ...
    def on_client_eof(self) -> None: ...


class Mode(Enum):
    """What bytes from the client are. A connection only goes down this list."""

    REQUESTS = auto()
    UPGRADING = auto()
    """An upgrade was asked for and is not answered yet: bytes wait."""
    TUNNEL = auto()
    DEAF = auto()
    """They are dropped: an answer that ends the connection has been, or will be, written."""


REQUESTS, UPGRADING, TUNNEL, DEAF = Mode
"""In Python 3.11, to read a member off its class is a function call."""


class ClientTurns(ClientWire):
    """Gives requests one at a time to an application and writes what it answers."""

    __slots__ = (
        "_ahead",
        "_current",
        "_handler",
        "_last_words",
        "_mode",
        "_owes_continue",
        "_pumping",
        "_receiver",
        "_serving",
        "_waiting",
    )

    def __init__(self, listener: Listener) -> None:
        """Nothing has come yet."""
        super().__init__(listener)
        self._mode = REQUESTS
        self._current: Request | None = None
        """The request that is being received."""
        self._serving: Request | None = None
        """The request that is being answered."""
        self._waiting: deque[Request] = deque()
        self._handler: Handler | None = None
        self._receiver: Receiver | None = None
        self._ahead: list[bytes] = []
        """What came while an upgrade was being decided."""
        self._last_words: tuple[Refusal, Request | None] | None = None
        """Why nothing more is answered, and what came last."""
        self._owes_continue = False
        self._pumping = False

    def respond(self, status: int, headers: list[bytes], body: bytes) -> None:
        """Answer the current request whole."""
        request = self._serving
        lines = [*headers, b"content-length: %d\r\n" % len(body)]
        keep_alive = (
            request is not None
            and request.keep_alive
            and request.whole
            and not request.upgrade
            and not self.listener.draining
        )
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        elif request is not None and request.http_1_0:
            lines.append(STAYS)
        head_only = request is not None and request.method == b"HEAD"
        self.write(response_head(status, lines) + (b"" if head_only else body))
        self.finished(keep_alive=keep_alive)

    def finished(self, *, keep_alive: bool) -> None:
        """The current request has been answered; go on with the next, or close.

        A client that was not told of a close (the drain began after the answer did) may be sending already.
        """
        request, self._serving, self._handler = self._serving, None, None
        self._since = self.listener.clock()
        if request is not None and request.received_bytes > SMALL_BODY_BYTES:
            self.listener.bodies.let_go(request)
        if request is None or not keep_alive or not request.keep_alive:
            self._go_deaf(linger=request is not None and not request.whole)
        elif self._waiting or self._last_words is not None or self._owes_continue or not self._reading:
            self._serve_next()

    def tunnel_to(self, receiver: Receiver) -> None:
        """From here on bytes are no requests any more: give them to `receiver` as they are."""
        self._mode, self._receiver = TUNNEL, receiver
        ahead, self._ahead = self._ahead, []
        for data in ahead:
            receiver.on_client_bytes(data)
        self.resume_reading()

    def departed(self, *, wholly: bool) -> None:
        """The client will send no more: it has left, as where its end is read, unless it still reads from a tunnel."""
        if wholly or self._mode is not TUNNEL:
            self.abort()

    def pause_writing(self) -> None:
        self._stuck_since = self.listener.clock()
        if self._handler is not None:
            self._handler.on_client_writable(False)

    def resume_writing(self) -> None:
        self._stuck_since = None
        if self._handler is not None:
            self._handler.on_client_writable(True)
        elif self._serving is None:
            self._serve_next()

    def _serve_next(self) -> None:
        """Answer waiting requests until one needs time. A loop, not recursion: answers may be immediate.

        None is begun while the client takes nothing of the answers before: they would pile up here.
        """
        if self._pumping:
            return
        self._pumping = True
        handle = self.listener.application.handle
        while self._serving is None and self._waiting and self._stuck_since is None and self._transport is not None:
            request = self._waiting.popleft()
            self._serving = request
            request.started = True
            handler = handle(request, self)
            if self._is_serving(request):
                self._handler = handler
            else:
                # Answered at once: whether the client takes it is known once it has been sent.
                self.listener.outgoing.flush()
        self._pumping = False
        if self._serving is None and not self._waiting:
            if self._last_words is not None:
                self._say_last_words(*self._last_words)
            elif self._owes_continue:
                self._owes_continue = False
                self.write(CONTINUE)
        if not self._reading and self._mode is REQUESTS and not self._far_ahead:
            self._resume_unless_uploading()

    def _is_serving(self, request: Request) -> bool:
        """Asked anew: what was known of it before a call may be over, which types do not tell."""
        return self._serving is request

    @property
    def _far_ahead(self) -> bool:
        """Whether so many requests wait that no more are read for now."""
        waiting = self._waiting
        return len(waiting) >= self._limits.max_pipelined or (
            len(waiting) > 1 and sum(len(request.body) for request in waiting) > SMALL_BODY_BYTES
        )

    def _resume_unless_uploading(self) -> None:
        """An upload that is being handled paces its reading itself."""
        if self._serving is None or self._serving.whole:
            self.resume_reading()

    def _refuse(self, reason: Reason, detail: str) -> None:
        self._end_with(Refusal(reason, detail, retry_after_s=1.0 if reason in _LATER else None))

    def _end_with(self, refusal: Refusal) -> None:
        """The last answer on this connection, in its turn; to a request that is being handled its handler answers."""
        self._mode = DEAF
        current, self._current = self._current, None
        if current is not None and current.received_bytes > SMALL_BODY_BYTES:
            self.listener.bodies.let_go(current)
        if current is not None and current.started:
            if self._serving is current and self._handler is not None:
                self._handler.on_request_refused(refusal)
            else:
                self.abort()
            return
        if current is not None and current.queued:
            self._waiting.remove(current)
        self._last_words = refusal, current
        if self._serving is None:
            self._serve_next()

    def _say_last_words(self, refusal: Refusal, request: Request | None) -> None:
        self._last_words = None
        status, lines, body = self.listener.application.refuse(refusal, request)
        lines += [b"content-length: %d\r\n" % len(body), b"connection: close\r\n"]
        self.write(response_head(status, lines) + body)
        self._go_deaf(linger=True)

    def _go_deaf(self, *, linger: bool) -> None:
        """Close once what was written has been sent; after that or LINGER_S, whichever comes first."""
        self._mode, self._owes_continue = DEAF, False
        for request in self._waiting:
            self.listener.bodies.let_go(request)
        self._waiting.clear()
        if linger:
            self._linger(LINGER_S)
        else:
            self._close()


_LATER: Final = frozenset({Reason.SATURATED, Reason.TOO_MANY_CONNECTIONS})
