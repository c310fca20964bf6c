"""The epoch that plans carry: the leader's fencing epoch, above whatever epoch any agent obeys.

The fencing epoch is a revision of the store, and a store that was wiped or restored from a backup counts from where it
is then. Its plans would be refused by every agent that remembers a larger epoch. So what agents report to obey is the
measure: a base, kept in the store, is added to the fencing epoch, and raised when an agent obeys something newer than
this leader has planned. It is written like all else, by the leader alone, and never lowered.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError, Unchanged
from penstock.fleet.snapshot import HeldReport

_log = structlog.get_logger(__name__)


class EpochBase(msgspec.Struct, frozen=True):
    """What is added to fencing epochs in this store."""

    base: int


class PlanEpoch:
    """The epoch of one leadership's plans; begin each with `adopt`."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store
        self._fencing = 0
        self._base = 0
        self._mod_revision = 0

    @property
    def value(self) -> int:
        """What plans carry."""
        return self._base + self._fencing

    async def adopt(self, fencing_epoch: int) -> None:
        """Begin under a fencing epoch.

        Raises:
            StoreError: the store cannot be read, or what it has is not readable; begin again.
        """
        self._fencing = fencing_epoch
        item = await self._store.get(keys.EPOCH_BASE)
        self._base, self._mod_revision = 0, 0
        if item is not None:
            try:
                self._base = decode(item.value, EpochBase).base
            except CodecError as error:
                raise StoreError(f"{keys.EPOCH_BASE}: {error}") from None
            self._mod_revision = item.mod_revision

    async def overtake(self, agents: Iterable[HeldReport], generation: int) -> None:
        """See to it that plans supersede what agents obey.

        Args:
            agents: their newest reports.
            generation: the newest of this store's plans.

        Raises:
            StoreError: the store cannot be written, or another leads.
        """
        obeyed = max(((held.report.plan_epoch, held.report.plan_generation) for held in agents), default=(0, 0))
        if obeyed <= (self.value, generation):
            return
        base = obeyed[0] + 1 - self._fencing
        done = await self._store.commit(
            [SameKey(keys.LEADER, self._fencing), Unchanged(keys.EPOCH_BASE, self._mod_revision)],
            [Put(keys.EPOCH_BASE, encode(EpochBase(base)))],
        )
        if not done.succeeded:
            raise StoreError("the epoch's base could not be raised: another leads, or has raised it")
        _log.warning(
            "agents obey plans of an earlier store: the epoch goes on from theirs", obeyed=obeyed[0], base=base
        )
        self._base, self._mod_revision = base, done.revision
