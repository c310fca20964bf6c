"""The event log: a bounded, ordered log of events that each reader follows at its own pace.

The log is filled from the journal (`journal.py`) and is therefore the same at every control plane: an event has one id
everywhere, and a reader may resume at any control plane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

MAX_EVENTS = 1_000
"""Maximum number of events in the log; a reader that is further behind misses events."""

MAX_NUMBER = 15
"""Maximum number of digits of the epoch, and of the number, in an event id."""


class EventKind(StrEnum):
    """The subject of an event."""

    LEADERSHIP = "leadership"
    """Another control plane leads, or this control plane no longer leads."""
    REGION = "region"
    """A region's state changed, by the leader's snapshot."""
    PLAN = "plan"
    """Shares moved: a step of the plan."""
    POLICY = "policy"
    """A policy is in force, accepted, or refused."""
    ROLLOUT = "rollout"
    """A rollout began, or entered another phase."""
    AUDIT = "audit"
    """An audited change: of an override, a rollout, or a policy."""


class FleetEvent(msgspec.Struct, frozen=True):
    """One event."""

    id: str
    """Id of the event, the same at every control plane. Send the id as Last-Event-ID to resume after the event. Empty:
    a local event."""
    at: float
    """Unix time (s)."""
    kind: EventKind
    data: Any
    """Content by kind; see docs/api.md, Events."""


def event_id(epoch: int, number: int) -> str:
    """Return the id of a journal entry. The epoch distinguishes the id from ids of an earlier store."""
    return f"{epoch}-{number}"


class EventLog:
    """The newest events. Positions count the events added to this log, from 0.

    Args:
        clock: Unix time, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[FleetEvent] = deque(maxlen=MAX_EVENTS)
        self._next = 0
        self._news = asyncio.Event()
        self.closed = False
        """Whether the log is closed, so that readers stop."""

    @property
    def end(self) -> int:
        """The position after the newest event."""
        return self._next

    def add(self, event: FleetEvent) -> None:
        """Append an event, and wake the readers."""
        self._events.append(event)
        self._next += 1
        self.wake()

    def add_local(self, kind: EventKind, data: Any) -> None:
        """Append an event of this control plane alone. It has no id, so that no reader can resume after it."""
        self.add(FleetEvent("", self._clock(), kind, data))

    def after(self, last_id: str | None) -> tuple[int, bool]:
        """Return the position after the event of this id, and whether the log has all later events; for None, the end.

        If the log does not have the event, the position is that of the oldest later event; of the oldest event if the
        id does not determine a later event.
        """
        if last_id is None:
            return self._next, True
        known = [(self.oldest + index, event.id) for index, event in enumerate(self._events) if event.id]
        at = next((index for index, (_, id_) in enumerate(known) if id_ == last_id), None)
        if at is not None:
            numbers = [_number(id_) for _, id_ in known[at:]]
            return known[at][0] + 1, numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        number = _number(last_id)
        # An id whose number is in the log with another epoch is from another store, so it determines no position.
        if known and 0 < number < _number(known[-1][1]) and number not in {_number(id_) for _, id_ in known}:
            return next(position for position, id_ in known if _number(id_) > number), False
        return self.oldest, False

    async def wait_for(self, last_id: str | None, within_s: float) -> None:
        """Wait until the event of this id has arrived at this control plane, at most `within_s` seconds."""
        number = _number(last_id) if last_id is not None else 0
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.closed and number > max((_number(event.id) for event in self._events), default=0):
                    await self.wait(self._next)

    def read(self, position: int) -> list[FleetEvent] | None:
        """Return the events from a position to the end; None if the log no longer has some of them."""
        if position < self.oldest:
            return None
        return [self._events[at] for at in range(position - self.oldest, len(self._events))]

    async def wait(self, position: int, until: Callable[[], bool] = lambda: False) -> None:
        """Wait until there is an event at a position, `until` returns true after `wake`, or the log is closed."""
        while position >= self._next and not self.closed and not until():
            await self._news.wait()

    def close(self) -> None:
        """Close the log, so that every reader stops."""
        self.closed = True
        self.wake()

    @property
    def oldest(self) -> int:
        """The position of the oldest event in the log."""
        return self._next - len(self._events)

    def wake(self) -> None:
        """Wake waiting readers, which evaluate their conditions again."""
        self._news.set()
        self._news = asyncio.Event()


def _number(id_: str) -> int:
    """Return the number of an event id; 0 if the string is not an event id."""
    epoch, _, number = id_.partition("-")
    valid = all(part.isascii() and part.isdecimal() and len(part) <= MAX_NUMBER for part in (epoch, number))
    return int(number) if valid else 0
