"""Parsing does not depend on how bytes are split, and any bytes are parsed or rejected."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.http.response_head import ResponseHead
from penstock.routing.reasons import Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.limits import Limits
from regional_agent.http.listener import Listener
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.proxy.error_responses import refusal_response
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError
from tests.support.examples import examples

BOUNDS = Limits(max_body_bytes=1 << 20, kept_body_bytes=1 << 18, max_head_bytes=4096, max_pipelined=4)


class Wire(asyncio.Transport):
    """The transport of a connection: records writes and calls."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = bytearray()
        self.closed = self.ended = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.ended, "nothing after the end"
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


class Lenient:
    """The part of an application that accepts every head and body, and refuses as the agent does."""

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead:
        return AcceptedHead("t")

    def release_head(self, head: AcceptedHead) -> None:
        pass

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        return None

    def reads_whole(self, request: Request) -> bool:
        return False

    def can_start_early(self, request: Request) -> bool:
        return False

    def refuse(self, refusal: Refusal, request: Request | None) -> tuple[int, list[bytes], bytes]:
        return refusal_response(refusal, Random(1), request_id="1")


class Repeater(Lenient):
    """An application whose response contains the parsed request."""

    def handle(self, request: Request, connection: ClientConnection) -> None:
        said = repr((request.method, request.target, sorted(request.headers), bytes(request.body)))
        connection.respond(200, [b"x-request-id: 1\r\n"], said.encode())


def answered(pieces: list[bytes]) -> tuple[bytes, bool]:
    """Return the bytes written for a client's reads, and whether the connection ends."""

    async def body() -> tuple[bytes, bool]:
        listener = Listener(Repeater(), BOUNDS)
        connection, wire = listener.connection(), Wire()
        connection.connection_made(wire)
        for piece in pieces:
            if wire.closed or not piece:
                continue
            connection.data_received(piece)
            listener.state.batcher.flush()
        ends = wire.closed or wire.ended
        connection.connection_lost(None)
        assert (listener.connections, listener.state.bodies.bytes_kept) == (set(), 0)
        return bytes(wire.written), ends

    return asyncio.run(body())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


TOKENS = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True).map(str.encode)
VALUES = st.from_regex(r"([!-~][ -~]{0,20}[!-~])?", fullmatch=True).map(str.encode)
RESERVED = (
    b"content-",
    b"transfer-",
    b"host",
    b"connection",
    b"upgrade",
    b"expect",
    b"proxy-connection",
    b"x-",
    b"auth",
)
HEADERS = st.lists(
    st.tuples(TOKENS, VALUES).filter(lambda header: not header[0].lower().startswith(RESERVED)), max_size=4
)
BODIES = st.binary(max_size=300)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One valid request, framed in either way."""
    path = draw(st.sampled_from([b"/", b"/v1/x?model=m", b"http://a/v1/y", b"/" + b"p" * 200]))
    headers = b"".join(b"%b: %b\r\n" % header for header in draw(HEADERS))
    body = draw(BODIES)
    if draw(st.booleans()):
        return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body)
    parts = cut(body, draw(st.lists(st.integers(0, 300), max_size=3)))
    chunks = b"".join(
        b"%x%b\r\n%b\r\n" % (len(part), draw(st.sampled_from([b"", b";a=b"])), part) for part in parts if part
    )
    return b"PUT %b HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\n%b0\r\nT: 1\r\n\r\n" % (
        path,
        headers,
        chunks,
    )


PLACES = st.lists(st.integers(0, 5000), max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3), PLACES)
def test_requests_do_not_depend_on_how_bytes_are_split(said: list[bytes], places: list[int]) -> None:
    whole = b"".join(said)
    expected = answered([whole])
    assert expected[0].count(b"HTTP/1.1 200 OK") >= len(said)
    assert answered(cut(whole, places)) == expected
    assert answered([whole[at : at + 1] for at in range(len(whole))]) == expected


FRAGMENTS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/x HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b" folded\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"hello",
        b"X: " + b"y" * 5000 + b"\r\n",
        b"a" * 70_000,
    ]
)
NOISE = st.lists(FRAGMENTS | st.binary(max_size=20), max_size=12).map(b"".join)


@settings(max_examples=examples(300), deadline=None)
@given(NOISE, PLACES)
def test_no_bytes_crash_or_leak_and_every_answer_is_http(noise: bytes, places: list[int]) -> None:
    whole, _ = answered([noise])
    in_pieces, _ = answered(cut(noise, places))
    for written in (whole, in_pieces):
        assert all_http(written)
    assert statuses(whole) == statuses(in_pieces)


def statuses(written: bytes) -> list[bytes]:
    return [line.split()[1] for line in written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def all_http(written: bytes) -> bool:
    """Whether `written` consists of complete responses."""
    left = written
    while left:
        head, found, left = left.partition(b"\r\n\r\n")
        if not found or not head.startswith(b"HTTP/1.1 "):
            return False
        lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        left = left[lengths[0] :] if lengths else left
    return True


class RecordingSink:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.chunks: list[bytes] = []
        """Forwarded bytes, with their framing."""
        self.connection: UpstreamConnection | None = None
        """Connection that gives its chunks to the relay; None for no relay."""
        self.over: list[str] = []

    def on_read(self, head: ResponseHead | None, parts: list[bytes], ended: bool) -> None:
        assert not self.over
        if head is not None:
            assert not self.status
            self.status = head.status
            if self.connection is not None:
                self.connection.relay = self
        assert self.status
        self.body += b"".join(parts)
        if ended:
            self.over.append("end")

    def forward(self, chunk: bytes, begin: int) -> bool:
        """Record a chunk that is not parsed."""
        self.chunks.append(chunk)
        self.body += chunk[begin:-2]
        return True

    def on_broken(self, error: UpstreamError) -> None:
        self.over.append("broken")

    def on_writable(self, writable: bool) -> None: ...


def read_response(pieces: list[bytes]) -> tuple[int, bytes, list[str], bool]:
    """The callbacks for pieces of an engine's bytes, and whether the connection is kept."""

    async def body() -> tuple[int, bytes, list[str], bool]:
        pool, address, sink, wire = UpstreamPool(), Address("127.0.0.1", 1), RecordingSink(), Wire()
        connection = pool.connection(address)
        connection.connection_made(wire)
        sink.connection = connection
        connection.send(sink, b"")
        for piece in pieces:
            if piece and not wire.closed:
                connection.data_received(piece)
        kept = pool.take(address) is not None
        connection.connection_lost(None)
        return sink.status, sink.body, sink.over, kept

    return asyncio.run(body())


ENGINE_NOISE = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n",
            b"Content-Length: 5\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"hello",
            b"X: " + b"y" * 70_000 + b"\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=10,
).map(b"".join)


@settings(max_examples=examples(300), deadline=None)
@given(ENGINE_NOISE)
def test_any_bytes_of_an_engine_end_the_response_once(noise: bytes) -> None:
    _, _, over, kept = read_response([noise])
    assert len(over) == 1
    assert not (kept and over == ["broken"]), "a connection that spoke garbage is not used again"


@settings(max_examples=examples(150), deadline=None)
@given(BODIES, st.booleans(), PLACES)
def test_responses_do_not_depend_on_how_bytes_are_split(body: bytes, chunked: bool, places: list[int]) -> None:
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cut(body, places) if part)
    framed = b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"
    whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + (
        framed if chunked else b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    for pieces in ([whole], cut(whole, places), [whole[at : at + 1] for at in range(len(whole))]):
        assert read_response(pieces) == (200, body, ["end"], True)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


LIKE_CHUNKS = st.lists(
    st.sampled_from(
        [
            b"5\r\nhello\r\n",
            b"1b\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1 2\r\n",
            b"1B\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1 2\r\n",
            b"05\r\nhello\r\n",
            b"5;a=b\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"5\nhello\r\n",
            b"5\r\nhello\n\n",
            b"6\r\nhello\r\n",
            b"4\r\nhello\r\n",
            b"a\r\n",
            b"1",
            b"2\r\n\r\n\r\n",
            b"5\r\nhello\r\n5\r\nhello\r\n",
            b"hello\r\n",
            b"\r\n",
            b"0\r\n\r\n",
            b"0\r\nX: y\r\n\r\n",
        ]
    ),
    max_size=8,
)


@settings(max_examples=examples(400), deadline=None)
@given(LIKE_CHUNKS)
@example([b"5\r\nhello\r\n", b"1", b"5\r\nhello\r\n"])
@example([b"5\r\nhello\r\n1", b"5\r\nhello\r\n"])
@example([b"5\r\nhello\r\n", b"no chunk of 21 byte\r\n", b"0\r\n\r\n"])
def test_a_chunk_that_is_not_parsed_changes_nothing(reads: list[bytes]) -> None:
    # The last field differs: bytes after the end close the connection only if they arrive in a read of their own.
    assert read_response([CHUNKED, *reads])[:3] == read_response([CHUNKED + b"".join(reads)])[:3]


def test_a_read_of_exactly_one_chunk_keeps_its_framing() -> None:
    async def body() -> None:
        sink = RecordingSink()
        connection = UpstreamPool().connection(Address("127.0.0.1", 1))
        connection.connection_made(Wire())
        sink.connection = connection
        connection.send(sink, b"")
        for read in (CHUNKED, b"5\r\nfirst\r\n", b"6\r\nsecond\r\n", b"3\r\nth", b"e\r\n", b"5\r\nthird\r\n", b"2"):
            connection.data_received(read)
        for read in (b"\r\nno\r\n", b"0\r\n\r\n"):
            connection.data_received(read)
        assert sink.chunks == [b"6\r\nsecond\r\n", b"5\r\nthird\r\n"]
        assert (sink.body, sink.over) == (b"firstsecondthethirdno", ["end"])

    asyncio.run(body())


@pytest.mark.parametrize(
    ("begins", "continues"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 4096),
        (b"HTTP/1.1 103 Early Hints\r\nX: ", b"y" * 4096),
        (CHUNKED + b"5\r\nhello\r\n0\r\nX: ", b"y" * 4096),
        (CHUNKED + b"5\r\nhello\r\n0\r\n", b"X: y\r\n" * 700),
        (CHUNKED + b"5\r\nhello\r\n5;a=", b"y" * 4096),
    ],
)
def test_heads_and_chunk_headers_are_bounded(begins: bytes, continues: bytes) -> None:
    async def taken_bytes() -> int:
        sink, wire = RecordingSink(), Wire()
        connection = UpstreamPool().connection(Address("127.0.0.1", 1))
        connection.connection_made(wire)
        connection.send(sink, b"")
        connection.data_received(begins)
        taken = 0
        while not wire.closed and taken < 1 << 20:
            connection.data_received(continues)
            taken += len(continues)
        assert sink.over == ["broken"]
        return taken

    assert asyncio.run(taken_bytes()) < 80_000


def test_a_connection_with_bytes_after_its_response_is_not_reused() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    for more in (answer, b"HTTP/1.1 2", b"H", b"garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"):
        assert read_response([answer + more]) == (200, b"ok", ["end"], False)


def test_the_parser_is_strict() -> None:
    """`request_head` relies on the strict mode of the parser."""
    for lenient in (
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\nA: b\n\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    ):
        parser = httptools.HttpRequestParser(object())
        try:
            parser.feed_data(lenient)
        except httptools.HttpParserError:
            continue
        raise AssertionError(lenient)


def test_whitespace_after_a_header_s_value_is_not_part_of_it() -> None:
    request = (
        b"POST / HTTP/1.1\r\nhost: a \r\nauthorization: Bearer k\t \r\ntransfer-encoding: chunked \r\n\r\n0\r\n\r\n"
    )
    assert b"(b'authorization', b'Bearer k')" in answered([request])[0]
    response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked \r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert read_response([response])[:3] == (200, b"{}", ["end"])
