"""The framing of chunks (RFC 9112, section 7.1) as engines send tokens: one chunk in one read."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 4096
"""Maximum size (bytes) of the body of a chunk that is recognised. Larger chunks are rare, and are parsed."""

SIZE_LINES: Final = [b"%x\r\n" % size_bytes for size_bytes in range(MAX_BODY_BYTES + 1)]
"""The first lines of chunks, by the length of the body, up to MAX_BODY_BYTES."""

CHUNK_END: Final = b"\r\n"


def _by_chunk_length() -> list[bytes]:
    """Return the first lines of chunks, by the length of the whole chunk; empty where no chunk has that length."""
    end_bytes = len(CHUNK_END)
    by_length = {len(line) + body_bytes + end_bytes: line for body_bytes, line in enumerate(SIZE_LINES) if body_bytes}
    return [by_length.get(length, b"") for length in range(max(by_length) + 1)]


_BY_CHUNK_LENGTH: Final = _by_chunk_length()
_MAX_CHUNK_BYTES: Final = len(_BY_CHUNK_LENGTH) - 1


def body_of_whole_chunk(data: bytes) -> int:
    """Return the offset of the body if `data` is exactly one chunk with a body, in the framing of this proxy, else 0.

    The last chunk of a response has no body.
    """
    length = len(data)
    if length > _MAX_CHUNK_BYTES:
        return 0
    line = _BY_CHUNK_LENGTH[length]
    return len(line) if data.startswith(line) and data.endswith(CHUNK_END) else 0
