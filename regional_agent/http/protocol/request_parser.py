"""Parses the bytes of a client into requests, without IO: `receive` adds bytes, and `next` returns what they contain.

HTTP is parsed in this package and not in the decision core, since the core decides about requests that are already
parsed. The parser needs no socket and no event loop.
"""

from __future__ import annotations

from typing import Final

from penstock.http.head_template import MAX_MISSES
from penstock.http.header_rules import HeaderFilter
from regional_agent.http.kept_bodies import joined
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.protocol.message_parser import MessageParser
from regional_agent.http.protocol.received import SMALL_BODY_BYTES, Received

PARSED_BYTES: Final = 4096
"""Maximum size of the part of a read that is parsed at once, besides a body with a known length. No further part is
parsed before the requests of the last one were taken: a part contains up to 150 requests."""

CHUNKED_PARSED_BYTES: Final = 16 * 1024
"""The same within a chunked body."""


class RequestParser:
    """The bytes of one client that are to be parsed, and a cache of the last head."""

    def __init__(self, limits: Limits, passing: HeaderFilter, location_header: bytes, scheme: bytes) -> None:
        """Start before the first request.

        Args:
            limits: limits of heads.
            passing: filter of the headers that are sent upstream, for the cached head.
            location_header: see `ListenerState`.
            scheme: scheme of the connection, for the cached head.
        """
        self._messages = MessageParser(limits, passing, location_header, scheme)
        self._max_head_bytes = limits.max_head_bytes
        self._data = b""
        self._at = 0
        """Offset in `_data` of what was not parsed."""
        self._taken = 0
        """Number of elements of `MessageParser.found` that `next` has returned; 0 once it has returned all."""
        self._misses = 0
        """Number of consecutive requests whose head was not the cached head."""
        self._counted_left = 0
        """Number of missing body bytes of a request whose head was found in the cache."""
        self.is_drained = False
        """Whether `next` has returned all that was received, and the last of it was a complete request."""

    @property
    def request(self) -> Request | None:
        """The request of which a part was parsed."""
        return self._messages.request

    @property
    def in_head(self) -> bool:
        """Whether the head of that request is incomplete."""
        return self._messages.in_head

    @property
    def has_more(self) -> bool:
        """Whether something was received that `next` has not returned."""
        return self._at < len(self._data) or bool(self._messages.found)

    def receive(self, data: bytes) -> None:
        """Add bytes of the client."""
        messages = self._messages
        if self._at < len(self._data):
            self._data = self._data[self._at :] + data
            messages.read = b""
        else:
            self._data = data
            messages.read = data if messages.request is None and self._misses < MAX_MISSES else b""
        self._at = 0

    def next(self) -> Received | None:
        """Return what the client has sent next; None if more bytes are needed."""
        messages = self._messages
        while True:
            found, data, at = messages.found, self._data, self._at
            if found:
                received = found[self._taken]
                self._taken += 1
                if self._taken == len(found):
                    # An idle connection holds no request.
                    found.clear()
                    self._taken = 0
                self.is_drained = not found and at == len(data) and messages.request is None
                return received
            if at == len(data) or messages.is_over:
                return None
            if not self._counted_left and not (at == 0 and messages.read and self._match_cached_head()):
                self._parse_part()
                continue
            # The head of the request was found in the cache: its body is what follows.
            request, at = messages.request, self._at
            assert request is not None
            end = at + self._counted_left
            if end > len(data):
                end = len(data)
            if end > at:
                chunk = data[at:end]
                request.body = chunk if not request.body else joined(request.body, chunk)
                request.received_bytes += end - at
                self._counted_left -= end - at
            self.is_drained = end == len(data)
            if self.is_drained:
                self._data, self._at = b"", 0
            else:
                self._at = end
            if not self._counted_left:
                messages.request, messages.in_head = None, True
                return request

    def take_rest(self) -> bytes:
        """Return the bytes that were not parsed, and stop: the connection ends, or its protocol was upgraded."""
        rest = self._data[self._at :]
        self._data, self._at, self._taken = b"", 0, 0
        self._messages.stop()
        return rest

    def _parse_part(self) -> None:
        data, at, size = self._data, self._at, self._size_to_parse()
        if size > len(data) - at:
            size = len(data) - at
        if size == len(data):
            part: bytes | memoryview = data
        elif size > CHUNKED_PARSED_BYTES:
            # A view is not copied. It covers nothing but a body: the head of a request begins in a part of bytes.
            part = memoryview(data)[at : at + size]
        else:
            part = data[at : at + size]
        at += self._messages.feed(part)
        if at == len(data):
            self._data, self._at, self._messages.read = b"", 0, b""
        else:
            self._at = at

    def _size_to_parse(self) -> int:
        """Return the maximum size (bytes) of the part to parse next."""
        request = self._messages.request
        if request is None or self._messages.in_head:
            return PARSED_BYTES
        if request.length is None:
            return CHUNKED_PARSED_BYTES
        left_bytes = request.length - self._messages.body_bytes
        return left_bytes if left_bytes > CHUNKED_PARSED_BYTES else PARSED_BYTES

    # repeated heads

    def _match_cached_head(self) -> bool:
        """Return whether the data begins with the cached head, and begin its request.

        The parser receives no byte of such a request, and stays in its state between two messages.
        """
        messages = self._messages
        if messages.head_cache is None:
            return False
        found = messages.head_cache.match(self._data)
        if found is not None and found[1] <= self._max_head_bytes:
            request, body_at = found
            length = request.length or 0
            if length <= SMALL_BODY_BYTES:
                self._misses, self._at, self._counted_left = 0, body_at, length
                messages.read, messages.request, messages.in_head = b"", request, False
                return True
        self._misses += 1
        return False
