"""The notice that an endpoint is about to be removed: its spot instance is reclaimed, or its node drained."""

from __future__ import annotations

from typing import Final

HEADER: Final = b"x-preemption-notice"
"""Response header of an endpoint: time (s) for which the endpoint receives no new requests."""

DEFAULT_NOTICE_S = 600.0
"""Time (s) for which an endpoint receives no new requests after a notice that states no valid time."""

MAX_NOTICE_S = 86_400.0


def notice_s(value: bytes) -> float:
    """Return the time (s) in a header value, at most MAX_NOTICE_S; the default if the value is not a positive
    integer."""
    text = value.strip()
    if not text.isdigit() or len(text) > 9 or int(text) == 0:
        return DEFAULT_NOTICE_S
    return min(float(int(text)), MAX_NOTICE_S)
