"""The audit log in the store: an entry and the change it records are written in one transaction or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import structlog

from adapters.access.callers import Caller
from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, StoreError, Unchanged
from penstock.log_chains.audit_log_chain import NONE_REMOVED, AuditEntry, AuditHead, ChainFault, RemovedEntries, sealed

MAX_TRIES = 20
"""Maximum number of tries of an append; each failed try means that a concurrent append succeeded."""

PAGE = keys.AUDIT_BLOCK
"""Number of entries in one read of the store."""

MAX_REASON = 1_000
MAX_SIDE_BYTES = 16 * 1024
"""Maximum size (bytes) of `before` and of `after`, as JSON; a larger value is refused, so callers pass a summary of
it."""

_log = structlog.get_logger(__name__)


class ChangeRefused(Exception):
    """A precondition of the change does not hold in the store: neither the change nor its entry was written."""


class AuditedAction(msgspec.Struct, frozen=True):
    """An action of a caller, as its audit entry describes it."""

    caller: Caller
    action: str
    """`noun.verb`."""
    target: str
    """The object of the action."""
    reason: str
    """The caller's reason; at most MAX_REASON characters are recorded."""
    before: Any = None
    """The target before the action: any JSON value, at most MAX_SIDE_BYTES."""
    after: Any = None
    """The target after the action, with the same limit."""


class AuditLog:
    """Appends to the log and reads it.

    Args:
        store: the fleet's configuration store.
        clock: Unix time, in seconds.
    """

    def __init__(self, store: ConfigStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def record(
        self,
        made: AuditedAction,
        *,
        expect: Sequence[Unchanged | SameKey] = (),
        do: Sequence[Put | Delete] = (),
    ) -> AuditEntry:
        """Make the change `do` if all of `expect` holds, and append the entry of `made`, in one transaction.

        For a dry run only `expect` is checked, and the entry that would be appended is returned.

        Args:
            expect: preconditions in the store: at least the revision of each key that `do` writes.
            do: the change; if empty, only the entry is written.

        Raises:
            ChangeRefused: a precondition of `expect` does not hold.
            StoreUnavailable: the store is unavailable; whether the change and its entry were written is unknown.
            StoreError: the store refuses, or MAX_TRIES tries met concurrent appends.
            ValueError: `before` or `after` is too large.
        """
        before, after = _bounded("before", made.before), _bounded("after", made.after)
        for attempt in range(MAX_TRIES):
            head, revision = await self._head()
            entry = sealed(
                AuditEntry(
                    seq=head.seq + 1,
                    at=self._clock(),
                    caller=made.caller.name,
                    role=made.caller.role.value,
                    action=made.action,
                    target=made.target,
                    reason=made.reason[:MAX_REASON],
                    previous=head.hash,
                    before=before,
                    after=after,
                )
            )
            if made.caller.is_dry_run:
                if not (await self._store.commit(list(expect), [])).succeeded:
                    raise ChangeRefused(f"{made.target} is not as {made.action} expected it")
                return entry
            key = keys.audit_entry(entry.seq)
            committed = await self._store.commit(
                [*expect, Unchanged(keys.AUDIT_HEAD, revision), Unchanged(key, 0)],
                [*do, Put(key, encode(entry)), Put(keys.AUDIT_HEAD, encode(entry))],
            )
            if committed.succeeded:
                # The log of the process has each hash outside the store, so that a rewritten chain can be detected.
                _log.info(
                    "audit",
                    seq=entry.seq,
                    hash=entry.hash,
                    caller=entry.caller,
                    action=entry.action,
                    target=entry.target,
                )
                return entry
            stray = await self._store.get(key)
            if (await self._head())[1] == revision:
                # The head is unchanged, so another precondition failed.
                if stray is not None:
                    raise StoreError(f"{key} is there, beyond the end of the audit log: verify it before any change")
                raise ChangeRefused(f"{made.target} is not as {made.action} expected it")
            await asyncio.sleep(0.001 * attempt)
        raise StoreError(f"the audit log is too busy: {MAX_TRIES} tries to append failed")

    async def head(self) -> AuditHead:
        """Return number and hash of the last entry."""
        return (await self._head())[0]

    async def page(self, first: int, last: int) -> list[AuditEntry | ChainFault]:
        """Return the existing entries from `first` to `last` (inclusive), oldest first; each read has PAGE entries.

        An entry that cannot be decoded or is not authentic is a fault, so that the other entries remain readable.
        """
        entries: list[AuditEntry | ChainFault] = []
        for block in range(max(1, first) // PAGE, last // PAGE + 1):
            for item in (await self._store.list(keys.audit_block(block))).items:
                entry = _entry(item)
                if entry is not None and first <= entry.seq <= last:
                    entries.append(entry)
        return entries

    async def removed(self) -> tuple[RemovedEntries, int]:
        """Return what was removed, and the revision of its key.

        Raises:
            StoreError: the key cannot be read.
        """
        item = await self._store.get(keys.AUDIT_REMOVED)
        if item is None:
            return NONE_REMOVED, 0
        try:
            return decode(item.value, RemovedEntries), item.mod_revision
        except CodecError as error:
            raise StoreError(f"what was removed of the audit log cannot be read: {error}") from error

    async def entries(
        self, first: int = 1, last: int | None = None
    ) -> AsyncIterator[AuditEntry | ChainFault | RemovedEntries]:
        """Yield the entries from `first` to `last`, oldest first; None: to the head at the time of the call.

        In place of entries that were removed is what was removed.
        """
        end = last if last is not None else (await self.head()).seq
        removed, _ = await self.removed()
        if first <= removed.removed_up_to:
            yield removed
            first = removed.removed_up_to + 1
        while first <= end:
            upto = min(end, first - first % PAGE + PAGE - 1)
            for entry in await self.page(first, upto):
                yield entry
            first = upto + 1

    async def _head(self) -> tuple[AuditHead, int]:
        item = await self._store.get(keys.AUDIT_HEAD)
        if item is None:
            return AuditHead(), 0
        try:
            last = decode(item.value, AuditEntry)
        except CodecError as error:
            # Without a readable head no entry can be appended, and no change is made without its entry.
            raise StoreError(f"the end of the audit log cannot be read: {error}") from error
        return AuditHead(last.seq, last.hash), item.mod_revision


def _entry(item: KeyValue) -> AuditEntry | ChainFault | None:
    """Return the entry in a key; None if the value cannot be read and no entry has the key."""
    try:
        return decode(item.value, AuditEntry)
    except CodecError as error:
        seq = keys.audit_number(item.key)
        return ChainFault(seq, f"{item.key} cannot be read: {error}") if seq is not None else None


def _bounded(side: str, value: Any) -> Any:
    """Return the value after a JSON round trip, so that its hash is the same when the value is read from the store."""
    raw = msgspec.json.encode(value)
    if len(raw) > MAX_SIDE_BYTES:
        raise ValueError(f"`{side}` of an audit entry has {len(raw)} bytes, more than {MAX_SIDE_BYTES}")
    return msgspec.json.decode(raw)
