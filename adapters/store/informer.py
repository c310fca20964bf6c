"""A live copy of every key under a prefix: list, then watch, and again after whatever breaks.

After Kubernetes' reflector (https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go), with
etcd's revisions to resume from. The copy is what the store held at one moment, at most `age_s` ago.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from random import Random
from types import MappingProxyType

import structlog

from adapters.backoff import full_jitter_s
from adapters.store.config_store import Changed, Compacted, ConfigStore, KeyValue, Listing, StoreError, StoreUnavailable

BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
"""Bound of the wait between two tries; with it, the copy is fresh again soon after the store is."""
SILENT_AFTER_S = 6.0
"""A watch that shows no sign of life for this long is given up: stores show one every second or fail on their own."""
RELIST_AFTER_S = 600.0
"""A watch is replaced by a fresh list this often, in case the store lost an event or was restored from a backup."""

_log = structlog.get_logger(__name__)


class Informer:
    """Keeps `items` equal to the store, and calls `on_change` for each change in the order of the store.

    What it missed while the history was compacted reaches `on_change` as the difference: the deletions, then what was
    written, in order of revision. `on_change` that raises is logged and the next change goes on.

    Args:
        store: what to copy.
        prefix: the keys to copy begin with it.
        on_change: None, or called in the event loop, after `items` has the change; must not block.
        rng: source of the jitter.
        silent_after_s: SILENT_AFTER_S.
        relist_after_s: RELIST_AFTER_S.
        backoff_cap_s: BACKOFF_CAP_S; longer for copies that nothing urgent depends on.
    """

    def __init__(
        self,
        store: ConfigStore,
        prefix: str,
        on_change: Callable[[Changed], None] | None = None,
        *,
        rng: Random,
        silent_after_s: float = SILENT_AFTER_S,
        relist_after_s: float = RELIST_AFTER_S,
        backoff_cap_s: float = BACKOFF_CAP_S,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._on_change = on_change
        self._rng = rng
        self._silent_after_s = silent_after_s
        self._relist_after_s = relist_after_s
        self._backoff_cap_s = backoff_cap_s
        self._items: dict[str, KeyValue] = {}
        self._revision: int | None = None
        self._heard_at = -math.inf
        self._broken = False
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def items(self) -> Mapping[str, KeyValue]:
        """The copy, by key; read-only, and changes as the store does."""
        return MappingProxyType(self._items)

    @property
    def synced(self) -> bool:
        """Whether the store has been listed once; stays true while the store is away."""
        return self._synced.is_set()

    @property
    def age_s(self) -> float:
        """Seconds since the store last showed that the copy is current; infinite before the first list."""
        return time.monotonic() - self._heard_at

    async def wait_synced(self) -> None:
        """Return once the store has been listed; bound it with asyncio.timeout."""
        await self._synced.wait()

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task = asyncio.create_task(self._run(), name=f"informer {self._prefix}")

    async def stop(self) -> None:
        """End, and return once nothing of it runs; `items` stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _run(self) -> None:
        failures = 0
        while True:
            began_at = time.monotonic()
            try:
                if self._revision is None:
                    self._replace(await self._store.list(self._prefix))
                await self._follow()
                continue
            except Compacted as error:
                self._revision = None
                self._report_break(str(error))
            except StoreError as error:
                self._report_break(str(error))
            except Exception as error:
                # A bug must not end the task: the copy would no longer be refreshed.
                self._revision = None
                self._report_break(f"unexpected {error!r}", exc_info=True)
            # A break soon after success counts on, or history that is compacted as fast as we list would spin.
            if self._heard_at - began_at > BACKOFF_CAP_S:
                failures = 0
            wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=self._backoff_cap_s, rng=self._rng)
            failures += 1
            await asyncio.sleep(wait_s)

    async def _follow(self) -> None:
        """Take changes from a watch until it breaks, or it is time to list again."""
        assert self._revision is not None
        # Spread, so that agents that started together do not list together.
        relist_at = time.monotonic() + self._relist_after_s * self._rng.uniform(0.5, 1.0)
        async with aclosing(self._store.watch(self._prefix, self._revision)) as batches:
            while time.monotonic() < relist_at:
                try:
                    async with asyncio.timeout(self._silent_after_s):
                        batch = await anext(batches)
                except TimeoutError as error:
                    raise StoreUnavailable(f"the watch was silent for {self._silent_after_s} s") from error
                except StopAsyncIteration as error:
                    raise StoreUnavailable("the watch ended") from error
                self._heard_at = time.monotonic()
                self._report_life()
                for change in batch:
                    self._apply(change)
                if batch:
                    self._revision = batch[-1].revision
        self._revision = None

    def _replace(self, listing: Listing) -> None:
        """Make the copy equal to a listing, and report the differences as changes."""
        listed = {item.key: item for item in listing.items}
        for key in [key for key in self._items if key not in listed]:
            self._apply(Changed(key=key, now=None, revision=listing.revision))
        for item in sorted(listing.items, key=lambda item: item.mod_revision):
            if self._items.get(item.key) != item:
                self._apply(Changed(key=item.key, now=item, revision=item.mod_revision))
        self._revision = listing.revision
        self._heard_at = time.monotonic()
        self._synced.set()

    def _report_break(self, reason: str, *, exc_info: bool = False) -> None:
        if not self._broken:
            _log.warning("informer broken", prefix=self._prefix, reason=reason, exc_info=exc_info)
        self._broken = True

    def _report_life(self) -> None:
        if self._broken:
            _log.info("informer follows again", prefix=self._prefix, revision=self._revision)
        self._broken = False

    def _apply(self, change: Changed) -> None:
        if change.now is None:
            self._items.pop(change.key, None)
        else:
            self._items[change.key] = change.now
        if self._on_change is None:
            return
        try:
            self._on_change(change)
        except Exception:
            _log.exception("on_change failed", key=change.key, revision=change.revision)
