"""One client connection: gives the requests of a client to an application, one at a time, and writes its responses.

A connection consists of a transport (bytes, and the ways to close), a sequencer (the order of requests, without IO),
and an intake (the limits of what the client sends). After a request that is malformed or exceeds a limit, the
connection is closed, since the start of the next request is unknown.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

import structlog

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.body_limits import DISPLACED, HeadAcceptance, HeadPostponed
from regional_agent.http.client_transport import ClientTransport
from regional_agent.http.listener_state import ListenerState
from regional_agent.http.messages import Request, complete_response
from regional_agent.http.protocol.connection_state import TUNNEL, UPGRADING
from regional_agent.http.protocol.received import HeadReceived, PartReceived, Received, RequestRefused
from regional_agent.http.protocol.request_parser import RequestParser
from regional_agent.http.protocol.request_sequencer import RequestSequencer
from regional_agent.http.request_handler import Handler, TunnelReceiver
from regional_agent.http.request_intake import RequestIntake

_BAD_REQUEST: Final = Reason.BAD_REQUEST

log: Final = structlog.get_logger()


class Application(HeadAcceptance, Protocol):
    """Responds to requests: at once by `connection.respond`, or by a handler that it returns."""

    def handle(self, request: Request, connection: ClientConnection) -> Handler | None:
        """Handle a request. Its body may be incomplete if it is large."""

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        """Return status, header lines and body of a refusal before handling; `request` is None if none was parsed."""


class ConnectionRegistry(Protocol):
    """The listener, which counts its connections."""

    def on_connected(self, connection: ClientConnection) -> None:
        """Register a connection, or refuse it."""

    def on_closed(self, connection: ClientConnection) -> None:
        """Unregister a connection."""


class ClientConnection:
    """An `asyncio.Protocol`, without that base: mypyc does not compile classes with interpreted bases."""

    def __init__(self, listener: ListenerState, application: Application, registry: ConnectionRegistry) -> None:
        """Start without a transport of asyncio."""
        self.listener = listener
        self.peer_ip = ""
        self.requests = 0
        """Requests that the listener has not counted yet."""
        self.scheme = b"https" if listener.secure else b"http"
        self._application = application
        self._registry = registry
        self.transport = ClientTransport(listener)
        parser = RequestParser(listener.limits, listener.to_upstream, listener.location_header, self.scheme)
        self.sequencer = RequestSequencer(parser, listener.limits.max_pipelined)
        self._intake = RequestIntake(listener, self.sequencer, self.transport, application)
        self._handler: Handler | None = None
        """The handler of `RequestSequencer.serving`."""
        self._tunnel: TunnelReceiver | None = None
        self._serve_loop_active = False
        self._process_due = False
        """Whether bytes that wait in the sequencer will be processed in the next turn of the event loop."""
        self._head_wait: asyncio.Task[None] | None = None
        """Waits until a head can be checked; nothing is received meanwhile."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport.connect(cast(asyncio.Transport, transport))
        peer = transport.get_extra_info("peername")
        self.peer_ip = peer[0] if peer else ""
        self._registry.on_connected(self)

    def data_received(self, data: bytes) -> None:
        sequencer, state = self.sequencer, self.sequencer.state
        if state.receives_requests:
            self._process(data)
        elif state is TUNNEL:
            if self._tunnel is not None:
                self._tunnel.on_client_bytes(data)
        elif state is UPGRADING:
            sequencer.parser.receive(data)
            self.transport.pause_reading()
        else:
            self.transport.linger_on()

    def eof_received(self) -> bool | None:
        """Handle a half-close: a disconnect that `connection_lost` follows, except in a tunnel without TLS."""
        if self._tunnel is None or self.sequencer.state is not TUNNEL:
            return None
        self._tunnel.on_client_eof()
        return not self.listener.secure

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.disconnect()
        self._registry.on_closed(self)
        self._tunnel = None
        handler, self._handler = self._handler, None
        if self._head_wait is not None:
            self._head_wait.cancel()
        self._intake.end()
        if handler is not None:
            handler.on_client_gone()

    def pause_writing(self) -> None:
        self.transport.write_stalled_since = self.listener.clock()
        if self._handler is not None:
            self._handler.on_client_writable(False)

    def resume_writing(self) -> None:
        self.transport.write_stalled_since = None
        if self._handler is not None:
            self._handler.on_client_writable(True)
        elif self.sequencer.serving is None:
            self._serve()

    # requests

    def _process(self, data: bytes = b"") -> None:
        """Process what has been received, and then `data`, until more bytes are needed, or requests have to wait."""
        sequencer, parser, transport = self.sequencer, self.sequencer.parser, self.transport
        if data:
            parser.receive(data)
        if self._head_wait is not None:
            return
        while True:
            received: Received | None = None
            if sequencer.state.receives_requests and not (sequencer.waiting and sequencer.is_full):
                received = parser.next()
            if received is None:
                self._intake.wait()
                return
            if isinstance(received, Request):
                if sequencer.add(received, may_start=transport.write_stalled_since is None):
                    self._serve(received)
                elif sequencer.serving is received:
                    self._end_body(received)
                elif sequencer.serving is None:
                    self._serve()
                if parser.is_drained:
                    self._intake.receiving = None
                    return
            elif isinstance(received, RequestRefused):
                self.refuse(received.refusal, received.request)
            else:
                sequencer.add_part(received)
                self._process_part(received)
                if self._head_wait is not None:
                    return

    def _process_part(self, received: HeadReceived | PartReceived) -> None:
        """Process the head, or a part of the body, of a request with a large body."""
        checked = self._intake.check(received, self, self.peer_ip)
        if isinstance(checked, HeadPostponed):
            self.pause_reading()
            self._head_wait = asyncio.create_task(self._check_after(checked, received), name="check of a head")
        elif isinstance(checked, Refusal):
            self.refuse(checked, received.request)
        elif isinstance(checked, PartReceived):
            if self.sequencer.serving is checked.request and self._handler is not None:
                self._handler.on_request_body(checked.chunk)
        elif checked is not None and self.sequencer.serving is None:
            self._serve()

    def _end_body(self, request: Request) -> None:
        """Process the end of a body whose request has started."""
        problem = "" if request.body_check is None else request.body_check.finish()
        if problem:
            self.refuse(Refusal(_BAD_REQUEST, problem), request)
        elif self._handler is not None:
            self._handler.on_request_end()

    async def _check_after(self, postponed: HeadPostponed, head: HeadReceived | PartReceived) -> None:
        """Check a head again once that is possible, and continue with what has been received."""
        try:
            await postponed.wait()
            self._head_wait = None
            if self.sequencer.uploading is head.request:
                self._process_part(head)
            if self._head_wait is None:
                self._process_waiting()
        except Exception:
            log.exception("checking the head of a request failed")
            self.abort()

    def _process_waiting(self) -> None:
        self._process_due = False
        self.transport.resume_reading()
        self._process()

    def _serve(self, due: Request | RequestRefused | bytes | None = None) -> None:
        """Do what is due, `due` first, until a response is not complete at once. A loop, to avoid recursion.

        No request is started while the write buffer is above its high-water mark, because responses would accumulate
        in memory.
        """
        if self._serve_loop_active:
            return
        self._serve_loop_active = True
        sequencer, transport = self.sequencer, self.transport
        while transport.connected is not None and transport.write_stalled_since is None:
            if due is None:
                due = sequencer.next_turn()
                if due is None:
                    break
            if isinstance(due, Request):
                self.requests += 1
                try:
                    handler = self._application.handle(due, self)
                except Exception:
                    # The caller may be an upstream connection, which the event loop would close instead of this one.
                    transport.abort()
                    raise
                if sequencer.serving is due:
                    self._handler = handler
                    break
                # The response is complete. It is sent now, so that a full write buffer stops the loop.
                transport.flush()
            elif isinstance(due, RequestRefused):
                status, lines, body = self._application.refuse(due.refusal, due.request)
                transport.write(complete_response(status, lines, body, due.request, keep_alive=False))
                self._end(linger=True)
            else:
                transport.write(due)
            due = None
        self._serve_loop_active = False
        if not transport.reading and sequencer.state.receives_requests and not sequencer.is_full:
            serving = sequencer.serving
            if serving is None or serving.whole:  # else the handler of the incomplete body controls reading
                self.resume_reading()

    # the side of the application

    def respond(self, status: int, headers: list[bytes], body: bytes) -> None:
        """Write a complete response to the current request, with an x-request-id and its `cors_lines`."""
        request = self.sequencer.serving
        keep_alive = request is not None and request.may_keep_alive and not self.listener.draining
        self.transport.write(complete_response(status, headers, body, request, keep_alive=keep_alive))
        self.finished(keep_alive=keep_alive)

    def finished(self, *, keep_alive: bool) -> None:
        """The current response is complete: continue with the next request, or close.

        If the response had no `connection: close`, because a drain began later, the client may be sending its next
        request, so the connection stays open.
        """
        request, self._handler = self.sequencer.finish(), None
        self.transport.waits_since = self.listener.clock()
        if request is not None and request.accepted_head is not None:
            self._intake.release(request)
        if request is None or not keep_alive or not request.keep_alive:
            self._end(linger=request is not None and not request.whole)
        elif self.sequencer.has_turn or not self.transport.reading:
            self._serve()

    def hand_over(self, request: Request, handler: Handler | None) -> None:
        """Replace the handler of a request, unless its response is complete."""
        if self.sequencer.serving is request:
            self._handler = handler

    def tunnel_to(self, receiver: TunnelReceiver) -> None:
        """Give all further bytes from the client to `receiver`."""
        self.transport.half_closes, self._tunnel = True, receiver
        received = self.sequencer.upgrade()
        if received:
            receiver.on_client_bytes(received)
        self.transport.resume_reading()

    def resume_reading(self) -> None:
        """Continue after `pause_reading`, first with the bytes that wait in the sequencer.

        They are processed in the next turn of the event loop, as bytes that had not arrived would be: the caller may be
        `_process`, or a handler that is not in place yet.
        """
        if self._head_wait is not None:
            return
        if not self.sequencer.parser.has_more:
            self.transport.resume_reading()
        elif not self._process_due:
            self._process_due = True
            asyncio.get_running_loop().call_soon(self._process_waiting)

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def abort(self) -> None:
        self.transport.abort()

    @property
    def trusted(self) -> bool:
        """Whether the client is a trusted proxy, whose X-Forwarded headers are used."""
        return self.listener.trusts(self.peer_ip)

    # the side of the listener

    def check_timeouts(self, now: float) -> None:
        """Close a connection that sends or reads too slowly, or is idle for too long. `now` in s."""
        if self.transport.check_timeouts(now) or not self.sequencer.state.receives_requests:
            return
        refused = self._intake.overdue(now, self.peer_ip)
        if refused is not None:
            self.refuse(refused, self.sequencer.receiving)
        elif self._head_wait is None and self._intake.is_idle_too_long(now):
            self._end(linger=False)

    def displace(self, request: Request) -> None:
        """Drop the kept body of a request, because another tenant needs the memory. A request that has been sent
        continues, but cannot be sent again; any other request is refused.
        """
        handler = self._handler if self.sequencer.serving is request else None
        if handler is not None and handler.drop_body():
            return
        if self.sequencer.has(request):
            self.refuse(DISPLACED, request)
        elif handler is not None:
            handler.on_request_refused(DISPLACED)

    def refuse(self, refusal: Refusal, request: Request | None) -> None:
        """End the connection with a refusal, in order. A request that is being handled is refused by its handler.

        Args:
            request: the refused request, which is arriving or waits; None if the client has sent none.
        """
        self._intake.refuse(refusal, request)
        if request is None or not request.started:
            self._serve()
        elif self.sequencer.serving is request and self._handler is not None:
            self._handler.on_request_refused(refusal)
        else:
            self.transport.abort()

    def _end(self, *, linger: bool) -> None:
        """Close after all data has been sent; with `linger`, read and drop what the client still sends first."""
        self._intake.end()
        self.transport.linger() if linger else self.transport.close()
