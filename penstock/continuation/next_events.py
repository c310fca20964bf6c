"""Recognises the next event of a stream that can be continued by the last one, without decoding it.

Most events differ from the last one by their text, and by one token more in the usage so far. `take` compares them as
bytes; each other event is decoded (`ContinuedStream`), and may be the pattern of the next ones.
"""

from __future__ import annotations

from typing import Final

MAX_TAKEN: Final = 256
"""Maximum number of events that are taken before one is decoded: their texts are kept until then."""

MAX_USELESS: Final = 8
"""Number of patterns in a row that no event matched, after which none is tried: the engine sends several tokens in an
event, or its events differ otherwise."""

EXPECTED_TEXT: Final = "0"
"""Text of the event that `expect` returns."""

_QUOTE: Final = b'"'
_BACKSLASH: Final = b"\\"
_CHUNK_END: Final = b"\r\n"
_TEXT_STARTS: Final = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
_TOTAL: Final = b'"total_tokens":'
_COMPLETION: Final = b'"completion_tokens":'


class NextEvents:
    """The pattern of the next event of one stream, and the texts that were taken by it."""

    def __init__(self) -> None:
        """Start without a pattern, which takes no event."""
        self._before = self._after = b""
        """What an event has before and after its text; no event is taken while the second is empty."""
        self._sent_before = self._sent_after = b""
        """The same of what the client receives; empty if it is the event itself."""
        self._parts: list[bytes] = []
        """What an event has after its text, without the numbers of tokens in it; empty without such numbers."""
        self._numbers: list[int] = []
        self._useless = 0
        self.texts: list[str] = []
        """The texts of the events that were taken since `reset`."""
        self.last = b""
        """The last event that was taken; empty if none was."""

    def expect(self, event: bytes, sent: bytes, content: str) -> bytes:
        """Expect events like `event`, of which the client receives `sent`.

        Returns such an event with another text and the next numbers, by which the caller checks that nothing else in
        an event depends on them; empty if no event is expected. `content` is the text, as decoded.
        """
        text = content.encode("utf-8", "replace")
        self._useless += 1
        if self._useless > MAX_USELESS or not text or not content.isprintable() or text.find(_BACKSLASH) >= 0:
            return b""
        split, sent_split = _split(event, text), _split(sent, text)
        if split is None or sent_split is None:
            return b""
        self._before, after = split
        self._numbers, self._parts = [], []
        if after.find(_COMPLETION) >= 0 and not self._find_numbers(after):
            return b""
        self._after = after
        if sent is event:
            self._sent_before = self._sent_after = b""
        else:
            self._sent_before, self._sent_after = sent_split
        self._advance()
        return self._before + EXPECTED_TEXT.encode() + self._after[: -len(_CHUNK_END)]

    def stop(self) -> None:
        """Expect no event."""
        self._after = b""

    def reset(self) -> None:
        """Forget the taken events."""
        self.texts, self.last = [], b""

    def take(self, chunk: bytes, begin: int) -> bytes:
        """Take a chunk, framing included, that is one expected event; return its body for the client, or nothing.

        Args:
            begin: offset of the body.
        """
        after, at = self._after, begin + len(self._before)
        if not after or not chunk.endswith(after) or not chunk.startswith(self._before, begin):
            return b""
        if len(self.texts) >= MAX_TAKEN:
            return b""
        end_at = len(chunk) - len(after)
        raw = chunk[at:end_at]
        if end_at <= at or raw.find(_QUOTE) >= 0 or raw.find(_BACKSLASH) >= 0:
            return b""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return b""
        # JSON permits no control characters in a string.
        if not text.isprintable():
            return b""
        self.texts.append(text)
        self.last, self._useless = chunk[begin : -len(_CHUNK_END)], 0
        if self._numbers:
            self._advance()
        return self._sent_before + raw + self._sent_after if self._sent_after else self.last

    def _find_numbers(self, after: bytes) -> bool:
        """Find the numbers that grow with each token: those of the answer and of all tokens."""
        found = sorted((after.find(mark) + len(mark), mark) for mark in (_TOTAL, _COMPLETION) if after.find(mark) >= 0)
        start, digits = 0, b"0123456789"
        for at, _ in found:
            while after[at : at + 1] == b" ":
                at += 1
            end_at = at
            while end_at < len(after) and digits.find(after[end_at : end_at + 1]) >= 0:
                end_at += 1
            if not at < end_at < at + 12:
                return False
            self._parts.append(after[start:at])
            self._numbers.append(int(after[at:end_at]))
            start = end_at
        self._parts.append(after[start:])
        return True

    def _advance(self) -> None:
        """Expect the numbers of the next token."""
        if not self._numbers:
            self._after += _CHUNK_END
            return
        parts, numbers = self._parts, self._numbers
        after = parts[0]
        for place in range(len(numbers)):
            numbers[place] += 1
            after += str(numbers[place]).encode() + parts[place + 1]
        self._after = after + _CHUNK_END


def _split(event: bytes, text: bytes) -> tuple[bytes, bytes] | None:
    """Return what an event has before and after its text, if this is it; None if the text is not found."""
    for start in _TEXT_STARTS:
        at = event.find(start + text + _QUOTE)
        if at >= 0:
            begin = at + len(start)
            return event[:begin], event[begin + len(text) :]
    return None
