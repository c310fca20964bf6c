"""Which endpoints of a pool the wait of a request is judged by, and how many waiting requests precede it there.

Not every endpoint can serve every request: context lengths, adapters and kinds of engines differ. A request starts at
the first free slot of those that can serve it. Waiting requests that can use only some of these leave the others free.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple


class QueuePosition(NamedTuple):
    """Endpoints that can serve a request, and its position in the queue there."""

    without: frozenset[str]
    """Names of the other endpoints of the pool."""
    ahead: int
    """Waiting requests that would start there before it."""


def queue_positions(
    names: Set[str], unable: frozenset[str], waiting: Mapping[frozenset[str], int], ahead: int
) -> tuple[QueuePosition, ...]:
    """Return the sets of endpoints by which the wait of a request is judged: the shortest wait counts.

    These are all that can serve the request, and of them those that no request with fewer endpoints can use.

    Args:
        names: the endpoints of the pool.
        unable: those that cannot serve the request.
        waiting: number of waiting requests by the endpoints that cannot serve them; all can serve the others.
        ahead: waiting requests that precede the request.
    """
    own = frozenset(names) - unable
    elsewhere = narrower = 0
    left = own
    for others, count in waiting.items():
        if own <= others:
            elsewhere += count
        elif own & others:
            narrower += count
            left &= others
    position = QueuePosition(unable, max(0, ahead - elsewhere))
    if not narrower or not left:
        return (position,)
    return position, QueuePosition(frozenset(names) - left, max(0, position.ahead - narrower))
