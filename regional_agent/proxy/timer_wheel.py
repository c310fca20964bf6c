"""Looks at everything in flight, each at its time: a stream that flows every few seconds, the rest at every turn.

To look at thousands of open streams ten times a second costs as much as to relay what they bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

SLOT_S: Final = 0.1
"""How often the wheel is turned, and how exactly (s) it keeps a time."""


class Placed(Protocol):
    """What can leave a wheel."""

    slot: set[Any]
    """Where the wheel has it; for the wheel alone."""


class Watched(Placed, Protocol):
    """What is in a wheel."""

    def check(self, now: float) -> float:
        """Do what the time asks for; returns when to look again (clock, s)."""


Kind = TypeVar("Kind", bound=Watched)


class TimerWheel(Generic[Kind]):
    """Slots by time. To add and to remove is one step, since most of what comes is gone before it is looked at."""

    def __init__(self) -> None:
        """Empty."""
        self._next: set[Kind] = set()
        """Looked at when the wheel is turned next."""
        self._later: dict[int, set[Kind]] = {}

    def add(self, one: Kind) -> None:
        """Look at it from the next turn on."""
        self._next.add(one)
        one.slot = self._next

    def remove(self, one: Placed) -> None:
        """Look at it no more; also while it is being looked at."""
        one.slot.discard(one)

    def __iter__(self) -> Iterator[Kind]:
        yield from self._next
        for slot in self._later.values():
            yield from slot

    def turn(self, now: float) -> None:
        """Look at everything that is due at `now` (clock, s)."""
        for number in [number for number in self._later if number * SLOT_S <= now]:
            for one in self._later.pop(number):
                self.add(one)
        for one in list(self._next):
            again_at = one.check(now)
            if again_at > now + SLOT_S and one in self._next:
                self._next.remove(one)
                slot = self._later.setdefault(int(again_at / SLOT_S), set())
                slot.add(one)
                one.slot = slot
