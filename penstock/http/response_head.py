"""The head of a response from an engine or a peer: its validation and framing, and a cache of the last head."""

from __future__ import annotations

from typing import Final

from penstock.health import preemption_notice
from penstock.health.engines import orca
from penstock.http.head_template import HeadTemplate
from penstock.http.header_rules import (
    ENGINE_FAILED_HEADER,
    NO_BODY_STATUSES,
    REFUSAL_HEADER,
    Header,
    response_lines_to_client,
)
from penstock.http.link_headers import LINK_HEADERS, without_server_address

VARYING_HEADERS: Final = frozenset({b"content-length", b"date", b"x-request-id"})
"""Headers whose values may differ between heads that the cache treats as the same head."""

MAX_HEADERS: Final = 256

EVENT_STREAM_TYPE: Final = b"text/event-stream"
NDJSON_TYPES: Final = frozenset({b"application/x-ndjson", b"application/ndjson", b"application/jsonl"})

_UNSUPPORTED: Final = frozenset({501, 505})
"""Statuses with which a server responds to the same request each time; SDKs would repeat it after any status from 500
on."""

_VERSIONS: Final = frozenset({"1.1", "1.0"})

_FRAMED: Final = frozenset({b"content-length", b"content-encoding"})

_OTHER_FRAMING: Final = frozenset({b"transfer-encoding", b"upgrade"})
"""With any of these headers, Content-Length alone does not determine the end of the response."""


class ResponseHead:
    """Status and headers, names in lower case. Immutable, because several responses may share one head."""

    def __init__(self, status: int, headers: list[Header], by_name: dict[bytes, bytes]) -> None:
        """Create a head from parsed values; `by_name` holds the last value of a repeated header."""
        self.status = status
        self.headers = headers
        self.by_name = by_name
        self.length = int(by_name.get(b"content-length") or 0)
        """Content-Length (bytes), 0 if absent."""
        self._lines_from_engine = self._lines_from_peer = b""

    def with_values(self, headers: list[Header], by_name: dict[bytes, bytes]) -> ResponseHead:
        """Return the head of a later response, which differs from this head only in values of VARYING_HEADERS."""
        later = ResponseHead(self.status, headers, by_name)
        if by_name.get(b"date") == self.by_name.get(b"date"):
            # Date is the only varying header that is forwarded to clients, so the cached lines are still valid.
            later._lines_from_engine, later._lines_from_peer = self._lines_from_engine, self._lines_from_peer
        return later

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is an uncompressed stream of server-sent events, to which an event can be appended."""
        return b"content-encoding" not in self.by_name and self._has_events()

    @property
    def is_appendable(self) -> bool:
        """Whether the body of another response can be appended to what has arrived of this one."""
        return self.status == 200 and _FRAMED.isdisjoint(self.by_name)

    @property
    def is_continuable(self) -> bool:
        """Whether the response is an event stream that another target can continue."""
        return self.is_appendable and self.is_event_stream

    @property
    def is_encoded_stream(self) -> bool:
        """Whether the response succeeds, and its body is a compressed stream of server-sent events."""
        coding = self.by_name.get(b"content-encoding")
        return coding is not None and coding.lower() != b"identity" and self.status < 300 and self._has_events()

    @property
    def is_plain(self) -> bool:
        """Whether the response succeeds, and its head has no report of an engine or a peer to the agent."""
        by_name = self.by_name
        return self.status < 300 and not (
            orca.HEADER in by_name
            or preemption_notice.HEADER in by_name
            or REFUSAL_HEADER in by_name
            or ENGINE_FAILED_HEADER in by_name
        )

    @property
    def media_type(self) -> bytes:
        """The Content-Type without parameters, in lower case; empty without one."""
        return self.by_name.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def _has_events(self) -> bool:
        return self.media_type == EVENT_STREAM_TYPE

    def lines_to_client(self, host: str, base_path: bytes, *, from_peer: bool) -> bytes:
        """Return the header lines for a client.

        Args:
            host: the host of the server's address, which does not occur in the lines.
            base_path: prefix of all paths of the server; empty for none.
            from_peer: whether the server is a peer agent.
        """
        cached = self._lines_from_peer if from_peer else self._lines_from_engine
        if cached:
            return cached
        headers = self.headers
        has_links = not LINK_HEADERS.isdisjoint(self.by_name)
        if has_links:
            headers = without_server_address(headers, host, base_path)
        lines = response_lines_to_client(headers, self.by_name, from_peer=from_peer)
        if self.status in _UNSUPPORTED and b"x-should-retry" not in self.by_name:
            lines.append(b"x-should-retry: false\r\n")
        joined = b"".join(lines)
        if has_links:
            # Not cached, since endpoints with different base paths may share the connection.
            return joined
        if from_peer:
            self._lines_from_peer = joined
        else:
            self._lines_from_engine = joined
        return joined


class ResponseHeadCache:
    """The last response head of a connection, for responses that are delimited by Content-Length."""

    def __init__(self, raw: bytes, head: ResponseHead, *, keep_alive: bool) -> None:
        """`raw` is the head as received; `is_cacheable(head)` must hold."""
        self._head = self._latest = head
        self._template = HeadTemplate(raw, head.headers, VARYING_HEADERS)
        self.keep_alive = keep_alive

    def match(self, data: bytes) -> tuple[ResponseHead, int] | None:
        """Return the head at the start of `data` and the offset of its body; None for any other head."""
        raw = self._template.raw
        if data.startswith(raw):
            return self._head, len(raw)
        found = self._template.match(data)
        if found is None:
            return None
        headers, by_name, body_at = found
        self._latest = self._latest.with_values(headers, by_name)
        return self._latest, body_at


def is_cacheable(head: ResponseHead) -> bool:
    """Whether Content-Length alone determines the end of the response."""
    by_name = head.by_name
    return b"content-length" in by_name and head.status not in NO_BODY_STATUSES and _OTHER_FRAMING.isdisjoint(by_name)


def is_malformed(status: int, version: str, headers: list[Header]) -> bool:
    """Whether another parser could interpret a head differently that this parser accepts (RFC 9112, section 11).

    Args:
        version: as the parser returns it, such as `1.1`.
        headers: names in lower case.
    """
    if not 100 <= status <= 599 or len(headers) > MAX_HEADERS or version not in _VERSIONS:
        return True
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    return bool(codings) and (codings != [b"chunked"] or version == "1.0")


def is_delimited(headers: list[Header]) -> bool:
    """Whether a body has a length or chunks; otherwise the body ends when the connection closes."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
