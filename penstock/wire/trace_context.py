"""W3C Trace Context (https://www.w3.org/TR/trace-context/): continue a caller's trace, or start one.

No spans are made here, so a caller's parent id goes on as it is: an id of our own would name a span that nobody has.
"""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_LENGTH = 55
"""Of version 00; later versions may only append."""


def continued(traceparent: bytes) -> str | None:
    """A caller's traceparent as it goes on, or None where it means nothing."""
    if len(traceparent) > 512 or not _TRACEPARENT.fullmatch(traceparent):
        return None
    if traceparent.startswith(b"00-") and len(traceparent) != _LENGTH:
        return None
    return traceparent.decode("latin-1")


def started(trace_id: str) -> str:
    """A new trace: sampled, for whether to record it is for those who trace to say. Its parent id is part of its own.

    Args:
        trace_id: 32 lower-case hex digits, the last 16 of them not all zero.
    """
    return f"00-{trace_id}-{trace_id[16:]}-01"
