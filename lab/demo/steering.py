"""Which entry a client is sent to: what a global DNS with health checks does in front of any such fleet. Pure.

It knows where clients are and which entries answer; of residency, load and models it knows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MISSES_TO_FALL = 2
"""Consecutive failures, of checks or of clients, that take an entry out."""

HITS_TO_RISE = 3
"""Consecutive good checks that bring it back."""

CHECK_EVERY_S = 0.25


class Entry(NamedTuple):
    """One agent's door for clients."""

    region: str
    agent: str


class Steering:
    """The table of entries that answer."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Everything is taken for up until it fails."""
        self._entries = tuple(entries)
        self._up = dict.fromkeys(entries, True)
        self._misses = dict.fromkeys(entries, 0)
        self._hits = dict.fromkeys(entries, 0)
        self._turn = 0

    def saw(self, entry: Entry, good: bool) -> None:
        """Take in a check, or the failure of a client's connection."""
        self._misses[entry] = 0 if good else self._misses[entry] + 1
        self._hits[entry] = self._hits[entry] + 1 if good else 0
        if self._misses[entry] >= MISSES_TO_FALL:
            self._up[entry] = False
        elif self._hits[entry] >= HITS_TO_RISE:
            self._up[entry] = True

    def is_up(self, entry: Entry) -> bool:
        """Whether clients are sent there."""
        return self._up[entry]

    def order(self, regions: Sequence[str]) -> list[Entry]:
        """Where a client goes, first to last: entries that are up, by `regions`; agents of one region take turns.

        Entries that are down come after all others, for the case that the checks are wrong.
        """
        self._turn += 1
        rank = {region: place for place, region in enumerate(regions)}
        turned = [self._entries[(i + self._turn) % len(self._entries)] for i in range(len(self._entries))]
        return sorted(
            (entry for entry in turned if entry.region in rank),
            key=lambda entry: (not self.is_up(entry), rank[entry.region]),
        )
