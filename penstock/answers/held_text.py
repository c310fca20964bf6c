"""The JSON text of an answer that is not streamed, held until its end, or reduced if it is too long."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from penstock.answers.answer_format import ERROR_MARK
from penstock.answers.json_reducer import JsonReducer, Wanted

MAX_HELD_BYTES: Final = 512 * 1024
"""Maximum size (bytes) of an answer that is held as a whole; of a longer one, only the members that are read."""

MAX_UNDECIDED_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of the beginning of a response that can turn out to be an error before it is forwarded. The end
of a JSON text may show that the engine aborted the answer."""

MIN_DECIDED_BYTES: Final = 512
"""Minimum size (bytes) of the beginning of a JSON text of any form that is no error: only identifiers precede one."""

_JSON_STARTS: Final = frozenset({b"", b"{", b"[", b" ", b"\t", b"\r", b"\n", b"\xef"})
"""First bytes of a JSON text that is an object or an array, white space and a byte order mark included."""
_CONTAINERS: Final = (b"{", b"[")
_OTHER_STARTS: Final = b'"-0123456789\xef'
_WORDS: Final = (b"null", b"true", b"false", b"NaN")
_SCALAR: Final = re.compile(rb'\s*(?:null|true|false|NaN|[-+.0-9eE]+|".*")\s*', re.DOTALL)
_READABLE: Final = re.compile(rb"[\t\n\r -~]*")

_OVERLAP_BYTES: Final = len(ERROR_MARK) - 1


def begins_container(part: bytes) -> bool:
    """Whether a text begins like a JSON object or array."""
    return part.lstrip()[:1] in _CONTAINERS


def begins_json(part: bytes) -> bool:
    """Whether a JSON text may begin with the first part of a text."""
    begun = part.strip()
    if begun[:1] in _CONTAINERS or begun[:1] in _OTHER_STARTS:
        return True
    return any(begun[: len(word)] == word[: len(begun)] for word in _WORDS)


def is_scalar(text: bytes) -> bool:
    """Whether a text is a JSON string, a number or a word."""
    return _SCALAR.fullmatch(text) is not None


def is_readable(text: bytes) -> bool:
    """Whether a text has the characters of a message in ASCII alone, as no media has."""
    return _READABLE.fullmatch(text) is not None


class HeldText:
    """The parts of one JSON text so far."""

    def __init__(self) -> None:
        self.first = b""
        """The first part, until the text is taken."""
        self._held: bytearray | None = None
        """The text, if it has arrived in several parts."""
        self._searched = b""
        """The last part, and the end of the part before it, in which no mark of an error was found."""
        self.size_bytes = 0
        self.may_be_error = False
        """Whether the text contains the mark of an error."""

    def add(self, part: bytes, wanted: Wanted, expected: Set[str]) -> JsonReducer | None:
        """Add a part; returns the reducer of the text, for the `wanted` and `expected` members, once it is too long."""
        if not self.size_bytes and part.isspace():
            # By blank lines before the text, some servers keep the connection open while they generate it.
            return None
        if not self.may_be_error:
            before = self._searched
            searched = self._searched = before[-_OVERLAP_BYTES:] + part if before else part
            self.may_be_error = searched.find(ERROR_MARK) >= 0
        if not self.size_bytes:
            self.first = part
        elif self._held is None:
            # An array of bytes, since a list of many small parts takes more memory than their bytes.
            self._held = bytearray(self.first)
            self._held += part
        else:
            self._held += part
        self.size_bytes += len(part)
        if self.size_bytes <= MAX_HELD_BYTES:
            return None
        reducer = JsonReducer(wanted, expected)
        reducer.feed(self.take())
        return reducer

    def is_undecided(self, needs_answer: bool, is_media: bool) -> bool:
        """Whether the text so far may be the beginning of an error, or of an aborted answer.

        Args:
            needs_answer: whether the answers have a certain form; an error may be neither an object nor an array.
            is_media: whether it is none if it has other characters than a message.
        """
        if self.size_bytes > 0 and self.first[:1] not in _JSON_STARTS:
            may_be_other = needs_answer and not (is_media and not is_readable(self.first))
            if not may_be_other:
                return False
        # Routes of policy may stream a JSON text.
        if self.size_bytes >= MIN_DECIDED_BYTES and not (needs_answer or self.may_be_error):
            return False
        return self.size_bytes <= MAX_UNDECIDED_BYTES

    def take(self) -> bytes:
        """Return the text, and hold it no longer."""
        text = self.first if self._held is None else bytes(self._held)
        self.first, self._held, self.size_bytes, self._searched = b"", None, 0, b""
        return text
