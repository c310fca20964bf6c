"""A configuration store in memory with the contract of etcd, for tests and benchmarks.

Revisions and leases behave as in etcd 3.5; the contract test runs against both stores.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec

from adapters.store.config_store import (
    Changed,
    Committed,
    Compacted,
    Delete,
    KeyValue,
    LeaseLost,
    Listing,
    Put,
    SameKey,
    StoreError,
    StoreUnavailable,
    Unchanged,
)

PROGRESS_S = 1.0
"""Interval (s) of the empty batches of an idle watch."""
MAX_OPERATIONS = 128
"""Maximum number of operations in one transaction: the default of etcd (--max-txn-ops)."""


class Lease(msgspec.Struct):
    """A lease as the store tracks it."""

    ttl_s: int
    expires_at: float
    keys: set[str]


class MemoryStore:
    """A ConfigStore whose content is lost when the process ends.

    Args:
        clock: monotonic time of the leases, in seconds.
        keep_revisions: number of revisions of history that are kept for watches; older revisions are compacted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, keep_revisions: int = 10_000) -> None:
        self._clock = clock
        self._keep_revisions = keep_revisions
        self._items: dict[str, KeyValue] = {}
        self._revision = 1
        self._compacted_revision = 0
        self._history: deque[tuple[Changed, ...]] = deque()
        self._leases: dict[int, Lease] = {}
        self._last_lease_id = 0
        self._closed = False
        self._wake = asyncio.Event()

    async def get(self, key: str) -> KeyValue | None:
        """Return the current state of a key, or None if it does not exist."""
        self._begin()
        return self._items.get(key)

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """Return every key under `prefix` at one revision; without `values`, each value is empty."""
        self._begin()
        found = [self._items[key] for key in sorted(self._items) if key.startswith(prefix)]
        shown = found if values else [msgspec.structs.replace(item, value=b"") for item in found]
        return Listing(items=tuple(shown), revision=self._revision)

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """Apply all of `do` atomically if all of `expect` holds; otherwise change nothing.

        Raises:
            LeaseLost: a Put names a lease that has expired or was revoked.
            StoreError: too many operations, or two on one key.
        """
        self._begin()
        self._check_operations(expect, do)
        if not all(self._holds(expectation) for expectation in expect):
            return Committed(succeeded=False, revision=self._revision)
        for operation in do:
            if isinstance(operation, Put) and operation.lease_id and operation.lease_id not in self._leases:
                raise LeaseLost(f"lease {operation.lease_id} is gone")
        self._write(do)
        return Committed(succeeded=True, revision=self._revision)

    async def grant_lease(self, ttl_s: int) -> int:
        """Create a lease that expires `ttl_s` (s) after its last keep-alive; returns its ID."""
        self._begin()
        if ttl_s < 1:
            raise StoreError(f"a lease must last at least 1 s, not {ttl_s}")
        self._last_lease_id += 1
        self._leases[self._last_lease_id] = Lease(ttl_s, self._clock() + ttl_s, set())
        return self._last_lease_id

    async def keep_alive(self, lease_id: int) -> None:
        """Renew a lease once; raises LeaseLost if the lease has expired or was revoked."""
        self._begin()
        self.renew_lease(lease_id, 0.0)

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        """Renew a lease once, in any thread; raises LeaseLost if the lease has expired or was revoked."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        lease, now = self._leases.get(lease_id), self._clock()
        if lease is None or lease.expires_at <= now:
            raise LeaseLost(f"lease {lease_id} is gone")
        lease.expires_at = now + lease.ttl_s

    async def revoke_lease(self, lease_id: int) -> None:
        """Revoke a lease and delete its keys; does nothing if the lease has expired or was revoked before."""
        self._begin()
        self._end_lease(lease_id)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """Yield batches of all changes under `prefix` with a revision above `after_revision`, in order."""
        seen = after_revision
        self._begin()
        if seen > self._revision:
            raise Compacted(f"the store is at {self._revision}, before {seen}")
        yield ()
        while True:
            wake = self._wake
            self._begin()
            if seen < self._compacted_revision:
                raise Compacted(f"revision {seen} is compacted, history begins after {self._compacted_revision}")
            batch = tuple(change for change in self._since(seen) if change.key.startswith(prefix))
            seen = self._revision
            if not batch:
                await self._wait(wake)
            yield batch

    def compact(self, revision: int) -> None:
        """Discard the history up to `revision`; watches that need it raise Compacted."""
        self._compacted_revision = max(self._compacted_revision, min(revision, self._revision))
        while self._history and self._history[0][0].revision <= self._compacted_revision:
            self._history.popleft()
        self._wake_watches()

    async def close(self) -> None:
        """End the watches; every further call raises StoreUnavailable."""
        self._closed = True
        self._wake_watches()

    def _begin(self) -> None:
        """Delete the keys of expired leases; called before every operation.

        Raises:
            StoreUnavailable: the store is closed.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        now = self._clock()
        for lease_id in [expired_id for expired_id, lease in self._leases.items() if lease.expires_at <= now]:
            self._end_lease(lease_id)

    def _check_operations(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> None:
        if len(expect) > MAX_OPERATIONS or len(do) > MAX_OPERATIONS:
            raise StoreError(f"too many operations in one transaction: {MAX_OPERATIONS} are allowed")
        if len({operation.key for operation in do}) < len(do):
            raise StoreError("two operations on one key in one transaction")

    def _holds(self, expectation: Unchanged | SameKey) -> bool:
        current = self._items.get(expectation.key)
        if isinstance(expectation, SameKey):
            return expectation.create_revision == (current.create_revision if current else 0)
        return expectation.mod_revision == (current.mod_revision if current else 0)

    def _write(self, do: Iterable[Put | Delete]) -> None:
        """Apply operations as one revision; operations without effect create no revision."""
        revision = self._revision + 1
        changes = tuple(
            Changed(key=operation.key, now=self._apply(operation, revision), revision=revision)
            for operation in do
            if isinstance(operation, Put) or operation.key in self._items
        )
        if not changes:
            return
        self._revision = revision
        self._history.append(changes)
        if len(self._history) > self._keep_revisions:
            self.compact(self._history[0][0].revision)
        self._wake_watches()

    def _apply(self, operation: Put | Delete, revision: int) -> KeyValue | None:
        before = self._items.pop(operation.key, None)
        if before is not None and before.lease_id:
            self._leases[before.lease_id].keys.discard(operation.key)
        if isinstance(operation, Delete):
            return None
        if operation.lease_id:
            self._leases[operation.lease_id].keys.add(operation.key)
        now = KeyValue(
            key=operation.key,
            value=operation.value,
            create_revision=before.create_revision if before else revision,
            mod_revision=revision,
            lease_id=operation.lease_id,
        )
        self._items[operation.key] = now
        return now

    def _end_lease(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._write([Delete(key) for key in sorted(lease.keys)])
            del self._leases[lease_id]

    def _since(self, revision: int) -> Iterable[Changed]:
        # The search starts at the newest revision, because a watch is usually one revision behind.
        missed: list[tuple[Changed, ...]] = []
        for changes in reversed(self._history):
            if changes[0].revision <= revision:
                break
            missed.append(changes)
        return (change for changes in reversed(missed) for change in changes)

    async def _wait(self, wake: asyncio.Event) -> None:
        """Return when a change is written, the next lease expires, or PROGRESS_S has passed."""
        now = self._clock()
        expiries = [lease.expires_at - now for lease in self._leases.values()]
        try:
            async with asyncio.timeout(max(0.01, min([PROGRESS_S, *expiries]))):
                await wake.wait()
        except TimeoutError:
            pass

    def _wake_watches(self) -> None:
        self._wake.set()
        self._wake = asyncio.Event()
