"""Recognises the records of a stream that are counted and not parsed, as nearly all records are.

They contain none of the byte strings that announce something (`AnswerFormat`). Each of these strings is in quotes, or
is a record of its own, so that a chunk need not be searched that differs from the last one only within one string.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.answers.answer_format import ERROR_MARK, AnswerFormat
from penstock.answers.stream_ends import may_finish

_NULL: Final = b"null"
_LF_END: Final = b"\n\n"
_CRLF_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\n"
_CHUNK_END: Final = b"\r\n"
_LINE_ENDS: Final = (b"\n", b"\r")
_OTHER_STARTS: Final = (b":", b"error:", *_LINE_ENDS)
_ERROR_EVENT: Final = re.compile(rb"event: ?error|[\r\n]error:")
_STRING_STARTS: Final = (b'":"', b'": "')
_DECIDING: Final = (b'"object"', b'"type"', b'"status"', b'"error"')
"""Members whose value, a string, may make a record an error or an end."""
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_LF: Final = 0x0A
_CR: Final = 0x0D
"""Numbers: for `bytes in bytes`, CPython raises and drops an exception, since it tries the left side as a number first.
Here and in the other readers of answers, `find` replaces `in` for the same reason; it takes a third of the time."""


class PlainRecords:
    """The records of one stream."""

    def __init__(self, answer_format: AnswerFormat, *, lines: bool) -> None:
        """Recognise events that end with LF; with `lines`, lines."""
        self._format = answer_format
        self._lines = lines
        self._end = _LINE_END if lines else _LF_END
        self._before = self._after = self._after_in_chunk = b""
        """What surrounds the last string of the last part, such as the generated text; empty if it is not known."""
        self._adds = 0
        """Number of records with output in that part."""

    def use_crlf(self) -> None:
        """Recognise events that end with CRLF."""
        if self._end == _LF_END:
            self._end = _CRLF_END

    def count_chunk(self, chunk: bytes, begin: int) -> int:
        """Count the records with output in a chunk, framing included; -1 if it must be parsed.

        Args:
            begin: offset of the body.
        """
        if self._after and self._is_like_the_last(chunk, begin, self._after_in_chunk):
            return self._adds
        return self._count_other(chunk, begin, len(chunk) - len(_CHUNK_END))

    def count(self, part: bytes) -> int:
        """Count the records with output in a part of the body; -1 if it must be parsed, or does not end a record."""
        if self._after and self._is_like_the_last(part, 0, self._after):
            return self._adds
        return self._count_other(part, 0, len(part))

    def _count_other(self, part: bytes, begin: int, end_at: int) -> int:
        """Count the records with output in `part[begin:end_at]`, and note what surrounds its text; -1 as `count`."""
        count = self._count(part, begin, end_at)
        if count >= 0:
            self._note(part, begin, end_at)
            self._adds = count
        return count

    def _count(self, part: bytes, begin: int, end_at: int) -> int:
        if not part.endswith(self._end, begin, end_at) or self._has_more_than_data(part, begin, end_at):
            return -1
        if announces(part, self._format) or may_finish(part):
            return -1
        # Between its bounds: the framing of a chunk has line ends too.
        return part.count(self._format.delta_mark or self._end, begin, end_at)

    def _is_like_the_last(self, part: bytes, begin: int, after: bytes) -> bool:
        """Whether a part differs from the last one only within one string, which has no escapes.

        Args:
            after: what follows the string.
        """
        before = self._before
        at, end_at = begin + len(before), len(part) - len(after)
        if at > end_at or not part.endswith(after) or part[begin:at] != before:
            return False
        text = part[at:end_at]
        return not (_QUOTE in text or _BACKSLASH in text or _LF in text or _CR in text)

    def _note(self, part: bytes, begin: int, end_at: int) -> None:
        """Note what surrounds the last string of `part[begin:end_at]` that is one event of one line."""
        self._after = b""
        if self._lines or not self._is_one_line(part, begin, end_at):
            return
        for start in _STRING_STARTS:
            at = part.rfind(start, begin) + len(start)
            end_of_text = part.find(_QUOTE, at)
            if part.endswith(_DECIDING, begin, at - len(start) + 1):
                return
            if at >= begin + len(start) and end_of_text >= 0:
                self._before, self._after = part[begin:at], part[end_of_text:end_at]
                self._after_in_chunk = self._after + _CHUNK_END
                return

    def _has_more_than_data(self, part: bytes, begin: int, end_at: int) -> bool:
        """Whether records in `part[begin:end_at]` may be comments, blank, or events named `error`."""
        if self._lines:
            blank = part.find(b"\n\n") >= 0 or part.find(b"\n\r\n", begin, end_at) >= 0
            return blank or part.startswith(_LINE_ENDS, begin)
        if self._is_one_line(part, begin, end_at):
            return False  # as most engines send
        end = self._end
        if part.startswith(_OTHER_STARTS, begin) or part.find(b"\n:") >= 0:
            return True
        if part.find(end + end[: len(end) >> 1]) >= 0:
            return True
        if end == _LF_END and part.find(b"\r", begin, end_at) >= 0:
            return True
        return _ERROR_EVENT.search(part) is not None

    def _is_one_line(self, part: bytes, begin: int, end_at: int) -> bool:
        """Whether `part[begin:end_at]`, which ends an event, is one event of one line with data."""
        return part.startswith(b"data:", begin) and part.find(b"\n", begin) == end_at - (len(self._end) >> 1) - 1


def announces(part: bytes, answer_format: AnswerFormat) -> bool:
    """Whether a part of a stream may contain an error, usage or the end."""
    for mark in answer_format.end_marks:
        if part.find(mark) >= 0:
            return True
    for mark in answer_format.usage_marks:
        if part.find(mark) >= 0 and not _is_null(part, mark):
            return True
    return part.find(ERROR_MARK) >= 0


def _is_null(part: bytes, mark: bytes) -> bool:
    """Whether the only member whose name is `mark` in `part` is null, as in each event but the last of some engines."""
    at = part.find(mark) + len(mark)
    return part[at : at + 8].lstrip(b" \t:").startswith(_NULL) and part.find(mark, at) < 0
