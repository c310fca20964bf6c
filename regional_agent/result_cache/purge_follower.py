"""Follows the purges of the result cache in the store."""

from __future__ import annotations

from random import Random

import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from penstock.result_cache.cache_purges import CachePurges

log = structlog.get_logger()


class PurgeFollower:
    """The purges in force. Unknown until the store has been read once, and while its value cannot be read, so that no
    purged response is found."""

    def __init__(self, store: ConfigStore, rng: Random) -> None:
        """Create a follower that `start` runs; `rng` adds jitter to reconnects."""
        self._known: CachePurges | None = CachePurges()
        self._informer = Informer(store, keys.CACHE_PURGES, self._on_change, rng=rng)

    @property
    def purges(self) -> CachePurges | None:
        """The purges in force; None while they are unknown."""
        return self._known if self._informer.synced else None

    def start(self) -> None:
        """Start to follow the store."""
        self._informer.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._informer.stop()

    def _on_change(self, change: Changed) -> None:
        if change.key != keys.CACHE_PURGES or change.now is None:
            return
        try:
            self._known = decode(change.now.value, CachePurges)
        except CodecError as error:
            log.error("purges of the result cache not read; no responses are kept or sent", reason=str(error))
            self._known = None
            return
        log.info("purges of the result cache changed", count=len(self._known.purges))
