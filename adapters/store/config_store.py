"""The interface of the configuration store: keys with revisions, transactions, leases and watches.

Two implementations pass one contract test: etcd (`adapters/etcd/etcd_store.py`) and an embedded one in memory
(`memory_store.py`). The terms are etcd's (https://etcd.io/docs/v3.5/learning/api/): a store-wide revision grows with
every write.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec


class StoreError(Exception):
    """The store rejected or failed an operation."""


class StoreUnavailable(StoreError):
    """The store is away, hung, or without a quorum; trying again later may work."""


class Compacted(StoreError):
    """The history that a watch needs is compacted; list again and watch from the revision of the listing."""


class LeaseLost(StoreError):
    """The lease has expired or was revoked; every key attached to it is gone."""


class KeyValue(msgspec.Struct, frozen=True):
    """One key as it stood at a revision."""

    key: str
    value: bytes
    create_revision: int
    """Revision of the write that made the key; a key deleted and made again has a larger one."""
    mod_revision: int
    """Revision of its last write."""
    lease_id: int = 0
    """The lease that the key dies with; 0 for none."""


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
    """Remove a key; one that is absent stays absent."""

    key: str


class Unchanged(msgspec.Struct, frozen=True):
    """Expect that the key was last written at `mod_revision`; 0 expects that it does not exist."""

    key: str
    mod_revision: int


class SameKey(msgspec.Struct, frozen=True):
    """Expect that the key is the one made at `create_revision`: what a fencing token checks; 0 as above."""

    key: str
    create_revision: int


class Committed(msgspec.Struct, frozen=True):
    """The answer to a transaction: whether every expectation held and so everything was done, and the revision."""

    succeeded: bool
    revision: int


class Changed(msgspec.Struct, frozen=True):
    """One change seen by a watch; `now` is None where the key was deleted or its lease expired."""

    key: str
    now: KeyValue | None
    revision: int


class ConfigStore(Protocol):
    """A revisioned key-value store. Every call may raise StoreUnavailable, within a bounded time."""

    async def get(self, key: str) -> KeyValue | None:
        """The key as it is now, or None (a linearizable read)."""

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """Every key under `prefix`, and the revision of that view; without `values`, each value is empty."""

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """Do all of `do` if all of `expect` holds, atomically; else nothing."""

    async def grant_lease(self, ttl_s: int) -> int:
        """A new lease that expires `ttl_s` after its last keep-alive; returns its id."""

    async def keep_alive(self, lease_id: int) -> None:
        """Renew the lease once; raises LeaseLost where it is gone."""

    async def revoke_lease(self, lease_id: int) -> None:
        """End the lease and delete its keys; one that is gone already is no error."""

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """Batches of changes under `prefix` with a revision above `after_revision`, in order, none left out.

        An empty batch is a sign of life. Raises Compacted or StoreUnavailable; closing the iterator ends the watch.
        """

    async def close(self) -> None:
        """Let go of connections and threads; watches end."""
