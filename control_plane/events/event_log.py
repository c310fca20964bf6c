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
"""Events kept; a reader that is further behind misses events."""

MAX_NUMBER = 15
"""Digits of the number in an id."""


class EventKind(StrEnum):
    """The subject of an event."""

    LEADERSHIP = "leadership"
    """Another control plane leads, or this one has stopped leading."""
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
    """The same at every control plane: send it as Last-Event-ID to resume after it. Empty: a local event."""
    at: float
    """Unix time (s)."""
    kind: EventKind
    data: Any
    """By kind; see docs/api.md, Events."""


def event_id(epoch: int, number: int) -> str:
    """The id of a journal entry. The epoch distinguishes it from an entry of a store that was wiped since."""
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
        """Whether the log is closed to new events, so that readers stop."""

    @property
    def end(self) -> int:
        """The position after the newest event."""
        return self._next

    def add(self, event: FleetEvent) -> None:
        """Append an event, and wake readers."""
        self._events.append(event)
        self._next += 1
        self.wake()

    def add_local(self, kind: EventKind, data: Any) -> None:
        """Append an event of this control plane alone. It has no id, so that no reader can resume after it."""
        self.add(FleetEvent("", self._clock(), kind, data))

    def after(self, last_id: str | None) -> tuple[int, bool]:
        """The position after the event of this id, and whether all later events are kept; without an id, the end.

        Where the event itself is no longer kept or unknown, the position of the oldest later event.
        """
        if last_id is None:
            return self._next, True
        known = [(self.oldest + index, event.id) for index, event in enumerate(self._events) if event.id]
        at = next((index for index, (_, id_) in enumerate(known) if id_ == last_id), None)
        if at is not None:
            numbers = [_number(id_) for _, id_ in known[at:]]
            return known[at][0] + 1, numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        number = _number(last_id)
        # An id with a kept number and another epoch is from another store: it does not determine a position here.
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
        """The events from a position on; None where some of them are no longer kept."""
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
        """The position of the oldest event kept."""
        return self._next - len(self._events)

    def wake(self) -> None:
        """Let waiting readers check what they wait for."""
        self._news.set()
        self._news = asyncio.Event()


def _number(id_: str) -> int:
    """The number of an event id; 0 where the string is not an event id."""
    epoch, _, number = id_.partition("-")
    valid = all(part.isascii() and part.isdecimal() and len(part) <= MAX_NUMBER for part in (epoch, number))
    return int(number) if valid else 0
