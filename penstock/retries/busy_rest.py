"""How long a request that an endpoint rejected as busy is offered to no target."""

from __future__ import annotations

from typing import Final

BUSY_REST_S: Final = 0.5
"""Minimum time (s) for which the queue offers a request to no target after an endpoint rejected the request as busy.
Other requests are still offered, since a 429 may concern a quota of this request alone."""

MAX_BUSY_REST_S: Final = 4.0
BUSY_REST_SHARE: Final = 0.25
"""The rest is this share (0-1) of the time since the request arrived, so that few attempts span its longest wait."""


def busy_rest_s(waited_s: float) -> float:
    """The rest (s) of a request that has waited for `waited_s` since it arrived."""
    return min(MAX_BUSY_REST_S, max(BUSY_REST_S, waited_s * BUSY_REST_SHARE))
