"""Recent events in the store, written by the leader and read by every control plane, and the log that readers follow.

Entries are numbered without a gap and never changed. Plan steps, and entries of all other kinds, have a limit beyond
which the oldest are removed. Only infrequent events are written: decisions, and plan steps at the rate that
`plan_history` bounds. The log is therefore the same at every control plane: an event has one id everywhere. A reader
follows it at its own pace, and may resume at any control plane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from random import Random
from typing import Any

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Changed, ConfigStore, Delete, Put, SameKey, Unchanged
from adapters.store.informer import Informer, WatchLimits

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


MAX_PLANS = 300
"""Maximum number of entries of plan steps in the journal."""

MAX_OTHERS = 700
"""Maximum number of entries of all other kinds in the journal."""

MAX_AT_ONCE = 40
"""Maximum number of entries in one transaction, which also removes at most as many for each of MAX_PLANS and
MAX_OTHERS: etcd accepts 128 operations."""

_log = structlog.get_logger(__name__)


class JournalEntry(msgspec.Struct, frozen=True):
    """One event as it is stored."""

    number: int
    """Number of the entry, from 1 without gaps."""
    epoch: int
    """Fencing epoch of the leader that wrote the entry."""
    at: float
    """Unix time (s) by that leader's clock."""
    kind: EventKind
    data: Any
    """The event's data; see docs/api.md, Events."""


class Journal:
    """Follows the journal, and writes it while this control plane leads.

    Args:
        store: the fleet's configuration store.
        rng: source of the backoff's jitter.
        on_entry: called with each entry, in order.
        on_removed: called with the number of each removed entry.
        backoff_cap_s: maximum wait between two tries to reach an unavailable store, in seconds.
    """

    def __init__(
        self,
        store: ConfigStore,
        *,
        rng: Random,
        on_entry: Callable[[JournalEntry], None],
        on_removed: Callable[[int], None],
        backoff_cap_s: float,
    ) -> None:
        self._store = store
        self._on_entry = on_entry
        self._on_removed = on_removed
        self._kinds: dict[int, EventKind | None] = {}
        """Kind of each entry, by number; None if the entry cannot be decoded."""
        self.informer = Informer(
            store, keys.JOURNAL, self._changed, rng=rng, limits=WatchLimits(backoff_cap_s=backoff_cap_s)
        )

    async def write(self, news: Sequence[tuple[EventKind, Any]], epoch: int, at: float) -> bool:
        """Write at most the first MAX_AT_ONCE events, as the leader of `epoch`.

        Returns False, with nothing written, if that leadership has ended or the journal has entries that this control
        plane has not received; the caller compares again and retries.

        Raises:
            StoreError: the store refuses or is unreachable; whether the events were written is unknown.
        """
        first = max(self._kinds, default=0) + 1
        entries = [
            JournalEntry(number, epoch, at, kind, data)
            for number, (kind, data) in enumerate(news[:MAX_AT_ONCE], start=first)
        ]
        surplus = self._surplus([entry.kind for entry in entries])
        done = await self._store.commit(
            [SameKey(keys.LEADER, epoch), Unchanged(keys.journal_entry(first), 0)],
            [
                *(Put(keys.journal_entry(entry.number), encode(entry)) for entry in entries),
                *(Delete(keys.journal_entry(number)) for number in surplus),
            ],
        )
        return done.succeeded

    def _surplus(self, added: Sequence[EventKind]) -> list[int]:
        """Return the numbers of the entries to remove, so that the new entries fit within the limits."""
        surplus: list[int] = []
        for of_plans, limit in ((True, MAX_PLANS), (False, MAX_OTHERS)):
            kept = [number for number, kind in self._kinds.items() if (kind is EventKind.PLAN) is of_plans]
            excess = len(kept) + sum((kind is EventKind.PLAN) is of_plans for kind in added) - limit
            surplus += sorted(kept)[: min(max(0, excess), MAX_AT_ONCE)]
        return surplus

    def _changed(self, change: Changed) -> None:
        number = int(change.key.removeprefix(keys.JOURNAL))
        if change.now is None:
            self._kinds.pop(number, None)
            self._on_removed(number)
            return
        try:
            entry = decode(change.now.value, JournalEntry)
        except CodecError as error:
            self._kinds[number] = None
            _log.warning("journal entry cannot be decoded", key=change.key, reason=str(error))
            return
        self._kinds[number] = entry.kind
        self._on_entry(entry)
