"""Entries of the fleet, and which of them a client uses, as a geo-DNS with health checks would answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One way in."""

    region: str
    url: str
    """http://host:port of the agent, or of the WAN's listener before it."""
    probe_url: str = ""
    """Where its health is checked; empty for `url`. Entries with the same one share one check."""

    @property
    def checked_at(self) -> str:
        """The URL whose health stands for this entry's."""
        return self.probe_url or self.url


class EntryHealth:
    """Whether an entry counts as up; a single probe does not change the state."""

    __slots__ = ("_against", "up")

    FAILURES_TO_FALL = 2
    SUCCESSES_TO_RISE = 2

    def __init__(self) -> None:
        self.up = True
        """The state before the first probe."""
        self._against = 0

    def observe(self, good: bool) -> None:
        """Take in one probe."""
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
    """The entry to try next: one that is believed up before one that is not, then in order; None if all were tried.

    Args:
        entries: of the client's site, nearest first.
        health: by `Entry.checked_at`; an entry without any is believed up.
        tried: URLs that this request has been to.
        named_regions: the regions that a 421 response named, best first; no other is used then.
    """

    def rank(entry: Entry) -> tuple[bool, int]:
        believed = health.get(entry.checked_at)
        order = 0 if named_regions is None else named_regions.index(entry.region)
        return believed is not None and not believed.up, order

    open_to_it = [
        entry
        for entry in entries
        if entry.url not in tried and (named_regions is None or entry.region in named_regions)
    ]
    return min(open_to_it, key=rank, default=None)
