"""Reduces a long JSON text, as it arrives, to the members that a reader needs.

A response may have megabytes before, between and after the members that count (log probabilities, token ids, echoed
tools, embeddings). Only the members on the wanted paths are kept, so that memory is bounded whatever an engine sends.
The skipped part is not validated: it may contain NaN or invalid UTF-8, which engines send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Final

import msgspec

from penstock.routes.json_pointer import parse_pointer

MAX_VALUE_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of a kept value; DROPPED replaces a longer one."""

MAX_KEPT_BYTES: Final = 512 * 1024
"""Size (bytes) of the reduced text after which no value is kept and no container entered."""

MAX_DEPTH: Final = 32
"""Maximum number of containers within each other that are entered."""

DROPPED: Final = b'{"":0}'
"""In place of a value that is too long to be kept: an object, as errors and usage are, without their members."""

MAX_KEY_BYTES: Final = 256
"""Maximum size (bytes) of a key that can be wanted."""

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT: Final = rb'[{\[](?:[^"{}\[\]]++|%b)*+[}\]]' % _STRING
_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_IN_CONTAINER: Final = re.compile(rb'(?:[^"{}\[\]]++|%b|%b)*+' % (_STRING, _FLAT), re.DOTALL)
_IN_SCALAR: Final = re.compile(rb'[^\s,:"{}\[\]]*+')
_SPACE: Final = re.compile(rb"[\s]*+")

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPENING, _CLOSING = b"{[", b"}]"
_NULL: Final = b"null"

Wanted = Mapping[str, "Wanted | None"]
"""The wanted members of an object, by key: None for a member that is kept as a whole, else its wanted members."""

_VALUE, _KEY, _AFTER_KEY, _AFTER_VALUE, _IN_VALUE, _END, _BROKEN = range(7)


def wanted_members(pointers: Iterable[str]) -> Wanted:
    """The tree of the members at JSON pointers (RFC 6901), through objects only.

    Raises:
        ValueError: a pointer is malformed.
    """
    tree: dict[str, Wanted | None] = {}
    for tokens in sorted(map(parse_pointer, pointers), key=len):
        level = tree
        for token in tokens[:-1]:
            inner = level.setdefault(token, {})
            if inner is None:
                break
            assert isinstance(inner, dict)
            level = inner
        else:
            if tokens:
                level.setdefault(tokens[-1], None)
    return tree


class JsonReducer:
    """Reduces one JSON text. If the text is an array, its elements are reduced."""

    def __init__(self, wanted: Wanted, expected: Set[str] = frozenset()) -> None:
        """Reduce to `wanted`, and look for one of the members `expected` in the object, or in elements of the array."""
        self._state = _VALUE
        self._expected = expected
        self._expects_value = False
        """Whether the next value is that of an expected member."""
        self.has_expected = False
        """Whether an expected member has arrived that is not null."""
        self.is_partial = False
        """Whether a wanted value may have been too long to be kept."""
        self._next: Wanted | None = wanted
        """The wanted members of the next value; None for a value that is kept as a whole."""
        self._stack: list[tuple[Wanted, bool, bool]] = []
        """For each open container: the wanted members of it or of its elements, whether it is an array, whether it has
        kept members."""
        self._out = bytearray()
        self._key = b""
        self._has_more = False
        """Whether something else than white space follows the text."""
        # The value or key that is being consumed:
        self._value = bytearray()
        self._copies = self._is_kept = False
        self._is_key = False
        self._in_string = self._escaped = False
        self._depth = 0

    @property
    def complete(self) -> bool:
        """Whether the text has ended, and nothing but white space follows."""
        return self._state == _END and not self._has_more

    @property
    def is_array(self) -> bool:
        """Whether the text is an array."""
        return self._out.startswith(b"[")

    @property
    def is_object(self) -> bool:
        """Whether the text is an object."""
        return self._out.startswith(b"{")

    def feed(self, data: bytes) -> None:
        """Reduce a further part of the text; what follows its end is not read."""
        at, size = 0, len(data)
        while at < size and self._state not in (_END, _BROKEN):
            if self._state == _IN_VALUE:
                at = self._consume(data, at)
                continue
            space = _SPACE.match(data, at)
            assert space is not None
            at = space.end()
            if at < size:
                at = self._step(data, at)
        if self._state == _END and data[at:].strip():
            self._has_more = True

    def result(self) -> bytes:
        """The reduced text, as a JSON text of its own; open containers are closed."""
        out = bytes(self._out)
        for _, is_array, _ in reversed(self._stack):
            out += b"]" if is_array else b"}"
        return out or b"{}"

    def _step(self, data: bytes, at: int) -> int:
        """Process one character between values; returns the position after it."""
        first = data[at]
        if self._state == _VALUE:
            return self._begin(first, at)
        if self._state == _KEY:
            if first == _QUOTE:
                self._start_value(copies=True, is_key=True)
                self._in_string = True
                return at + 1
            if first == _CLOSING[0]:
                self._close()
                return at + 1
        elif self._state == _AFTER_KEY:
            if first == _COLON:
                self._state = _VALUE
                return at + 1
        elif first == _COMMA and self._stack:
            wanted, is_array, _ = self._stack[-1]
            self._next = wanted
            self._state = _VALUE if is_array else _KEY
            return at + 1
        elif first in _CLOSING and self._stack:
            self._close()
            return at + 1
        self._state = _BROKEN
        return at

    def _begin(self, first: int, at: int) -> int:
        """Begin the value at `at`: enter a container with wanted members, or consume the value."""
        wanted = self._next
        if self._expects_value:
            self._expects_value = False
            self.has_expected = self.has_expected or first != _NULL[0]
        may_enter = len(self._out) < MAX_KEPT_BYTES and len(self._stack) < MAX_DEPTH
        self.is_partial = self.is_partial or not may_enter
        if first in _OPENING and wanted and may_enter:
            self._put(b"")
            is_array = first == _OPENING[1]
            self._out.append(first)
            self._stack.append((wanted, is_array, False))
            self._state = _VALUE if is_array else _KEY
            return at + 1
        if first in _CLOSING and self._stack and self._stack[-1][1]:
            self._close()  # an empty array
            return at + 1
        self._start_value(copies=wanted is None, is_key=False)
        return at

    def _start_value(self, *, copies: bool, is_key: bool) -> None:
        self._state = _IN_VALUE
        self._copies = self._is_kept = copies
        self._is_key = is_key
        self._value.clear()
        self._in_string = self._escaped = False
        self._depth = 0

    def _consume(self, data: bytes, at: int) -> int:
        """Consume the value up to its end, or up to the end of the data."""
        begin, size = at, len(data)
        ended = False
        while at < size and not ended:
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = _end_of(_IN_STRING, data, at)
                if at < size:
                    self._escaped = data[at] == _BACKSLASH
                    self._in_string = self._escaped
                    at += 1
                    ended = not self._in_string and self._depth == 0
            elif self._depth == 0:
                first = data[at]
                if first == _QUOTE and not self._value and at == begin:
                    self._in_string = True
                    at += 1
                elif first in _OPENING and not self._value and at == begin:
                    self._depth = 1
                    at += 1
                else:
                    at = _end_of(_IN_SCALAR, data, at)
                    ended = at < size
                    if at == begin and ended and not self._value:
                        self._state = _BROKEN
                        return at
            else:
                at = _end_of(_IN_CONTAINER, data, at)
                if at < size:
                    found = data[at]
                    self._in_string = found == _QUOTE
                    self._depth += (found in _OPENING) - (found in _CLOSING)
                    at += 1
                    ended = self._depth == 0
        self._copy(data[begin:at])
        if ended:
            self._end_value()
        return at

    def _copy(self, part: bytes) -> None:
        """Add a part of the value. A scalar needs one byte, by which its next part is known to continue it."""
        most = MAX_KEY_BYTES if self._is_key else MAX_VALUE_BYTES
        if self._copies and len(self._value) + len(part) <= most:
            self._value += part
        else:
            self._copies = False
            self._value[:] = b"x"

    def _end_value(self) -> None:
        if self._is_key:
            self._state = _AFTER_KEY
            self._key = b'"' + bytes(self._value) if self._copies else b""
            self._next = self._wanted_of(self._key)
            return
        if self._is_kept and len(self._out) < MAX_KEPT_BYTES:
            self._put(bytes(self._value) if self._copies else DROPPED)
            self.is_partial = self.is_partial or not self._copies
        self._state = _AFTER_VALUE if self._stack else _END

    def _wanted_of(self, key: bytes) -> Wanted | None:
        """What is wanted of the member `key`; an empty mapping for nothing."""
        wanted = self._stack[-1][0]
        try:
            name = msgspec.json.decode(key, type=str) if key else ""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _NOTHING
        self._expects_value = name in self._expected and len(self._stack) == 1 + self.is_array
        return wanted.get(name, _NOTHING)

    def _put(self, value: bytes) -> None:
        """Add a value, or the beginning of a container, to the reduced text."""
        if not self._stack:
            self._out += value
            return
        wanted, is_array, has_members = self._stack[-1]
        if has_members:
            self._out += b","
        else:
            self._stack[-1] = (wanted, is_array, True)
        if not is_array:
            self._out += self._key + b":"
        self._out += value

    def _close(self) -> None:
        _, is_array, _ = self._stack.pop()
        self._out += b"]" if is_array else b"}"
        self._state = _AFTER_VALUE if self._stack else _END


_NOTHING: Final[Wanted] = {}


def _end_of(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    assert found is not None
    return found.end()
