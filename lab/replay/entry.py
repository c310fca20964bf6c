"""Entries of the fleet, and the selection of a client's entry as by a geo-DNS with health checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """An entry of the fleet: the URL of an agent in a region."""

    region: str
    url: str
    """http://host:port of the agent, or of the WAN link in front of the agent."""
    probe_url: str = ""
    """URL of the health check; empty for `url`. Entries with the same URL share one check."""

    @property
    def checked_at(self) -> str:
        """The URL of the health check."""
        return self.probe_url or self.url


class EntryHealth:
    """Health state of an entry. A single probe does not change the state."""

    __slots__ = ("_against", "up")

    FAILURES_TO_FALL = 2
    SUCCESSES_TO_RISE = 2

    def __init__(self) -> None:
        self.up = True
        """Whether the entry is healthy; initially true."""
        self._against = 0

    def observe(self, good: bool) -> None:
        """Record the result of one probe."""
        self._against = 0 if good is self.up else self._against + 1
        if self._against >= (self.FAILURES_TO_FALL if self.up else self.SUCCESSES_TO_RISE):
            self.up = good
            self._against = 0


def choose_entry(
    entries: Sequence[Entry],
    health: Mapping[str, EntryHealth],
    tried: frozenset[str],
    named_regions: Sequence[str] | None,
) -> Entry | None:
    """The entry to try next: healthy entries before unhealthy entries, then in order; None if all were tried.

    Args:
        entries: entries of the client's site, nearest first.
        health: by `Entry.checked_at`; an entry without health state counts as healthy.
        tried: URLs that this request has tried.
        named_regions: the regions that a 421 response named, best first; None allows all regions.
    """

    def rank(entry: Entry) -> tuple[bool, int]:
        state = health.get(entry.checked_at)
        order = 0 if named_regions is None else named_regions.index(entry.region)
        return state is not None and not state.up, order

    candidates = [
        entry
        for entry in entries
        if entry.url not in tried and (named_regions is None or entry.region in named_regions)
    ]
    return min(candidates, key=rank, default=None)
