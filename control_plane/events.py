"""What happens, in order, for whoever listens: a bounded log that readers follow at their own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

MOST_EVENTS = 1_000
"""Events kept; a reader that is further behind has missed some."""


class Kind(StrEnum):
    """What an event tells of."""

    LEADERSHIP = "leadership"
    """This control plane leads, or leads no more, or follows another one."""
    REGION = "region"
    """A region's state changed, as this control plane sees it."""
    PLAN = "plan"
    """Another plan is in force."""
    POLICY = "policy"
    """A policy is in force, or was refused."""
    ROLLOUT = "rollout"
    """A policy's rollout began, or entered another phase."""
    AUDIT = "audit"
    """Somebody changed something: an override, a rollout, policy."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    id: str
    """Names it among the events of this run of this control plane; give it as Last-Event-ID to resume after it."""
    at: float
    """Unix time (s)."""
    kind: Kind
    data: Any
    """What it is about; see docs/api.md, Events."""


class EventLog:
    """The newest events. Positions count all events of this run, from 0.

    Args:
        run: tells this run of the process from others.
        clock: Unix time, in seconds.
    """

    def __init__(self, run: str, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._next = 0
        self._news = asyncio.Event()
        self.closed = False
        """Whether nothing comes any more: readers end."""

    @property
    def end(self) -> int:
        """The position after the newest event."""
        return self._next

    def publish(self, kind: Kind, data: Any) -> None:
        """Add an event, and wake readers."""
        self._events.append(Event(f"{self._run}-{self._next}", self._clock(), kind, data))
        self._next += 1
        self._wake()

    def after(self, last_id: str | None) -> int | None:
        """The position after the event of this id; the end without one; None where it is not known (any more)."""
        if last_id is None:
            return self._next
        run, _, number = last_id.rpartition("-")
        if run != self._run or not number.isascii() or not number.isdecimal() or len(number) > 15:
            return None
        position = int(number) + 1
        return position if self.oldest <= position <= self._next else None

    def read(self, position: int) -> list[Event] | None:
        """The events from a position on; None where some of them are gone."""
        if position < self.oldest:
            return None
        return [self._events[at] for at in range(position - self.oldest, len(self._events))]

    async def wait(self, position: int) -> None:
        """Until there is an event at a position, or nothing comes any more."""
        while position >= self._next and not self.closed:
            await self._news.wait()

    def close(self) -> None:
        """End every reader."""
        self.closed = True
        self._wake()

    @property
    def oldest(self) -> int:
        """The position of the oldest event kept."""
        return self._next - len(self._events)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
