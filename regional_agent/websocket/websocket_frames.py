"""The frames of a WebSocket (RFC 6455, section 5): their heads, masks, and the frames that an agent adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
OPCODES: Final = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})

GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011

SERVER_FAILURES: Final = frozenset({INTERNAL_ERROR, 1014})
"""Status codes by which a server states that it, or a server behind it, has failed (RFC 6455, section 7.4.1, and the
registry of IANA). 1012 and 1013 announce a restart or overload, and are orderly."""

MAX_CONTROL_BYTES: Final = 125
"""Maximum payload (bytes) of a control frame."""

MAX_TEXT_BYTES: Final = 256 * 1024
"""Maximum size (bytes) of a text message that is read while it is followed. The end of a response in a session contains
its text, but no audio."""

_FIN, _RESERVED, _COMPRESSED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x40, 0x0F, 0x80, 0x7F


class FrameHead:
    """The head of one frame."""

    __slots__ = ("final", "length", "mask", "opcode", "reserved", "size", "undefined")

    def __init__(self, first: int, length: int, mask: bytes, size: int) -> None:
        self.final = bool(first & _FIN)
        self.reserved = bool(first & _RESERVED)
        """Whether a bit is set that only an extension defines."""
        self.undefined = bool(first & _RESERVED & ~_COMPRESSED)
        """Whether such a bit is set that no registered extension defines (RFC 7692 defines the first)."""
        self.opcode = first & _OPCODE
        self.length = length
        """Size (bytes) of the payload."""
        self.mask = mask
        """The masking key; empty for a frame that is not masked."""
        self.size = size
        """Size (bytes) of the head."""

    @property
    def is_control(self) -> bool:
        """Whether the frame may stand between the fragments of a message."""
        return self.opcode >= CLOSE


def read_head(data: bytes | bytearray) -> FrameHead | None:
    """Return the frame head at the start of `data`; None if it is incomplete."""
    if len(data) < 2:
        return None
    length, size = data[1] & _LENGTH, 2
    if length > MAX_CONTROL_BYTES:
        more = 2 if length == 126 else 8
        size += more
        if len(data) < size:
            return None
        length = int.from_bytes(data[2:size], "big")
    mask = b""
    if data[1] & _MASKED:
        mask, size = bytes(data[size : size + 4]), size + 4
        if len(data) < size:
            return None
    return FrameHead(data[0], length, mask, size)


MAX_HEAD_BYTES: Final = 14


def unmask(payload: bytes, mask: bytes, offset: int) -> bytes:
    """Apply a masking key to a part of a payload that begins `offset` bytes after its start."""
    size, start = len(payload), offset % 4
    key = (mask * (size // 4 + 2))[start : start + size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def text_frame(payload: bytes) -> bytes:
    """Return an unmasked text message, as a server sends it."""
    return _frame(TEXT, payload)


def close_frame(code: int, reason: str) -> bytes:
    """Return an unmasked Close frame, as a server sends it; the reason is shortened to what a frame may have."""
    text = reason.encode()[: MAX_CONTROL_BYTES - 2].decode(errors="ignore")
    return _frame(CLOSE, code.to_bytes(2, "big") + text.encode())


def pong_frame(payload: bytes, mask: bytes) -> bytes:
    """Return the answer of a client to a Ping frame; `mask` are 4 random bytes."""
    return bytes([_FIN | PONG, _MASKED | len(payload)]) + mask + unmask(payload, mask, 0)


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size <= MAX_CONTROL_BYTES:
        length = bytes([size])
    elif size < 1 << 16:
        length = b"\x7e" + size.to_bytes(2, "big")
    else:
        length = b"\x7f" + size.to_bytes(8, "big")
    return bytes([_FIN | opcode]) + length + payload


class FollowedFrames:
    """Follows the frames of one side: its end, its text messages, and where frames of the agent may be added."""

    __slots__ = (
        "_code",
        "_head",
        "_in_message",
        "_in_text",
        "_left",
        "_on_ping",
        "_on_text",
        "_ping",
        "_reads",
        "_text",
        "closed",
    )

    def __init__(
        self, on_text: Callable[[bytes], None] | None = None, on_ping: Callable[[bytes], None] | None = None
    ) -> None:
        """Start before the first frame.

        Args:
            on_text: receives each complete text message of a server of up to MAX_TEXT_BYTES that is not compressed.
            on_ping: receives the payload of each Ping frame of a server.
        """
        self._on_text = on_text
        self._on_ping = on_ping
        self._ping: bytearray | None = None
        """The payload of a Ping frame as far as it has arrived; None outside of one that is answered."""
        self._text = bytearray()
        """The text message that arrives."""
        self._reads = self._in_text = False
        """Whether the message that arrives is read, and whether the payload that arrives belongs to it."""
        self._head = bytearray()
        """The part of an incomplete frame head that has arrived."""
        self._left = 0
        """Missing bytes of the current payload."""
        self._in_message = False
        """Whether a message has begun and its last fragment has not."""
        self.closed = False
        """Whether the side has sent a Close frame, after which nothing may be added, or bytes that are no frame."""
        self._code: bytearray | None = None
        """The payload of the Close frame as far as it has arrived; None without one."""

    @property
    def close_code(self) -> int:
        """The status code of a server's Close frame; 0 without one."""
        return int.from_bytes(self._code[:2], "big") if self._code is not None else 0

    @property
    def between_frames(self) -> bool:
        """Whether a control frame may be added."""
        return not (self.closed or self._left or self._head)

    @property
    def between_messages(self) -> bool:
        """Whether a message may be added."""
        return self.between_frames and not self._in_message

    def feed(self, data: bytes, most_frames: int = 0) -> int:
        """Follow a read; returns the offset of its last place where a message may be added, or -1.

        Args:
            most_frames: number of frames in one read from which on nothing more is followed; 0: no limit.
        """
        at, found, size, frames = 0, -1, len(data), 0
        while at < size and not self.closed:
            if self._left:
                step = min(self._left, size - at)
                if self._in_text:
                    self._text += data[at : at + step]
                elif self._ping is not None:
                    self._ping += data[at : at + step]
                self._left -= step
                at += step
            else:
                known = len(self._head)
                self._head += data[at : at + MAX_HEAD_BYTES - known]
                head = read_head(self._head)
                if head is None:
                    return found
                at += head.size - known
                self._head.clear()
                self._left = head.length
                frames += 1
                if frames == most_frames:
                    self.closed = True
                    return found
                if head.opcode == CLOSE and not head.undefined:
                    self._code = bytearray()
                self.closed = head.opcode == CLOSE or head.opcode not in OPCODES or head.undefined
                self._begin_payload(head)
            if not self._left and self._ping is not None and self._on_ping is not None:
                payload, self._ping = bytes(self._ping), None
                self._on_ping(payload)
            if not self._left and not self._in_message and not self.closed:
                found = at
                if self._in_text:
                    self._end_text()
        if self._code is not None and len(self._code) < 2:
            self._code += data[at : at + 2]
        return found

    def _begin_payload(self, head: FrameHead) -> None:
        if head.is_control:
            self._in_text = False
            if head.opcode == PING and self._on_ping is not None and head.length <= MAX_CONTROL_BYTES:
                self._ping = bytearray()
            return
        self._in_message = not head.final
        if head.opcode != CONTINUATION:
            self._text.clear()
            self._reads = self._on_text is not None and head.opcode == TEXT and not head.reserved
        if len(self._text) + head.length > MAX_TEXT_BYTES:
            self._text.clear()
            self._reads = False
        self._in_text = self._reads

    def _end_text(self) -> None:
        message = bytes(self._text)
        self._text.clear()
        self._reads = self._in_text = False
        if self._on_text is not None:
            self._on_text(message)
