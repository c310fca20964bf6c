"""Decides which regions no longer use their job store, by the marks that their agents change in the store."""

from __future__ import annotations

from typing import Final

LOST_S: Final = 120.0
"""Time (s) without a change of its mark after which a region is lost."""


class RegionMarks:
    """The marks of other regions, and since when they are the same."""

    def __init__(self) -> None:
        """Start without a mark: a region is lost at the earliest LOST_S after its mark was first read."""
        self._seen: dict[str, tuple[bytes, float]] = {}

    def is_lost(self, region: str, mark: bytes, now: float) -> bool:
        """Return whether a region is lost.

        Args:
            mark: what its agents have written last; empty if they have written nothing.
            now: monotonic time (s).
        """
        seen = self._seen.get(region)
        if seen is None or seen[0] != mark:
            self._seen[region] = mark, now
            return False
        return now - seen[1] >= LOST_S
