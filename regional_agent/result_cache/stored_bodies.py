"""The bodies of large kept responses, in the job store of the region.

The entry in memory or in Redis has the tag of the body, so that what others write to the store is never sent as a
complete response. The path has the time when the response expires, by which agents delete it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from adapters.object_store.object_store import ObjectMissing, StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.store_selection import select_store
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.result_cache import ResultCache
from penstock.result_cache.cache_control import QUOTE, entity_digest, tag_of
from penstock.result_cache.cached_result import CachedResult
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse
from regional_agent.requests.request_context import RequestContext

PART_BYTES: Final = 1024 * 1024
"""Bytes of a body that are read at a time."""

OPEN_TIMEOUT_S: Final = 1.0
"""Maximum time (s) that the first part delays a request."""

REST_S: Final = 10.0
"""Time (s) without look-ups after one that failed or took too long."""

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Maximum size (bytes) of the bodies that wait to be written; further responses are not kept."""

UNSEEN_SHARE: Final = 0.01
"""Part (0-1) of the bound of a document that an agent writes, or one larger response, before it lists the responses
again, since other agents write, too: by no more does each of them exceed the bound."""

FREED_SHARE: Final = 0.9
"""Part (0-1) of the bound of a document to which deletions for a further response reduce the others."""

SWEEP_S: Final = 600.0
"""Mean interval (s) of looks for responses that have expired."""

LEFT_S: Final = 60.0
"""Time (s) after its expiry for which a response is kept, since clocks differ and clients may still receive it."""

log = structlog.get_logger()


class StoredBody(NamedTuple):
    """A kept response whose body can be read."""

    result: CachedResult
    parts: AsyncIterator[bytes]
    """The body. The last part follows only if the tag is that of the whole body."""


class StoredBodies:
    """Writes, reads and deletes the bodies of the responses that the region's agents keep."""

    def __init__(self, stores: JobStoresInUse, rng: Random, wall_clock: Callable[[], float] = time.time) -> None:
        """Use the job store of the policy in force; `wall_clock` returns Unix time (s)."""
        self._stores = stores
        self._rng = rng
        self._wall_clock = wall_clock
        self._rests_until = 0.0
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._sizes: dict[str, tuple[int, int]] = {}
        """Of each document, the known size of its responses, and what this agent has written since it listed them."""

    def start(self, keeping: Coroutine[None, None, None], size_bytes: int) -> None:
        """Run what keeps a response of a size, unless too many wait."""
        if self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            keeping.close()
            return
        self._waiting_bytes += size_bytes
        task = asyncio.create_task(keeping, name="keeping a large response")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, size_bytes))

    def _ended(self, task: asyncio.Task[None], size_bytes: int) -> None:
        self._tasks.discard(task)
        self._waiting_bytes -= size_bytes
        if not task.cancelled() and task.exception() is not None:
            log.error("keeping a large response failed", exc_info=task.exception())

    def _storage(self, context: RequestContext) -> JobStorage | None:
        """Return the store, if residency permits the request in all regions whose agents read it."""
        store = select_store(context.policy, self._stores.region, context.residency.permitted.regions)
        opened = self._stores.opened() if isinstance(store, JobStore) else None
        return None if opened is None else opened.files.storage

    async def write(self, context: RequestContext, cache: ResultCache, result: CachedResult) -> CachedResult | None:
        """Write the body of a response; returns the entry without it, or None if it is not kept."""
        storage, size_bytes = self._storage(context), len(result.body)
        if storage is None or size_bytes > cache.max_stored_bytes:
            return None
        try:
            # One at a time: a list has all that this agent has written.
            async with self._writing:
                max_bytes = cache.max_stored_bytes
                known_bytes, unseen_bytes = self._sizes.get(cache.name, (0, max_bytes))
                unseen_bytes += size_bytes
                if unseen_bytes > max(size_bytes, UNSEEN_SHARE * max_bytes) or known_bytes + size_bytes > max_bytes:
                    known_bytes, unseen_bytes = await self._make_room(storage, cache, size_bytes), size_bytes
                self._sizes[cache.name] = known_bytes + size_bytes, unseen_bytes
                await storage.put(self._path(cache, result), result.body)
        except StoreUnavailable as error:
            log.warning("a large response was not kept", error=str(error))
            return None
        return replace(result, body=b"", stored_bytes=size_bytes)

    async def _make_room(self, storage: JobStorage, cache: ResultCache, size_bytes: int) -> int:
        """Delete the responses of a document that expire first, as far as needed; returns the size of the others."""
        found = await storage.list(store_paths.results_of(self._stores.region, cache.name))
        total_bytes = sum(each.size_bytes for each in found)
        limit_bytes = cache.max_stored_bytes
        if total_bytes + size_bytes > limit_bytes:
            limit_bytes = int(FREED_SHARE * limit_bytes)
        for each in found:
            if total_bytes + size_bytes <= limit_bytes or total_bytes == 0:
                break
            await storage.delete(each.path)
            total_bytes -= each.size_bytes
        return total_bytes

    async def open(self, context: RequestContext, cache: ResultCache, result: CachedResult) -> StoredBody | None:
        """Return a response with its body; None if the store does not have it, or does not return it in time."""
        storage = self._storage(context)
        if storage is None or time.monotonic() < self._rests_until:
            return None
        path, first_bytes = self._path(cache, result), min(PART_BYTES, result.stored_bytes)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                first = await storage.read_range(path, 0, first_bytes)
        except ObjectMissing:
            return None
        except (StoreUnavailable, TimeoutError) as error:
            self._rests_until = time.monotonic() + REST_S
            log.warning("a large kept response cannot be read", error=str(error) or "timeout")
            return None
        return StoredBody(result, _parts(storage, path, first, result))

    def _path(self, cache: ResultCache, result: CachedResult) -> str:
        name = f"{result.key.hex()}-{result.tag.strip(QUOTE).decode()}"
        return store_paths.result(self._stores.region, cache.name, result.expires_at, name)

    async def run(self) -> None:
        """Delete responses that have expired until cancelled."""
        while True:
            # Agents look at different times.
            await asyncio.sleep(SWEEP_S * (0.5 + self._rng.random()))
            try:
                await self.sweep()
            except StoreUnavailable as error:
                log.warning("the job store failed", error=str(error))

    async def sweep(self) -> None:
        """Delete the region's responses that have expired. Raises StoreUnavailable."""
        opened = self._stores.opened()
        if opened is None:
            return
        storage, now = opened.files.storage, self._wall_clock()
        for each in await storage.list(store_paths.results(self._stores.region)):
            expires_at = store_paths.result_expires_at(each.path)
            if expires_at is not None and expires_at + LEFT_S < now:
                await storage.delete(each.path)


async def _parts(storage: JobStorage, path: str, first: bytes, result: CachedResult) -> AsyncIterator[bytes]:
    """Yield the body of a response; ends early if it is not the one of its tag."""
    digest, part, read_bytes = entity_digest(), first, len(first)
    while True:
        digest.update(part)
        if not part or read_bytes >= result.stored_bytes:
            break
        yield part
        part = await storage.read_range(path, read_bytes, min(PART_BYTES, result.stored_bytes - read_bytes))
        read_bytes += len(part)
    if tag_of(digest) == result.tag:
        yield part
    else:
        log.error("a large kept response is damaged", path=path)
