"""A live copy of every key under a prefix, stored or decoded: list, then watch; after an error, watch or list again.

The design is that of Kubernetes' reflector
(https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go); watches resume from etcd's revisions.
The copy is the content of the store at one moment, at most `age_s` ago.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from random import Random
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec
import structlog

from adapters.backoff import full_jitter_s
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, Compacted, ConfigStore, KeyValue, Listing, StoreError, StoreUnavailable

BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
"""Maximum time (s) between two attempts, so that the copy is current soon after the store recovers."""
SILENT_AFTER_S = 6.0
"""Time (s) without a message after which a watch is closed and restarted; a store sends a progress message every
second, or ends the watch with an error."""
RELIST_AFTER_S = 600.0
"""Maximum time (s) of a watch before the keys are listed again, in case the store lost an event or was restored from a
backup; the minimum is half of this time."""

_log = structlog.get_logger(__name__)


class WatchLimits(msgspec.Struct, frozen=True):
    """Time limits of an informer."""

    silent_after_s: float = SILENT_AFTER_S
    relist_after_s: float = RELIST_AFTER_S
    backoff_cap_s: float = BACKOFF_CAP_S
    """Larger for copies whose age is less critical."""


USUAL_LIMITS = WatchLimits()


class Informer:
    """Keeps `items` equal to the store, and calls `on_change` for each change in the order of the store.

    After a listing, `on_change` receives the differences from the previous copy: the deletions, then the writes in
    order of revision. An exception of `on_change` is logged, and the next change is applied.

    Args:
        store: the store to copy from.
        prefix: prefix of the keys to copy.
        on_change: None, or called in the event loop, after `items` has the change; must not block.
        rng: source of the jitter.
        limits: the time limits of the watch.
    """

    def __init__(
        self,
        store: ConfigStore,
        prefix: str,
        on_change: Callable[[Changed], None] | None = None,
        *,
        rng: Random,
        limits: WatchLimits = USUAL_LIMITS,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._on_change = on_change
        self._rng = rng
        self._limits = limits
        self._items: dict[str, KeyValue] = {}
        self._revision: int | None = None
        self._heard_at = -math.inf
        self._broken = False
        self._relist_at = math.inf
        """Monotonic time (s) at which the watch ends, and the keys are listed again."""
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def items(self) -> Mapping[str, KeyValue]:
        """The copy, by key; a read-only view that follows the store."""
        return MappingProxyType(self._items)

    @property
    def synced(self) -> bool:
        """Whether the store has been listed once; stays true while the store is unavailable."""
        return self._synced.is_set()

    @property
    def age_s(self) -> float:
        """Time (s) since the last listing or message of the watch; infinite before the first listing."""
        return time.monotonic() - self._heard_at

    async def wait_synced(self) -> None:
        """Return after the first listing of the store; limit the wait with asyncio.timeout."""
        await self._synced.wait()

    def relist(self) -> None:
        """List the keys again with the next message of the watch, since values may count now that did not before."""
        self._relist_at = -math.inf

    def start(self) -> None:
        """Start the informer in a new task."""
        self._task = asyncio.create_task(self._run(), name=f"informer {self._prefix}")

    async def stop(self) -> None:
        """Cancel the informer's task and wait for its end; `items` keeps its content."""
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
                # A defect must not end the task, because the copy would no longer be updated.
                self._revision = None
                self._report_break(f"unexpected {error!r}", exc_info=True)
            # A failure soon after a success does not reset the backoff; otherwise, a store that compacts its history as
            # fast as it is listed would cause a loop without waits.
            if self._heard_at - began_at > BACKOFF_CAP_S:
                failures = 0
            wait_s = full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=self._limits.backoff_cap_s, rng=self._rng)
            failures += 1
            await asyncio.sleep(wait_s)

    async def _follow(self) -> None:
        """Apply the changes of a watch until the watch fails or the next listing is due."""
        assert self._revision is not None
        # The time is random, so that agents that started together do not list at the same time.
        self._relist_at = time.monotonic() + self._limits.relist_after_s * self._rng.uniform(0.5, 1.0)
        async with aclosing(self._store.watch(self._prefix, self._revision)) as batches:
            while time.monotonic() < self._relist_at:
                try:
                    async with asyncio.timeout(self._limits.silent_after_s):
                        batch = await anext(batches)
                except TimeoutError as error:
                    raise StoreUnavailable(f"the watch was silent for {self._limits.silent_after_s} s") from error
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


STORE_LOST_AFTER_S = 3.0
"""Time (s) without a message after which the store counts as unavailable; a store sends progress every second."""

T = TypeVar("T", bound=msgspec.Struct)


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """A decoded value, and the revision at which its key was created."""

    value: T
    create_revision: int


class Mirror(Generic[T]):
    """Every value under a prefix, decoded; a value that cannot be decoded is logged and omitted.

    If a value is not authentic (empty, see `signed_store`), the last value of its key is kept.

    Args:
        store: the store to copy from.
        prefix: prefix of the keys.
        type_: type of the values.
        rng: source of the backoff's jitter.
        on_change: called after each change; must not block.
        backoff_cap_s: maximum time between two attempts to reach an unavailable store, in seconds.
    """

    def __init__(
        self,
        store: ConfigStore,
        prefix: str,
        type_: type[T],
        *,
        rng: Random,
        on_change: Callable[[], None] = lambda: None,
        backoff_cap_s: float = BACKOFF_CAP_S,
    ) -> None:
        self._prefix = prefix
        self._type = type_
        self._on_change = on_change
        self._values: dict[str, Seen[T]] = {}
        self.informer = Informer(store, prefix, self._changed, rng=rng, limits=WatchLimits(backoff_cap_s=backoff_cap_s))

    @property
    def values(self) -> dict[str, T]:
        """Values by the part of the key after the prefix, in key order."""
        return {key: self._values[key].value for key in sorted(self._values)}

    def seen(self, name: str) -> Seen[T] | None:
        """Return the value of a key, named by its part after the prefix; None if the key has no value."""
        return self._values.get(name)

    @property
    def has_key(self) -> bool:
        """Whether a key exists under the prefix, decodable or not."""
        return bool(self.informer.items)

    @property
    def store_is_up(self) -> bool:
        """Whether the last message of the store is less than STORE_LOST_AFTER_S old."""
        return self.informer.age_s < STORE_LOST_AFTER_S

    def _changed(self, change: Changed) -> None:
        name = change.key.removeprefix(self._prefix)
        if change.now is not None and not change.now.value and name in self._values:
            return
        value = self._decoded(change.now) if change.now is not None else None
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._on_change()

    def _decoded(self, item: KeyValue) -> Seen[T] | None:
        try:
            return Seen(decode(item.value, self._type), item.create_revision)
        except CodecError as error:
            _log.warning("value left out", key=item.key, reason=str(error))
            return None
