"""The interface of the configuration store: keys with revisions, transactions, leases and watches.

Two implementations pass the same contract test: etcd (`adapters/etcd/etcd_store.py`) and one in memory for tests
(`lab/memory_store.py`). The terms are etcd's (https://etcd.io/docs/v3.5/learning/api/): a store-wide revision grows
with every write.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec


class StoreError(Exception):
    """The store rejected or failed an operation."""


class StoreUnavailable(StoreError):
    """The store is unreachable, hung, or without a quorum; a later attempt may succeed."""


class Compacted(StoreError):
    """The history that a watch needs is compacted; list again and watch from the revision of the listing."""


class LeaseLost(StoreError):
    """The lease has expired or was revoked; every key attached to it is deleted."""


class KeyValue(msgspec.Struct, frozen=True):
    """The state of one key at a revision."""

    key: str
    value: bytes
    create_revision: int
    """Revision of the write that created the key; larger after the key was deleted and created again."""
    mod_revision: int
    """Revision of the last write of the key."""
    lease_id: int = 0
    """Lease with which the key expires; 0 for none."""


class Listing(msgspec.Struct, frozen=True):
    """Every key under a prefix at one revision, in key order."""

    items: tuple[KeyValue, ...]
    revision: int


class Put(msgspec.Struct, frozen=True):
    """Write a key."""

    key: str
    value: bytes
    lease_id: int = 0


class Delete(msgspec.Struct, frozen=True):
    """Delete a key; does nothing if the key does not exist."""

    key: str


class Unchanged(msgspec.Struct, frozen=True):
    """Expect that the key was last written at `mod_revision`; 0 expects that it does not exist."""

    key: str
    mod_revision: int


class SameKey(msgspec.Struct, frozen=True):
    """Expect that the key was created at `create_revision`, a fencing token; 0 expects that the key does not exist."""

    key: str
    create_revision: int


class Committed(msgspec.Struct, frozen=True):
    """Result of a transaction: whether all expectations held and all writes were applied, and the store's revision."""

    succeeded: bool
    revision: int


class Changed(msgspec.Struct, frozen=True):
    """One change that a watch reports; `now` is None if the key was deleted or its lease expired."""

    key: str
    now: KeyValue | None
    revision: int


class ConfigStore(Protocol):
    """A revisioned key-value store. Every call may raise StoreUnavailable, within a bounded time."""

    async def get(self, key: str) -> KeyValue | None:
        """Return the current state of a key, or None if it does not exist (a linearizable read)."""

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """Return every key under `prefix` at one revision; without `values`, each value is empty."""

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """Apply all of `do` atomically if all of `expect` holds; otherwise change nothing."""

    async def grant_lease(self, ttl_s: int) -> int:
        """Create a lease that expires `ttl_s` (s) after its last keep-alive; returns its ID."""

    async def keep_alive(self, lease_id: int) -> None:
        """Renew a lease once; raises LeaseLost if the lease has expired or was revoked."""

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        """Renew a lease once, like `keep_alive`, but block the calling thread, for at most `timeout_s` (s).

        For threads, whose renewals the event loop does not delay.
        """

    async def revoke_lease(self, lease_id: int) -> None:
        """Revoke a lease and delete its keys; does nothing if the lease has expired or was revoked before."""

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """Yield batches of all changes under `prefix` with a revision above `after_revision`, in order.

        An empty batch reports that the watch is active. Closing the iterator ends the watch.

        Raises:
            Compacted: the history after `after_revision` is compacted.
            StoreUnavailable: the store is unavailable.
        """

    async def close(self) -> None:
        """Close connections and threads; watches end."""
