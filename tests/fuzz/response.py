"""Relays any bytes of an engine to a client: response heads, chunks and event streams.

The first byte is the length of the pieces that arrive; the second selects whether the sender is a peer agent, and
whether it closes the connection afterwards. Property: however the bytes are cut, the client receives the same response;
it is at most one final response, whole unless the connection is closed; and it has the status and body that a second
parser (h11) reads from the engine's bytes, where that accepts them.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import h11

from penstock.answers.answer_format import AnswerFormats
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.http.answer_intake import intake_of
from penstock.http.response_head import ResponseHead
from penstock.policy.kinds.models import Cost
from penstock.pools.placement import WorkEstimate
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.http.messages import Request
from regional_agent.proxy.responses.client_response import ClientResponse
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError
from tests.property.test_proxy_properties import Lenient, Wire

WORDS = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 \r\n", b"304"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"content-type: text/event-stream\r\n", b"\r\n"),
    *(b"connection: close\r\n", b"upgrade: websocket\r\n", b"101 Switching Protocols", b"x-penstock-refusal: a\r\n"),
    *(b"data: {}\n\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n", b"\n", b"\r", b"\x00", b";a=b", b"identity", b"gzip"),
)

FORMATS = AnswerFormats()
ESTIMATE = WorkEstimate("t", "m", Cost(), CostInputs(0), Work(0.0, 1.0), streaming=True)

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


class Relayed(NamedTuple):
    """Bytes that the client received."""

    status: int
    body: bytes
    whole: bool


class Relay(Lenient):
    """Handles one request by forwarding the engine's response, as an exchange does."""

    def __init__(self, *, from_peer: bool) -> None:
        self.from_peer = from_peer
        self.upstream = UpstreamPool().connection(Address("127.0.0.1", 1))
        self.upstream.connection_made(Wire())
        self.ended = False
        self.failed = False

    # application

    def handle(self, request: Request, connection: ClientConnection) -> Any:
        """Sends the request to the engine."""
        self.request, self.client, self.response = request, connection, ClientResponse(connection, request)
        self.head: ResponseHead | None = None
        self.upstream.send(self, b"request")
        return self

    # handler

    def on_client_gone(self) -> None:
        """The connection is closed at the end of each run."""

    def on_client_writable(self, writable: bool) -> None:
        """The client always reads."""

    # sink

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        """Relays a read: the head is kept until the body begins."""
        assert not self.ended
        if head is not None:
            assert self.head is None
            self.head = head
        for part in parts:
            self._start(None if ended else self.upstream)
            self.response.add(part)
        if not ended:
            self.response.flush()
            return
        self._start(None)
        self.response.end()
        self.ended = True
        self.client.finished(keep_alive=self.response.keep_alive)

    def on_broken(self, error: UpstreamError) -> None:
        """Ends a response that has begun by an error event, or by closing the connection."""
        assert not self.ended
        self.ended = self.failed = True
        if self._started and self.response.end_with_error(
            Refusal(Reason.ENGINE_FAILED, "broken"), ErrorFormat.OPENAI, "", to_peer=False
        ):
            self.client.finished(keep_alive=False)
        else:
            self.client.abort()

    def on_writable(self, writable: bool) -> None:
        """The engine always reads."""

    _started = False

    def _start(self, upstream: UpstreamConnection | None) -> None:
        if not self._started:
            assert self.head is not None
            self._started = True
            lines = self.head.lines_to_client("engine", b"", from_peer=self.from_peer)
            intake = intake_of(FORMATS, None, self.head, ESTIMATE, hides_usage=False)
            self.response.start(self.head, lines)
            if upstream is not None and b"content-length" not in self.head.by_name:
                self.response.relay_from(upstream, intake.parser if intake else None)


_LOOP = asyncio.new_event_loop()


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    step, options, data = (data[0] if data else 0) + 1, data[1:2], data[2:]
    from_peer, closes = options in (b"p", b"P"), options in (b"c", b"P")
    whole = _LOOP.run_until_complete(_relayed([data], from_peer=from_peer, closes=closes))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    cut = _LOOP.run_until_complete(_relayed(pieces, from_peer=from_peer, closes=closes))
    assert (whole is not None and whole.whole) == (cut is not None and cut.whole)
    if whole is None or not whole.whole:
        return
    assert cut == whole
    other = _read_by_h11(data, closes=closes)
    assert other is None or other == whole


async def _relayed(pieces: list[bytes], *, from_peer: bool, closes: bool) -> Relayed | None:
    relay, wire = Relay(from_peer=from_peer), Wire()
    listener = Listener(relay, Limits())
    connection = listener.connection()
    connection.connection_made(wire)
    connection.data_received(REQUEST)
    for piece in pieces:
        if relay.ended:
            break
        relay.upstream.data_received(piece)
        listener.state.batcher.flush()
    if closes and not relay.ended:
        relay.upstream.connection_lost(None)
    listener.state.batcher.flush()
    ended = wire.closed or wire.ended
    connection.connection_lost(None)
    if relay.failed or not relay.ended:
        return None
    found = _read_by_h11(bytes(wire.written), closes=ended)
    assert found is not None, "the client cannot read the response"
    return found


def _read_by_h11(data: bytes, *, closes: bool) -> Relayed | None:
    """The response to a POST as h11 reads it; None where h11 rejects it, it is incomplete, or more follows."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(data)
        if closes:
            connection.receive_data(b"")
        while isinstance(response := connection.next_event(), h11.InformationalResponse):
            pass
        if not isinstance(response, h11.Response):
            return None
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.EndOfMessage) or connection.trailing_data[0]:
        return None
    return Relayed(response.status_code, body, whole=True)
