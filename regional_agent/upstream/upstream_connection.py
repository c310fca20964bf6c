"""One connection to an engine or a peer agent: one request at a time, kept alive between requests.

It reports to a *sink*; everything happens in protocol callbacks, so a request that finds an idle connection costs no
task and no await. It goes back to the pool only after everything that was read with the end of an answer has been
looked at: bytes beyond it would be taken for the next request's answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import httptools

from regional_agent.http.head_cache import MAX_MISSES, raw_head
from regional_agent.proxy.error_responses import REFUSAL_HEADER
from regional_agent.upstream.chunk_relay import Relay
from regional_agent.upstream.response_head import AnswerHead, KnownAnswer, may_be_known
from regional_agent.upstream.upstream_sink import Broken, BytesSink, Sink, Stale, TooLarge, TunnelSink, UpstreamError
from regional_agent.upstream.whole_chunk import is_whole_chunk

if TYPE_CHECKING:
    from regional_agent.upstream.upstream_pool import Address, UpstreamPool

MAX_HEAD_BYTES: Final = 64 * 1024
"""Response heads (status line and headers) above this are garbage, and so is more than this without a body byte."""

MAX_HEADERS: Final = 256

MAX_INTERIM: Final = 16
"""Interim (1xx) responses before the real one; more are a fault."""

_VERSIONS: Final = frozenset({"1.1", "1.0"})


class UpstreamConnection:
    """One keep-alive HTTP/1.1 client connection, owned by at most one sink at a time; a protocol as `ClientWire` is."""

    __slots__ = (
        "_chunks",
        "_done",
        "_fed_bytes",
        "_headers",
        "_in_head",
        "_interim",
        "_keep_alive",
        "_known",
        "_left_bytes",
        "_misses",
        "_offered",
        "_parser",
        "_pool",
        "_read",
        "_relay",
        "_relays_now",
        "_request_whole",
        "_transport",
        "_tunnel",
        "_used",
        "address",
        "broke_off",
        "sink",
        "writable",
    )

    def __init__(self, pool: UpstreamPool, address: Address) -> None:
        """`pool` takes the connection back after each whole response."""
        self._pool = pool
        self.address = address
        self.sink: Sink | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._fed_bytes = 0
        self._interim = 0
        self._keep_alive = True
        self._done = False
        """The response is whole."""
        self._used = False
        """It has brought an answer before."""
        self._request_whole = True
        self._chunks = False
        """The body of the request at hand is sent in chunks."""
        self._offered: TunnelSink | None = None
        """Who offered to upgrade."""
        self._tunnel: BytesSink | None = None
        self.writable = True
        """Whether the other side keeps up with what is written."""
        self.broke_off = b""
        """Why the answer is not whole though it ended in good order, as a peer says in a trailer."""
        self._known: KnownAnswer | None = None
        """The head of an earlier answer, by which the next one's is taken if it is the same."""
        self._misses = 0
        """Heads in a row that were not."""
        self._read = b""
        """The read at hand, while a head that begins with it is being parsed."""
        self._left_bytes = 0
        """How much is still to come of the body of an answer that was taken so."""
        self._relay: Relay | None = None
        """Who takes reads of the answer that are one chunk each."""
        self._relays_now: Relay | None = None
        """The same, while the parser has seen a chunk's end and nothing since."""

    def send(self, sink: Sink, request: bytes) -> None:
        """Write one request and let `sink` hear of its response."""
        self.sink, self.broke_off = sink, b""
        self._in_head, self._fed_bytes, self._left_bytes, self._interim, self._done = True, 0, 0, 0, False
        assert self._transport is not None
        self._pool.outgoing.write(self._transport, request)

    def send_beginning(self, sink: Sink, head: bytes, body: bytes, *, chunked: bool) -> None:
        """Write a request of whose body `send_more` brings the rest."""
        self._request_whole, self._chunks = False, chunked
        self.send(sink, head)
        self.send_more(body)

    def send_more(self, body: bytes) -> None:
        """More of a body that was not whole."""
        if self._transport is not None and body:
            self._pool.outgoing.write(self._transport, b"%x\r\n%b\r\n" % (len(body), body) if self._chunks else body)

    def end_request(self) -> None:
        """The body is whole."""
        if self._chunks and self._transport is not None:
            self._pool.outgoing.write(self._transport, b"0\r\n\r\n")
        self._request_whole, self._chunks = True, False

    def relay_to(self, relay: Relay) -> None:
        """From here to the end of the answer give reads that are one chunk each to `relay`, not to the sink."""
        self._relay = relay

    def offer_upgrade(self, sink: TunnelSink, request: bytes) -> None:
        """Write a request that offers to speak something else from then on."""
        self._offered = sink
        self.send(sink, request)

    def write_bytes(self, data: bytes) -> None:
        """Bytes through the tunnel that this has become."""
        if self._transport is not None:
            self._pool.outgoing.write(self._transport, data)

    def close(self) -> None:
        """Close once what was written has been sent."""
        self.sink = self._tunnel = self._relays_now = None
        if self._transport is not None:
            self._pool.outgoing.flush()
            self._transport.close()

    def write_eof(self) -> None:
        """Nothing more will be written into the tunnel; where the transport cannot say so (TLS), close."""
        if self._transport is not None:
            self._pool.outgoing.flush()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def pause_reading(self) -> None:
        """Take no more bytes in: the receiver of the response is slow."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once and say nothing more: what runs on the other side is cancelled by it."""
        self.sink = self._tunnel = self._relays_now = None
        if self._transport is not None:
            self._transport.abort()

    def usable(self) -> bool:
        """Whether another request may be written."""
        return self._transport is not None and not self._transport.is_closing()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; garbage, and bytes that nobody asked for, end the connection."""
        if self._relays_now is not None and is_whole_chunk(data):
            self._relays_now.pass_on(data)
            return
        if self._tunnel is not None:
            self._tunnel.on_bytes(data)
            return
        sink = self.sink
        if sink is None:
            self.abort()
            return
        if self._left_bytes:
            self._take_counted(sink, data)
            return
        if self._in_head and self._fed_bytes == 0 and self._misses < MAX_MISSES and self._is_known(sink, data):
            return
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._done:
                self._keep_alive = False
                self._end()
            else:
                self._break(Broken(f"not an HTTP response: {error}"))
        else:
            if self._done:
                self._end()
            elif self._fed_bytes > MAX_HEAD_BYTES:
                self._break(TooLarge("the response's head or trailers are too large"))
            elif self.sink is sink:
                sink.on_pause()
                # The line of the next chunk may have begun. Where it is whole, `on_chunk_header` has been called.
                if not data.endswith(b"\r\n"):
                    self._relays_now = None
        self._read = b""

    def eof_received(self) -> bool | None:
        """The other side will send no more; `connection_lost` follows, but in a tunnel."""
        if self._tunnel is not None:
            self._tunnel.on_eof()
            return not self.address.tls
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the sink, unless the response ended just so (a body delimited by the close)."""
        self._transport = None
        self._pool.forget(self)
        sink, self.sink, self._tunnel = self.sink, None, None
        if sink is None:
            return
        if exc is None and self._close_delimits_body():
            sink.on_end()
        else:
            silent = self._in_head and self._fed_bytes == 0 and self._interim == 0
            kind = Stale if self._used and silent else Broken
            sink.on_broken(kind(f"closed before the response was whole{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        """The other side reads slowly."""
        self.writable = False
        if self.sink is not None:
            self.sink.on_writable(False)

    def resume_writing(self) -> None:
        """The other side has caught up."""
        self.writable = True
        if self.sink is not None:
            self.sink.on_writable(True)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A new response, or, after the one that was asked for, another that nobody did."""
        if self._done:
            self._keep_alive = False
            return
        self._headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line; those of trailers are dropped, but for what peers say in one."""
        if self._done:
            return
        name = name.lower()
        if self._in_head:
            self._headers.append((name, value))
        elif name == REFUSAL_HEADER:
            self.broke_off = value

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._done:
            return
        self._in_head = False
        read, self._read = self._read, b""
        self._keep_alive = self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._interim += 1
        elif self.sink is not None:
            if self._is_garbage(status):
                self._break(Broken("the response's head is not one"))
            else:
                head = AnswerHead(status, self._headers, dict(self._headers))
                if may_be_known(head) and (raw := raw_head(read, b"HTTP/")):
                    self._known = KnownAnswer(raw, head, keep_alive=self._keep_alive)
                self.sink.on_head(head)

    def on_body(self, chunk: bytes) -> None:
        """Some of the body, de-chunked."""
        self._fed_bytes = 0
        if self.sink is not None and not self._done:
            self.sink.on_body(chunk)

    def on_chunk_header(self) -> None:
        """The line that begins a chunk is whole."""
        self._relays_now = None

    def on_chunk_complete(self) -> None:
        """A chunk is whole."""
        self._relays_now = self._relay

    def on_message_complete(self) -> None:
        """The response is whole; interim (1xx) ones do not count."""
        self._relay = self._relays_now = None
        if 100 <= self._parser.get_status_code() < 200:
            self._in_head = True
            if self._interim > MAX_INTERIM:
                self._break(Broken(f"more than {MAX_INTERIM} interim responses"))
        else:
            self._done = True

    # heads that come again

    def _is_known(self, sink: Sink, data: bytes) -> bool:
        """Take an answer whose head is known, and as much of its body as is here; False leaves it to the parser.

        The parser has seen nothing of this answer, and is between two messages as before.
        """
        if self._known is not None:
            found = self._known.again(data)
            if found is not None:
                self._misses = 0
                head, body_at = found
                self._in_head, self._keep_alive, self._headers = False, self._known.keep_alive, head.headers
                self._left_bytes = head.length
                sink.on_head(head)
                if self.sink is sink:
                    self._take_counted(sink, data[body_at:])
                return True
            self._misses += 1
        self._read = data
        return False

    def _take_counted(self, sink: Sink, data: bytes) -> None:
        """More of a body that is as long as its head said."""
        length, left_bytes = len(data), self._left_bytes
        if length > left_bytes:
            # Bytes that nobody asked for, as `data_received` has it.
            self._keep_alive, data, length = False, data[:left_bytes], left_bytes
        self._left_bytes = left_bytes - length
        if data:
            sink.on_body(data)
        if self.sink is not sink:
            return
        if self._left_bytes:
            sink.on_pause()
        else:
            self._end()

    def _is_garbage(self, status: int) -> bool:
        """Heads that the parser lets pass and that others might read differently."""
        version = self._parser.get_http_version()
        if not 100 <= status <= 599 or len(self._headers) > MAX_HEADERS or version not in _VERSIONS:
            return True
        if b"transfer-encoding" not in dict(self._headers):
            return False
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        return codings != [b"chunked"] or version == "1.0"

    def _end(self) -> None:
        """Everything that came with the response's end has been read: free for another request, or closed."""
        sink, self.sink = self.sink, None
        self._done, self._used = False, True
        transport = self._transport
        reads_on = self._request_whole and self.writable
        if self._keep_alive and reads_on and transport is not None and not transport.is_closing():
            self._pool.give_back(self)
        elif transport is not None:
            # What the server has not read of an upload it will not read any more, and must not be waited for.
            transport.abort()
        if sink is not None:
            sink.on_end()

    def _after_upgrade(self, rest: bytes) -> None:
        sink, self._offered = self._offered, None
        if sink is None or self.sink is not sink or not self._parser.should_upgrade():
            self._break(Broken("the server switched protocols"))
            return
        self._tunnel = sink.on_upgraded(self._headers)
        if rest and self._tunnel is not None:
            self._tunnel.on_bytes(rest)

    def _close_delimits_body(self) -> bool:
        """A response without a length, and not chunked, is whole when the server closes."""
        names = {name for name, _ in self._headers}
        delimited = bool(names & {b"content-length", b"transfer-encoding"})
        return not self._in_head and not delimited and not self._keep_alive

    def _break(self, error: UpstreamError) -> None:
        sink = self.sink
        self.abort()
        if sink is not None:
            sink.on_broken(error)
