"""Receives any bytes from a client connection.

The first byte is the length of the pieces that arrive. Property: however the bytes are cut, the same requests are
received and answered; every response is whole; the connection leaves nothing behind; and the first request has the
method, headers and body that a second parser (h11) reads from the same bytes, where that accepts them, apart from the
headers that Connection names, among which is none that the agent reads.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import h11

from penstock.http.header_rules import Header
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.http.messages import Request, request_lines_to_upstream
from tests.property.test_proxy_properties import Lenient, Wire, statuses

WORDS = (
    *(
        b"\r\n",
        b"\r\n\r\n",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"GET ",
        b"POST ",
        b"HEAD ",
        b"CONNECT ",
        b"OPTIONS * ",
    ),
    *(b"host: a\r\n", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n"),
    *(
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: websocket\r\n",
        b"connection: te, x-a, content-type\r\n",
        b"upgrade: h2c\r\n",
        b"te: trailers\r\n",
    ),
    *(
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b";a=b",
        b"http://a",
        b"[::1]",
        b"%00",
        b"\x00",
        b"\t",
        b"\n",
        b"\r",
        b"x_y: z\r\n",
    ),
)

LIMITS = Limits(max_body_bytes=1 << 20, kept_body_bytes=1 << 18, max_head_bytes=4096, max_pipelined=4)


READ = frozenset({b"authorization", b"content-type", b"x-api-key", b"x-forwarded-for", b"x-model", b"host"})
"""Some of the headers that the agent reads."""


class Received(NamedTuple):
    """A request as the application received it."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: bytes


class Application(Lenient):
    """Records requests and answers them at once."""

    def __init__(self) -> None:
        self.received: list[Received] = []

    def handle(self, request: Request, connection: ClientConnection) -> None:
        """Records and answers."""
        self.received.append(Received(request.method, request.target, list(request.headers), bytes(request.body)))
        lines = request_lines_to_upstream(request, connection.listener.to_upstream, b"http", request.authority)
        assert lines == b"" or lines.endswith(b"\r\n")
        assert b"\r\n\r\n" not in lines
        assert all(b":" in line for line in lines.split(b"\r\n")[:-1])
        connection.respond(200, [b"x-request-id: 1\r\n"], b"answer")


_LOOP = asyncio.new_event_loop()


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    step, data = (data[0] if data else 0) + 1, data[1:]
    received, written = _LOOP.run_until_complete(_received([data]))
    in_pieces = [data[at : at + step] for at in range(0, len(data), step)]
    received_cut, written_cut = _LOOP.run_until_complete(_received(in_pieces))
    assert received_cut == received
    assert statuses(written_cut) == statuses(written)
    for responses in (written, written_cut):
        _check_framing(responses, [request.method for request in received])
    other = _read_by_h11(data)
    if received and other is not None:
        own = received[0]
        assert (own.method, own.body) == (other.method, other.body)
        assert own.target == other.target or not other.target.startswith(b"/")
        named = _named_by_connection(other.headers)
        assert _comparable(own.headers) == [header for header in _comparable(other.headers) if header[0] not in named]
        assert named.isdisjoint(READ)


async def _received(pieces: list[bytes]) -> tuple[list[Received], bytes]:
    application, wire = Application(), Wire()
    listener = Listener(application, LIMITS)
    connection = listener.connection()
    connection.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        listener.state.batcher.flush()
    connection.connection_lost(None)
    assert (listener.connections, listener.state.bodies.bytes_kept) == (set(), 0)
    return application.received, bytes(wire.written)


def _check_framing(written: bytes, methods: list[bytes]) -> None:
    """Checks that `written` is whole responses only, to requests of these methods and perhaps one that was refused."""
    number = 0
    while written:
        head, end, written = written.partition(b"\r\n\r\n")
        assert end
        assert head.startswith(b"HTTP/1.1 ")
        if head.startswith(b"HTTP/1.1 100"):
            continue
        method = methods[number] if number < len(methods) else None
        number += 1
        (length,) = (int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        if method != b"HEAD" and not (method is None and not written):
            assert len(written) >= length
            written = written[length:]
    assert len(methods) <= number <= len(methods) + 1


def _named_by_connection(headers: list[Header]) -> set[bytes]:
    tokens = b",".join(value for name, value in headers if name == b"connection").split(b",")
    return {token.strip().lower() for token in tokens} - {b"connection", b"te", b"keep-alive", b"trailer"}


def _comparable(headers: list[Header]) -> list[Header]:
    """Headers without an upgrade offer, which the agent may ignore, and without what h11 writes in lower case."""
    return [header for header in headers if header[0] not in (b"upgrade", b"http2-settings", b"transfer-encoding")]


def _read_by_h11(data: bytes) -> Received | None:
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(data)
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.EndOfMessage):
        return None
    return Received(request.method, request.target, list(request.headers), body)
