"""A read that is one chunk, whole and alone: engines send tokens so, and it can pass without being taken apart.

Nothing of it is interpreted: its first line is compared with the one that we would write before a body of that length.
"""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 4096
"""Larger ones are rare and go through the parser, as everything else does."""

_END: Final = b"\r\n"


def _size_lines() -> dict[int, bytes]:
    """The first line of each chunk by the length of the whole."""
    lines = [(b"%x\r\n" % size_bytes, size_bytes) for size_bytes in range(1, MAX_BODY_BYTES + 1)]
    return {len(line) + size_bytes + len(_END): line for line, size_bytes in lines}


_SIZE_LINES: Final = _size_lines()
_NONE: Final = b"no chunk"


def is_whole_chunk(data: bytes) -> bool:
    """Whether `data` is one chunk with a body, framed as we frame it; not the last chunk, which has none."""
    return data.startswith(_SIZE_LINES.get(len(data), _NONE)) and data.endswith(_END)
