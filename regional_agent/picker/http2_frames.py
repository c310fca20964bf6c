"""The frames of HTTP/2 that a server of gRPC receives and sends: their numbers, their limits, and how they are written.

Source: https://www.rfc-editor.org/rfc/rfc9113
"""

from __future__ import annotations

from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

HEAD_BYTES: Final = 9
"""Size (bytes) of the head of a frame."""

MAX_FRAME_BYTES: Final = 16384
"""Maximum size (bytes) of the payload of a frame, in both directions: the value that holds without a setting."""

MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM: Final = 2**31 - 1
DEFAULT_WINDOW_BYTES: Final = 65535
DEFAULT_TABLE_BYTES: Final = 4096

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
"""Types of frames."""

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITIZED: Final = 32
"""Flags of frames."""

_PRIORITY_BYTES: Final = 5

HEADER_TABLE_SIZE: Final = 1
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
"""Numbers of settings."""

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
"""Error codes."""

_HEAD: Final = Struct(">BHBBL")
_SETTING: Final = Struct(">HL")
_NUMBER: Final = Struct(">L")
_NUMBERS: Final = Struct(">LL")


class Http2Error(Exception):
    """The client has violated HTTP/2, or a limit; the connection ends with an error code."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def frame_head(size_bytes: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the head of a frame whose payload has `size_bytes`."""
    head: bytes = _HEAD.pack(size_bytes >> 16, size_bytes & 0xFFFF, kind, flags, stream)
    return head


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    """Return the frame that states settings, by their numbers."""
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(name, value) for name, value in values.items()]))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings of a client, in order; raises Http2Error for values out of bounds, and for a cut payload."""
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS ends within a setting")
    settings = list(_SETTING.iter_unpack(payload))
    for name, value in settings:
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            raise Http2Error(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if name == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
            raise Http2Error(PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of bounds")
    return settings


def window_update_frame(stream: int, grown_bytes: int) -> bytes:
    """Return the frame by which the client may send `grown_bytes` more; `stream` 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(grown_bytes))


def reset_frame(stream: int, code: int) -> bytes:
    """Return the frame that ends a stream with an error code."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway_frame(last_stream: int, code: int) -> bytes:
    """Return the frame that announces the end of the connection; streams above `last_stream` were not processed."""
    return frame(GOAWAY, 0, 0, _NUMBERS.pack(last_stream, code))


def number_of(payload: bytes, frame_name: str) -> int:
    """Return the number in a frame, without its reserved bit; raises Http2Error for a payload of another size."""
    if len(payload) != _NUMBER.size:
        raise Http2Error(FRAME_SIZE_ERROR, f"{frame_name} has {len(payload)} bytes")
    return int.from_bytes(payload, "big") & MAX_WINDOW_BYTES


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a DATA or HEADERS frame without its padding; raises Http2Error if it has only padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "a frame has more padding than bytes")
    end = len(payload) - payload[0]
    return payload[1:end]


def header_block(payload: bytes, flags: int) -> bytes:
    """Return the block of a HEADERS frame without its padding and priority; raises Http2Error if it has no more."""
    block = unpadded(payload, flags)
    if not flags & PRIORITIZED:
        return block
    if len(block) < _PRIORITY_BYTES:
        raise Http2Error(FRAME_SIZE_ERROR, "HEADERS ends within its priority")
    return block[_PRIORITY_BYTES:]
