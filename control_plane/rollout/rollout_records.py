"""Rollouts in the store: the one under way, and the last ones that are over."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, Unchanged
from penstock.rollout.state_machine import Rollout

MAX_ENDED = 100
"""Rollouts that are over and kept."""

_log = structlog.get_logger(__name__)


class StoredRollout(msgspec.Struct, frozen=True):
    """The newest rollout as the store has it."""

    rollout: Rollout | None
    """None before the first, or where it cannot be read."""
    revision: int
    """Of its key; 0 where there is none."""


def changes(after: Sequence[Rollout]) -> list[Put | Delete]:
    """What to write so that the last of these is the newest, and those that are over are among the ended."""
    do: list[Put | Delete] = [Put(keys.ROLLOUT, encode(after[-1]))]
    for one in after:
        if one.is_over:
            do.append(Put(keys.ended_rollout(one.number), encode(one)))
            if one.number > MAX_ENDED:
                do.append(Delete(keys.ended_rollout(one.number - MAX_ENDED)))
    return do


class RolloutRecords:
    """Reads rollouts, and writes them for one leadership at a time."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def newest(self) -> StoredRollout:
        """The rollout under way, or the last one.

        Raises:
            StoreError: the store cannot be read.
        """
        item = await self._store.get(keys.ROLLOUT)
        return StoredRollout(None, 0) if item is None else StoredRollout(_readable(item), item.mod_revision)

    async def ended(self) -> list[Rollout]:
        """Those that are over, newest first.

        Raises:
            StoreError: the store cannot be read.
        """
        items = (await self._store.list(keys.ENDED_ROLLOUTS)).items
        found = [one for one in (_readable(item) for item in items) if one is not None]
        return sorted(found, key=lambda one: -one.number)

    async def write(self, after: Sequence[Rollout], revision: int, epoch: int) -> bool:
        """Write for the leader of `epoch`; False where it leads no more, or somebody else wrote meanwhile.

        Args:
            after: every state that the rollouts went through, the newest last.
            revision: what the key was when it was read.

        Raises:
            StoreError: the store refuses or cannot be reached, and whether it was written is uncertain.
        """
        expect: list[SameKey | Unchanged] = [SameKey(keys.LEADER, epoch), Unchanged(keys.ROLLOUT, revision)]
        return (await self._store.commit(expect, changes(after))).succeeded


def _readable(item: KeyValue) -> Rollout | None:
    try:
        return decode(item.value, Rollout)
    except CodecError as error:
        _log.warning("rollout cannot be read", key=item.key, reason=str(error))
        return None
