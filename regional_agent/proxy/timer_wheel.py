"""Checks the requests in progress at their due times: most at every turn, streams with progress every few seconds.

Checking thousands of open streams ten times a second would cost as much as forwarding their data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

SLOT_S: Final = 0.1
"""Interval (s) between turns, and the resolution of all times."""

RETRY_S: Final = 1.0
"""Time (s) after which a failed check is repeated."""

log = structlog.get_logger()


class Checked(Protocol):
    """An entry that a wheel checks."""

    slot: set[Any]
    """The slot of the entry, set by the wheel. An entry that discards itself from it is not checked any more."""

    def check(self, now: float) -> float:
        """Execute the actions that are due at `now` (s); returns the time (s) of the next check."""


Entry = TypeVar("Entry", bound=Checked)


class TimerWheel(Generic[Entry]):
    """Entries by the time of their next check. Adding and removing is O(1): most entries leave before a check."""

    def __init__(self) -> None:
        """Create an empty wheel."""
        self._next: set[Entry] = set()
        """The entries that are checked at the next turn."""
        self._later: dict[int, set[Entry]] = {}

    def add(self, entry: Entry) -> None:
        """Check `entry` from the next turn on."""
        self._next.add(entry)
        entry.slot = self._next

    def __iter__(self) -> Iterator[Entry]:
        yield from self._next
        for slot in self._later.values():
            yield from slot

    def turn(self, now: float) -> None:
        """Check the entries that are due at `now` (s)."""
        for number in [number for number in self._later if number * SLOT_S <= now]:
            for entry in self._later.pop(number):
                self.add(entry)
        for entry in list(self._next):
            try:
                again_at = entry.check(now)
            except Exception:
                # A defect in the check of one request must not suspend the deadlines of the other requests.
                log.exception("the check of a request failed")
                again_at = now + RETRY_S
            if again_at > now + SLOT_S and entry in self._next:
                self._next.remove(entry)
                slot = self._later.setdefault(int(again_at / SLOT_S), set())
                slot.add(entry)
                entry.slot = slot
