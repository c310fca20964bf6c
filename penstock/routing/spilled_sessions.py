"""The sessions that one agent sent to other regions by spillover, so that their next turns find their prompts there."""

from __future__ import annotations

from typing import Final

MAX_SPILLED: Final = 16_384
"""Maximum number of sessions that one agent remembers, about 200 bytes each; the least recently spilled is forgotten
first."""

STAY_S: Final = 300.0
"""Time (s) after the last spilled request of a session for which the session stays: caches keep its prompt so long."""


class SpilledSessions:
    """The region that serves each spilled session, in bounded memory. An agent that restarts has none."""

    def __init__(self, most: int = MAX_SPILLED) -> None:
        """Create an empty record of at most `most` sessions."""
        self._most = most
        self._regions: dict[int, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def spilled(self, session: int, region: str, now: float) -> None:
        """Record that a request of a session was sent to a region by spillover at `now` (s, monotonic).

        Args:
            session: key of the session, which differs between tenants.
        """
        self._regions.pop(session, None)
        self._regions[session] = (region, now)
        if len(self._regions) > self._most:
            del self._regions[next(iter(self._regions))]

    def region_of(self, session: int, now: float) -> str:
        """Return the region in which a session stays while that region grants spill credits; empty for none."""
        found = self._regions.get(session)
        if found is None:
            return ""
        if now - found[1] > STAY_S:
            del self._regions[session]
            return ""
        return found[0]
