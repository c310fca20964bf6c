"""The response to the client of an exchange: framing, header lines of the agent, one write per read, and counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from penstock.accounts.refusal_statuses import STATUS
from penstock.answers.answer_parser import AnswerParser
from penstock.continuation.next_events import NextEvents
from penstock.http.chunk_framing import MAX_BODY_BYTES, SIZE_LINES
from penstock.http.header_rules import (
    IDEMPOTENCY_KEY_HEADER,
    NO_BODY_STATUSES,
    REFUSAL_HEADER,
    REPLAYED_HEADER,
    Header,
    response_lines_to_client,
)
from penstock.http.link_headers import without_server_address
from penstock.http.response_head import ResponseHead
from penstock.meters.stream_gaps import StreamGaps
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import KEEP_ALIVE_1_0, STATUS_LINES, Request, response_head
from regional_agent.proxy.error_formats import error_body, stream_error
from regional_agent.proxy.error_responses import error_format_of
from regional_agent.proxy.rate_limit_headers import rate_limit_lines
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_sink import ChunkReceiver
from regional_agent.websocket.websocket_offer import selected_line

MAX_CACHED_ENDPOINTS: Final = 4096

_NOT_REPLAYED: Final = REPLAYED_HEADER + b": false\r\n"

_ANTHROPIC: Final = ErrorFormat.ANTHROPIC
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class ResponseHeaders:
    """Writes the request's ID, the region and endpoint that serve it, a substituted model, and the rest of budgets."""

    def __init__(self, region: str) -> None:
        """Write the headers of an agent of `region`."""
        self._region = region
        self._by_endpoint: dict[str, bytes] = {}

    def lines(self, context: RequestContext, endpoint: str) -> bytes:
        """The header lines of one response; `endpoint` is empty for a peer's response, which has its own lines."""
        request_id = context.request_id.encode()
        lines = b"x-request-id: " + request_id + b"\r\n"
        route = context.request.route
        if route is not None and route.errors is _ANTHROPIC:
            lines += b"request-id: " + request_id + b"\r\n"
        if endpoint:
            lines += self._by_endpoint.get(endpoint) or self._endpoint_lines(endpoint)
        if IDEMPOTENCY_KEY_HEADER in context.request.by_name:
            lines += _NOT_REPLAYED
        if context.model != context.asked_for:
            lines += b"x-penstock-model: %b\r\n" % context.model.encode()
        if context.reservation is not None:
            lines += rate_limit_lines(context.reservation.budgets, error_format_of(context.request))
        return lines

    def _endpoint_lines(self, endpoint: str) -> bytes:
        if len(self._by_endpoint) >= MAX_CACHED_ENDPOINTS:
            self._by_endpoint.clear()
        lines = self._by_endpoint[endpoint] = b"x-penstock-region: %b\r\nx-penstock-endpoint: %b\r\n" % (
            self._region.encode(),
            endpoint.encode(),
        )
        return lines


def upgrade_response_head(request: Request, headers: list[Header], lines: bytes, attempt: Attempt) -> bytes:
    """The head of the 101 response that accepts an upgrade.

    Args:
        request: the client's request.
        headers: the headers of the engine's or peer's response.
        lines: header lines of this agent.
        attempt: the attempt that the response is for.
    """
    upgrade = b"connection: upgrade\r\nupgrade: %b\r\n" % request.upgrade
    headers = without_server_address(headers, attempt.address.host, attempt.base_path)
    passed = response_lines_to_client(headers, dict(headers), from_peer=attempt.from_peer)
    return response_head(101, [upgrade, *passed, selected_line(request, headers), lines])


class ClientResponse(ChunkReceiver):
    """One response to one client. `flush` writes the data that was added since the last call.

    Engines send each token as one chunk in one TCP segment. A read that is exactly one chunk, in the framing of this
    proxy, is written to the client unchanged.
    """

    def __init__(self, client: ClientConnection, request: Request) -> None:
        """Respond to `request`, which `client` has sent."""
        # The first attributes are those of `forward`, which share few cache lines: there may be thousands of streams.
        self._expected: NextEvents | None = None
        """Takes the chunks that are forwarded; None if all are."""
        self._parser: AnswerParser | None = None
        """Reads the chunks that are forwarded; None if they are not read."""
        self._batcher = client.listener.batcher
        self._connected: asyncio.Transport | None = None
        """The transport of a client that receives forwarded chunks; None before `relay_from`."""
        self.gaps: StreamGaps | None = None
        """Measures the response if it is a sampled stream; set before `start`."""
        self.sent_bytes = 0
        self.has_news = False
        """Whether data has arrived since the owner last reset this flag."""
        self._last = b""
        """The last write, by which the end of a failed stream is separated from an incomplete event."""
        self.client = client
        self._request = request
        self._unsent: list[bytes] = []
        self._chunked = False
        self._head: ResponseHead | None = None
        """The head of the response; None if no error can be appended to the response."""
        self.keep_alive = request.may_keep_alive and not client.listener.draining
        """Whether the client connection can be used for another request."""
        self.status = 0

    def start(self, head: ResponseHead, lines: bytes, *, keeps_length: bool = True) -> None:
        """Add the head.

        Args:
            lines: the header lines except for those of the framing.
            keeps_length: whether the body has the length that the head states, if it states one.
        """
        self.status, request = head.status, self._request
        length, framing = (head.by_name.get(b"content-length") if keeps_length else None), b""
        if length is not None:
            if head.status != 204:
                framing = b"content-length: " + length + b"\r\n"
        elif head.status not in NO_BODY_STATUSES and request.method != b"HEAD":
            if request.http_1_0:
                self.keep_alive, self._head = False, head
            else:
                self._chunked, framing = True, b"transfer-encoding: chunked\r\n"
                self._head = head
        if request.http_1_0:
            # Also with a length, which few clients of HTTP/1.0 check.
            self.client.transport.end_at_close()
        connection = b"connection: close\r\n"
        if self.keep_alive:
            connection = KEEP_ALIVE_1_0 if request.http_1_0 else b""
        self._unsent += [STATUS_LINES[head.status], lines, framing, connection, b"\r\n"]

    def relay_from(
        self, upstream: UpstreamConnection, parser: AnswerParser | None, expected: NextEvents | None = None
    ) -> None:
        """Forward chunks of `upstream`, which sends chunks, without this object, if the client receives chunks.

        Args:
            parser: reads the chunks; None if they are not read.
            expected: takes the chunks that are forwarded so; None if all are.
        """
        connected = self.client.transport.connected
        if self._chunked and connected is not None:
            self._connected, self._parser, self._expected = connected, parser, expected
            upstream.relay = self

    def forward(self, chunk: bytes, begin: int) -> bool:
        """Send a chunk, framing included, whose body begins at `begin`, to the client; False if it is not taken."""
        parser, expected = self._parser, self._expected
        if expected is not None:
            sent = expected.take(chunk, begin)
            if not sent:
                return False
            if sent is not expected.last:
                chunk = b"%b%b\r\n" % (SIZE_LINES[len(sent)], sent)
        elif parser is not None and not parser.skim_chunk(chunk, begin):
            body = chunk[begin:-2]
            forwarded = parser.feed(body)
            if forwarded is not body:
                if not forwarded:
                    return True
                chunk = b"%x\r\n%b\r\n" % (len(forwarded), forwarded)
        self.has_news = True
        self.sent_bytes += len(chunk)
        self._last = chunk
        if self.gaps is not None:
            self.gaps.wrote(time.monotonic())
        if self._connected is not None:
            self._batcher.write(self._connected, chunk)
        return True

    @property
    def has_length(self) -> bool:
        """Whether the length of the body was stated, so that the body cannot end before."""
        return self._head is None

    def add(self, chunk: bytes) -> None:
        """Add a part of the body; an empty part adds nothing."""
        if not chunk:
            return
        if self._chunked:
            size_bytes = len(chunk)
            line = SIZE_LINES[size_bytes] if size_bytes <= MAX_BODY_BYTES else b"%x\r\n" % size_bytes
            self._unsent += [line, chunk, b"\r\n"]
        else:
            self._unsent.append(chunk)

    def end(self, parts: Sequence[bytes] = ()) -> None:
        """Add the last parts and the end of the body, and write."""
        for part in parts:
            self.add(part)
        self.gaps = None
        if self._chunked:
            self._unsent.append(b"0\r\n\r\n")
        self.flush()
        if self.keep_alive and self._request.http_1_0:
            self.client.transport.end_in_order()

    def end_with_error(self, failure: Refusal, error_format: ErrorFormat, request_id: str, *, to_peer: bool) -> bool:
        """End an event stream or a stream of JSON lines with an error; False if no error can be appended.

        A peer agent also receives the reason as a trailer, since it would treat the result as a complete response.
        """
        head = self._head
        if head is None or b"content-encoding" in head.by_name:
            return False
        self.flush()
        reason = failure.reason
        body = error_body(error_format, STATUS[reason], reason.value, failure.detail, request_id=request_id)
        error = stream_error(error_format, head.by_name.get(b"content-type", b""), body, self._last)
        if error is None:
            return False
        if self._chunked:
            trailer = b"%b: %b\r\n" % (REFUSAL_HEADER, reason.encode()) if to_peer else b""
            self._unsent.append(b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(error), error, trailer))
        else:
            self._unsent.append(error)
        self.cut()
        self.flush()
        return True

    def cut(self) -> None:
        """Mark the response as incomplete: the close of the connection, if that is its end, becomes a reset."""
        self.client.transport.is_cut = True

    def flush(self) -> bool:
        """Write the added data in one write; returns whether there was any data."""
        unsent = self._unsent
        if not unsent:
            return False
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        if self.gaps is not None:
            self.gaps.wrote(time.monotonic())
        self.has_news = True
        self.sent_bytes += len(data)
        self._last = data
        connected = self.client.transport.connected
        if connected is not None:
            self._batcher.write(connected, data)
        return True
