"""Incremental parser of server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

MAX_EVENT_BYTES = 1_048_576


class EventTooLong(Exception):
    """A server sent more than MAX_EVENT_BYTES without ending the event."""


class EventStream:
    """Returns the data of each complete event. Fields other than data, and comments, are skipped."""

    __slots__ = ("_after_return", "_pending")

    def __init__(self) -> None:
        self._pending = b""
        self._after_return = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of every event that `piece` completes.

        Raises:
            EventTooLong: the incomplete event is too long.
        """
        if b"\r" in piece or self._after_return:
            piece = self._with_plain_newlines(piece)
        whole, found, rest = (self._pending + piece).rpartition(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise EventTooLong
        self._pending = rest
        if not found:
            return []
        return [data for event in whole.split(b"\n\n") if (data := _data(event)) is not None]

    def _with_plain_newlines(self, piece: bytes) -> bytes:
        """Convert the line ends CR LF and CR to LF; a piece may end between CR and LF."""
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_return = False
        if piece:
            self._after_return = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [_value(line) for line in event.split(b"\n") if line == b"data" or line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _value(line: bytes) -> bytes:
    return line[5:].removeprefix(b" ")
