"""The journal: recent events in the store, written by the leader and read by every control plane.

Entries are numbered without a gap and never changed. Plan steps, and entries of all other kinds, have a limit beyond
which the oldest are removed. Only infrequent events are written: decisions, and plan steps at the rate that
`plan_history` bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import Changed, ConfigStore, Delete, Put, SameKey, Unchanged
from adapters.store.informer import Informer, WatchLimits
from control_plane.events.event_log import EventKind

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
