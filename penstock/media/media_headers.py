"""Reads the size of an image and the duration of audio from the first bytes of a file.

PNG: W3C "Portable Network Graphics", 11.2.1; JPEG: ITU-T T.81, B.2.2; WAV: Microsoft "Multimedia Programming Interface
and Data Specifications 1.0". Other formats are not read.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

AUDIO_BYTES_PER_S: Final = 16_000.0
"""Bytes per second of compressed audio (MP3 at 128 kbit/s), assumed if the header is not that of a WAV file."""

MIN_BYTES_PER_S: Final = 500.0
"""Lower bound (bytes/s) of the rate in a header: no audio that models accept has a lower rate."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")

_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of JPEG that begin a frame, which states its size."""


def pixels(text: bytes) -> int | None:
    """Return the area (pixels) of an image, from the beginning of its base64 text; None if the area cannot be read."""
    data = _decoded(text)
    if data.startswith(_PNG) and len(data) >= 24:
        return int.from_bytes(data[16:20], "big") * int.from_bytes(data[20:24], "big") or None
    if data.startswith(_JPEG):
        return _jpeg_pixels(data)
    return None


def audio_seconds(text: bytes, size_bytes: int) -> float:
    """Return the duration (s) of audio.

    Args:
        text: beginning of the base64 text of the file.
        size_bytes: size of the decoded file.
    """
    data = _decoded(text[:128])
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE" and len(data) >= 32:
        stated = int.from_bytes(data[28:32], "little")
        return size_bytes / max(MIN_BYTES_PER_S, float(stated))
    return size_bytes / AUDIO_BYTES_PER_S


def _jpeg_pixels(data: bytes) -> int | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _FRAMES:
            return int.from_bytes(data[at + 5 : at + 7], "big") * int.from_bytes(data[at + 7 : at + 9], "big") or None
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None


def _decoded(text: bytes) -> bytes:
    """Return the decoded beginning of a base64 text, in which JSON may have escaped slashes; empty if it is invalid."""
    text = text.replace(b"\\/", b"/").rstrip(b"=\\")
    if _NOT_BASE64.search(text):
        return b""
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except binascii.Error:
        return b""
