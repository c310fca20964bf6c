"""Drills in the store: the newest drill, and the drills that ended recently."""

from __future__ import annotations

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Delete, KeyValue, Put, StoreError
from penstock.drills.drill_state import Drill

MAX_ENDED = 100
"""Maximum number of ended drills in the store."""

_log = structlog.get_logger(__name__)


class UnreadableDrill(StoreError):
    """The newest drill cannot be decoded; the message has the reason and the remedy."""


class StoredDrill(msgspec.Struct, frozen=True):
    """The newest drill, as stored."""

    drill: Drill | None
    """None before the first drill."""
    revision: int
    """Revision of the drill's key; 0 if the key does not exist."""

    @property
    def next_number(self) -> int:
        """Number of the next drill."""
        return self.drill.number + 1 if self.drill is not None else 1


def changes(drill: Drill) -> list[Put | Delete]:
    """Return the writes that store a drill as the newest drill, and archive a drill that is over."""
    do: list[Put | Delete] = [Put(keys.DRILL, encode(drill))]
    if drill.is_over:
        do.append(Put(keys.ended_drill(drill.number), encode(drill)))
        if drill.number > MAX_ENDED:
            do.append(Delete(keys.ended_drill(drill.number - MAX_ENDED)))
    return do


class DrillStore:
    """Reads drills from the store.

    Args:
        store: the fleet's configuration store.
    """

    def __init__(self, store: ConfigStore) -> None:
        self._store = store

    async def newest(self) -> StoredDrill:
        """Return the drill under way, or the last drill.

        Raises:
            UnreadableDrill: the drill cannot be decoded.
            StoreError: the store cannot be read.
        """
        item = await self._store.get(keys.DRILL)
        if item is None:
            return StoredDrill(None, 0)
        try:
            return StoredDrill(decode(item.value, Drill), item.mod_revision)
        except CodecError as error:
            # The drill may be under way: another one would overwrite it, and use its number and drain.
            raise UnreadableDrill(
                f"the newest drill cannot be read, so drills neither begin nor continue: {error}; a drain that it set"
                " expires by itself; if no newer release wrote it, delete newest-drill in the store"
            ) from error

    async def every(self) -> dict[int, Drill]:
        """Return the newest drill and the stored ended drills, by number; drills that cannot be decoded are omitted.

        Raises:
            StoreError: the store cannot be read.
        """
        ended = (await self._store.list(keys.ENDED_DRILLS)).items
        newest = await self._store.get(keys.DRILL)
        found = [_decoded(item) for item in (*ended, newest) if item is not None]
        return {drill.number: drill for drill in found if drill is not None}


def _decoded(item: KeyValue) -> Drill | None:
    try:
        return decode(item.value, Drill)
    except CodecError as error:
        _log.warning("stored drill cannot be decoded", key=item.key, reason=str(error))
        return None
