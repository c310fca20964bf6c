"""Rollouts in the store: the newest rollout, and rollouts that ended recently."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, SameKey, Unchanged
from penstock.rollout.policy_rollout import Rollout

MAX_ENDED = 100
"""Maximum number of ended rollouts that are kept."""

_log = structlog.get_logger(__name__)


class StoredRollout(msgspec.Struct, frozen=True):
    """The newest rollout as the store has it."""

    rollout: Rollout | None
    """None before the first rollout, or if the stored rollout cannot be decoded."""
    revision: int
    """Revision of the rollout's key; 0 if the key does not exist."""


def changes(states: Sequence[Rollout]) -> list[Put | Delete]:
    """Return the writes that store the last state as the newest rollout and archive every state that is over."""
    do: list[Put | Delete] = [Put(keys.ROLLOUT, encode(states[-1]))]
    for rollout in states:
        if rollout.is_over:
            do.append(Put(keys.ended_rollout(rollout.number), encode(rollout)))
            if rollout.number > MAX_ENDED:
                do.append(Delete(keys.ended_rollout(rollout.number - MAX_ENDED)))
    return do


class RolloutStore:
    """Reads rollouts from the store, and writes them as the leader."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def newest(self) -> StoredRollout:
        """Return the current rollout, or the last one.

        Raises:
            StoreError: the store cannot be read.
        """
        item = await self._store.get(keys.ROLLOUT)
        return StoredRollout(None, 0) if item is None else StoredRollout(_decoded(item), item.mod_revision)

    async def ended(self) -> list[Rollout]:
        """Return the ended rollouts, newest first.

        Raises:
            StoreError: the store cannot be read.
        """
        items = (await self._store.list(keys.ENDED_ROLLOUTS)).items
        found = [rollout for rollout in map(_decoded, items) if rollout is not None]
        return sorted(found, key=lambda rollout: -rollout.number)

    async def write(self, states: Sequence[Rollout], revision: int, epoch: int) -> bool:
        """Write as the leader of `epoch`; False where that leadership has ended or the rollout has changed.

        Args:
            states: every state that the rollouts went through, the newest last.
            revision: revision of the key when it was read.

        Raises:
            StoreError: the store refuses or cannot be reached; whether the states were written is unknown.
        """
        expect: list[SameKey | Unchanged] = [SameKey(keys.LEADER, epoch), Unchanged(keys.ROLLOUT, revision)]
        return (await self._store.commit(expect, changes(states))).succeeded


def _decoded(item: KeyValue) -> Rollout | None:
    try:
        return decode(item.value, Rollout)
    except CodecError as error:
        _log.warning("stored rollout cannot be decoded", key=item.key, reason=str(error))
        return None
