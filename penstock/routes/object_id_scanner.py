"""Finds the identifier of a created object in the beginning of a response, as it arrives.

The identifier is the string at a JSON pointer in the body. In an event stream it is at that pointer in the data of an
event, or at that pointer below `/response`, where the events of OpenAI's Responses API have the object.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock.routes.json_pointer import parse_pointer

MAX_SCANNED_BYTES: Final = 64 * 1024
"""Maximum number of bytes of a response that are scanned; an identifier that ends later is not found."""

MAX_SCANS: Final = 16
"""Maximum number of parts of a response that are scanned. Each part costs a scan of all bytes received so far."""

_TOKEN: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)("\s*+(:)?)?|[{}\[\],]', re.DOTALL)
"""Matches a delimiter or a string; the closing quote is absent if the data ends, the colon if the string is no key."""
_DATA: Final = re.compile(rb"^data:([^\r\n]*)", re.MULTILINE)


class ObjectIdScanner:
    """The scanner of one response."""

    __slots__ = ("_data", "_is_event_stream", "_paths", "_scans")

    def __init__(self, pointer: str, *, is_event_stream: bool) -> None:
        """Scan for the string at `pointer`, a JSON pointer (RFC 6901) through objects.

        Raises:
            ValueError: the pointer is malformed.
        """
        path = tuple(token.encode() for token in parse_pointer(pointer))
        self._paths = (path, (b"response", *path)) if is_event_stream else (path,)
        self._is_event_stream = is_event_stream
        self._data = b""
        self._scans = 0

    @property
    def gave_up(self) -> bool:
        """Whether a limit of this module was reached."""
        return self._scans >= MAX_SCANS or len(self._data) >= MAX_SCANNED_BYTES

    def feed(self, part: bytes) -> str | None:
        """Scan one more part; returns the identifier, or None while it is incomplete and after a limit was reached."""
        if self.gave_up:
            return None
        self._data = (self._data + part)[:MAX_SCANNED_BYTES]
        self._scans += 1
        texts = [match[1] for match in _DATA.finditer(self._data)] if self._is_event_stream else [self._data]
        for text in texts:
            for path in self._paths:
                found = _string_at(text, path)
                if found is not None:
                    return found
        return None


def _string_at(text: bytes, path: tuple[bytes, ...]) -> str | None:
    """The string at a path of object keys in the beginning of a JSON text; None if it is absent or incomplete."""
    keys: list[bytes | None] = []
    key: bytes | None = None
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in b"{[":
            keys.append(key)
            key = None
        elif first in b"}]":
            if keys:
                keys.pop()
            key = None
        elif first in b",":
            key = None
        elif token[2] is None or (token[3] is None and token.end() == len(text)):
            return None
        elif token[3] is not None:
            key = token[1]
        elif len(keys) == len(path) and (*keys[1:], key) == path:
            try:
                return msgspec.json.decode(b'"%b"' % token[1], type=str)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
    return None
