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
    """The set of the wheel that contains the entry. An entry that discards itself from it is not checked any more."""

    def check(self, now: float) -> float:
        """Execute the actions that are due at `now` (s); returns the time (s) of the next check."""


Entry = TypeVar("Entry", bound=Checked)


class TimerWheel(Generic[Entry]):
    """Entries by the time of their next check. Adding and removing is O(1): most entries leave before a check."""

    def __init__(self) -> None:
        """Create an empty wheel."""
        self.next: set[Entry] = set()
        """The entries that are checked at the next turn. An entry adds itself, with this set as its slot."""
        self._later: dict[int, set[Entry]] = {}

    def __iter__(self) -> Iterator[Entry]:
        yield from self.next
        for slot in self._later.values():
            yield from slot

    def turn(self, now: float) -> None:
        """Check the entries that are due at `now` (s)."""
        for number in [number for number in self._later if number * SLOT_S <= now]:
            for entry in self._later.pop(number):
                self.next.add(entry)
                entry.slot = self.next
        for entry in list(self.next):
            try:
                again_at = entry.check(now)
            except Exception:
                # A defect in the check of one request must not suspend the deadlines of the other requests.
                log.exception("the check of a request failed")
                again_at = now + RETRY_S
            if again_at > now + SLOT_S and entry in self.next:
                self.next.remove(entry)
                slot = self._later.setdefault(int(again_at / SLOT_S), set())
                slot.add(entry)
                entry.slot = slot
