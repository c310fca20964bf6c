"""Repeated heads: a connection that caches parsed heads gives the same result as the parser."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http.head_template import MAX_MISSES
from penstock.http.response_head import ResponseHead
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.http.messages import Request, request_lines_to_upstream
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError
from tests.property.test_proxy_properties import Repeater, Wire
from tests.support.examples import examples

BOUNDS = Limits(max_head_bytes=400, max_headers=8)


class StatingApplication(Repeater):
    """An application whose response contains the parsed request and the fields to forward."""

    def handle(self, request: Request, connection: ClientConnection) -> None:
        names = connection.listener.to_upstream
        passing = request_lines_to_upstream(request, names, connection.scheme, request.authority)
        assert request.upstream_lines in (b"", passing)
        fields = (name for name in dir(request) if not name.startswith("_") and name not in ("body", "upstream_lines"))
        said = [value for value in (getattr(request, name) for name in fields) if not callable(value)]
        connection.respond(200, [b"x-request-id: 1\r\n"], repr((*said, bytes(request.body))).encode())


class Unwanted:
    """A parser that must not be called."""

    def feed_data(self, data: bytes) -> None:
        raise AssertionError(data)


async def reported(connection: ClientConnection, read: bytes) -> bytes:
    """The bytes written for one read."""
    wire: Any = connection.transport.connected
    wire.written.clear()
    connection.data_received(read)
    connection.listener.batcher.flush()
    return bytes(wire.written) + (b" and ends" if wire.closed or wire.ended else b"")


def connected() -> ClientConnection:
    connection = Listener(StatingApplication(), BOUNDS, location_header=b"x-country").connection()
    connection.connection_made(Wire())
    return connection


GOOD = st.sampled_from(
    [
        (b"Content-Length", b": ", b"5"),
        (b"content-length", b":", b"5"),
        (b"X-Request-Id", b": ", b"one"),
        (b"traceparent", b": ", b"00-1-1-01"),
        (b"Authorization", b": ", b"Bearer key"),
        (b"X-Forwarded-For", b": ", b"192.0.2.1, 192.0.2.2"),
        (b"x-forwarded-for", b":  ", b"192.0.2.3"),
        (b"Date", b": ", b"Sun, 1 Nov"),
        (b"X-Country", b": ", b"DE"),
        (b"accept", b": ", b"*/*"),
        (b"Connection", b": ", b"x-request-id"),
    ]
)
VALUES = st.sampled_from(
    [
        b"0",
        b"5",
        b"05",
        b"+5",
        b"70000",
        b"99999999999999999999",
        b"a",
        b"a, b",
        b" a ",
        b"",
        b"a\r\nx: y",
        b"a\nx: y",
        b"a\rb",
        b"\x00",
        b"\xff",
        b"close",
        b"x-request-id",
        b"v" * 300,
        b"5\r\n\r\nhello",
    ]
)
LINES = st.lists(GOOD, max_size=5, unique_by=lambda line: line[0].lower() if line[0] != b"x-forwarded-for" else line)
CHANGES = st.lists(st.tuples(st.integers(0, 4), VALUES), max_size=2)
BODIES = st.sampled_from(
    [b"hello", b"hello", b"", b"hell", b"hello, and more", b"\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"]
)


@st.composite
def variations(draw: st.DrawFn, first_line: bytes) -> list[bytes]:
    """Messages that begin with nearly the same head."""
    lines = draw(LINES)
    said = []
    for number in range(draw(st.integers(2, 5))):
        changed = list(lines)
        for place, value in draw(CHANGES) if number else ():
            if place < len(changed):
                changed[place] = (*changed[place][:2], value)
        said.append(b"%b%b\r\n%b" % (first_line, b"".join(b"%b%b%b\r\n" % line for line in changed), draw(BODIES)))
    return said


@settings(max_examples=examples(400), deadline=None)
@given(variations(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n"))
def test_a_request_parses_the_same_after_any_other(said: list[bytes]) -> None:
    async def body() -> None:
        connection = connected()
        for read in said:
            again = await reported(connection, read)
            assert again == await reported(connected(), read)
            if again.endswith(b" and ends") or connection.sequencer.receiving is not None:
                connection.connection_lost(None)
                connection = connected()

    asyncio.run(body())


def test_a_repeated_request_head_is_not_parsed_again() -> None:
    head = b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\nx-request-id: %b\r\naccept: */*\r\n\r\n%b"

    async def body() -> None:
        connection = connected()
        assert (await reported(connection, head % (5, b"one", b"hello"))).startswith(b"HTTP/1.1 200")
        messages: Any = connection.sequencer.parser._messages
        parser, unwanted = messages._http, Unwanted()
        messages._http = unwanted
        for id_, text in ((b"one", b"hello"), (b"two", b"hello you"), (b"3", b"")):
            read = head % (len(text), id_, text)
            expected = await reported(connected(), read)
            assert id_ in expected
            assert await reported(connection, read) == expected
            for cut in range(read.index(b"\r\n\r\n") + 4, len(read)):
                parts = [await reported(connection, part) for part in (read[:cut], read[cut:])]
                assert parts == [b"", expected]
        messages._http = parser
        other_accept = head.replace(b"*/*", b"text/html") % (5, b"four", b"hello")
        assert b"text/html" in await reported(connection, other_accept)
        assert (await reported(connection, (head % (1, b"five", b"x")) * 3)).count(b"HTTP/1.1 200") == 3
        for number in range(MAX_MISSES + 1):
            assert b"agent-%d" % number in await reported(
                connection, head.replace(b"*/*", b"agent-%d" % number) % (0, b"a", b"")
            )
        messages._http = unwanted
        try:
            await reported(connection, head % (0, b"a", b""))
        except AssertionError:
            return
        raise AssertionError("it goes on comparing where every head is another")

    asyncio.run(body())


def test_a_body_after_a_cached_head_has_a_timeout() -> None:
    read = b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"

    async def body() -> None:
        connection = connected()
        assert (await reported(connection, read)).startswith(b"HTTP/1.1 200")
        assert await reported(connection, read[:-1]) == b""
        now = connection.listener.clock()
        connection.check_timeouts(now + BOUNDS.body_timeout_s - 1.0)
        wire: Any = connection.transport.connected
        assert wire.written == b""
        connection.check_timeouts(now + BOUNDS.body_timeout_s + 1.0)
        connection.listener.batcher.flush()
        assert wire.written.startswith(b"HTTP/1.1 408")

    asyncio.run(body())


class RecordingSink:
    """A sink that remembers everything."""

    def __init__(self) -> None:
        self.parts: list[object] = []

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        if head is not None:
            onward = tuple(head.lines_to_client("a", b"", from_peer=from_peer) for from_peer in (False, True))
            self.parts.append((head.status, head.headers, head.by_name, onward))
        self.parts += parts
        if ended:
            self.parts.append("end")

    def on_broken(self, error: UpstreamError) -> None:
        self.parts.append("broken")

    def on_writable(self, writable: bool) -> None: ...


class UnwantedRelay:
    """A relay of an earlier response."""

    def forward(self, chunk: bytes, begin: int) -> bool:
        raise AssertionError(chunk)


def read_response(connection: UpstreamConnection, pool: UpstreamPool, read: bytes) -> tuple[list[object], bool]:
    """The callbacks for one read, and whether the connection is kept."""
    sink = RecordingSink()
    connection.send(sink, b"")
    connection.data_received(read)
    return sink.parts, pool.take(connection.address) is connection


@settings(max_examples=examples(400), deadline=None)
@given(variations(b"HTTP/1.1 200 OK\r\ndate: now\r\n") | variations(b"HTTP/1.1 204 No Content\r\nupgrade: x\r\n"))
def test_a_response_parses_the_same_after_any_other(said: list[bytes]) -> None:
    async def body() -> None:
        def opened() -> tuple[UpstreamConnection, UpstreamPool]:
            pool = UpstreamPool()
            connection = pool.connection(Address("127.0.0.1", 1))
            connection.connection_made(Wire())
            return connection, pool

        known = opened()
        for read in said:
            again = read_response(*known, read)
            (fresh, keeps) = read_response(*opened(), read)
            assert again[0] == fresh
            # The parser skips empty lines after a response; here they are unexpected bytes.
            assert keeps or not again[1]
            if not again[1]:
                known = opened()

    asyncio.run(body())


def test_a_repeated_response_head_is_not_parsed_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\ndate: %b\r\ncontent-length: %d\r\n\r\n%b"

    async def body() -> None:
        pool = UpstreamPool()
        connection = pool.connection(Address("127.0.0.1", 1))
        connection.connection_made(Wire())
        assert read_response(connection, pool, answer % (b"now", 2, b"ok"))[1]
        connection._parser = Unwanted()
        for date, text in ((b"now", b"ok"), (b"Sun, 1 Nov", b"okay"), (b"then", b"")):
            (head, *rest), kept = read_response(connection, pool, answer % (date, len(text), text))
            assert repr(date) in repr(head)
            assert (rest, kept) == ([text, "end"] if text else ["end"], True)
        assert read_response(connection, pool, answer % (b"now", 2, b"okay")) == (
            read_response(connection, pool, answer % (b"now", 2, b"ok"))[0],
            False,
        ), "what nobody asked for ends the connection"

    asyncio.run(body())


def test_a_relay_receives_chunks_of_one_response_however_its_head_was_read() -> None:
    counted = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    chunked = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", b"2\r\ncd\r\n", b"0\r\n\r\n"]

    async def body() -> None:
        connection = UpstreamPool().connection(Address("127.0.0.1", 1))
        connection.connection_made(Wire())
        relay = UnwantedRelay()
        for _ in range(2):
            connection.send(RecordingSink(), b"")
            connection.relay = relay
            connection.data_received(counted)
        sink = RecordingSink()
        connection.send(sink, b"")
        for read in chunked:
            connection.data_received(read)
        assert sink.parts[1:] == [b"ab", b"cd", "end"]

    asyncio.run(body())
