"""W3C Trace Context (https://www.w3.org/TR/trace-context/): continues a caller's trace, or starts one.

An agent that exports no spans forwards the caller's parent id unchanged: a new id would refer to a span that does not
exist.
"""

from __future__ import annotations

import re
from typing import Final

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_LENGTH: Final = 55
"""Length of a traceparent of version 00; later versions may append fields."""


def continue_trace(traceparent: bytes) -> str | None:
    """Returns a traceparent for forwarding, or None if it is invalid."""
    if len(traceparent) > 512 or not _TRACEPARENT.fullmatch(traceparent):
        return None
    if traceparent.startswith(b"00-") and len(traceparent) != _LENGTH:
        return None
    return traceparent.decode("latin-1")


def start_trace(trace_id: str) -> str:
    """Starts a trace: sampled, so that the tracing backend decides what to record.

    Args:
        trace_id: 32 lower-case hexadecimal digits; the last 16, which become the parent id, are not all zero.
    """
    return f"00-{trace_id}-{trace_id[16:]}-01"
