"""The notice that an endpoint is about to be removed: its spot instance is reclaimed, or its node drained."""

from __future__ import annotations

HEADER = b"x-preemption-notice"
"""A response header of an endpoint: seconds for which it receives no new requests."""

DEFAULT_NOTICE_S = 600.0
"""Time (s) for which an endpoint receives no new requests after a notice that states no valid time."""

MAX_NOTICE_S = 86_400.0


def notice_s(value: bytes) -> float:
    """The time (s) in a header, at most MAX_NOTICE_S; the default where it is no positive integer."""
    text = value.strip()
    if not text.isdigit() or len(text) > 9 or int(text) == 0:
        return DEFAULT_NOTICE_S
    return min(float(int(text)), MAX_NOTICE_S)
