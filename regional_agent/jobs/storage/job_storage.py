"""Access to the job store of the region without blocking the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

import msgspec
import structlog

from adapters.object_store.object_store import ObjectMissing, ObjectStore, SignedMethod, StoredObject, StoreUnavailable
from adapters.object_store.store_opening import MissingPackages, open_store
from penstock.jobs import store_paths
from penstock.jobs.store_silence import BULK_S, SILENT_S, StoreSilence

THREADS: Final = 8
"""Operations on one store that an agent runs at a time: those on another store do not wait for one that is silent."""

PIECE_BYTES: Final = 1024 * 1024
"""Bytes of an object that a client that reads slowly holds in memory."""

BULK_BYTES: Final = 1024 * 1024
"""Size (bytes) of an object whose transfer may take longer than a response of the store."""

CHECK_S: Final = 0.5
"""Interval (s) of checks whether a store is silent that has not responded to an operation."""

_DELETED_AT_ONCE: Final = 100

_FORMAT_PATH: Final = "format"
_FORMAT: Final = b"penstock-jobs-1\n"

log = structlog.get_logger()

Record = TypeVar("Record")
_Result = TypeVar("_Result")


class StoreSilent(StoreUnavailable):
    """The store does not respond. Logged once, and not for each operation that is refused meanwhile."""

    def __init__(self) -> None:
        super().__init__("the store does not respond")


class UnreadableRecord(StoreUnavailable):
    """An object is not the record that its path is for: it is damaged, or of a later release."""


class JobStorage:
    """One job store. All operations raise StoreUnavailable."""

    def __init__(self, url: str, threads: ThreadPoolExecutor, on_failure: Callable[[], None]) -> None:
        """Use the store at `url`, which the first operation opens in one of `threads`.

        Args:
            on_failure: called for each operation that the store does not execute.
        """
        self.url = url
        self._on_failure = on_failure
        self._threads = threads
        self._opened: ObjectStore | None = None
        self._silence = StoreSilence()
        self._started_at: dict[object, float] = {}
        """When (monotonic time, s) each operation that has a thread was started."""

    async def put(self, path: str, content: bytes) -> None:
        """Write an object, or replace it; returns when it is durable."""
        await self._run(lambda store: store.put(path, content), _patience_s(content))

    async def put_new(self, path: str, content: bytes) -> bool:
        """Write an object unless one has the path; returns whether it was written."""
        return await self._run(lambda store: store.put_new(path, content), _patience_s(content))

    async def read(self, path: str) -> bytes:
        """Return the content of an object, which may be large; raises ObjectMissing if there is none."""
        return await self._run(lambda store: store.read(path), BULK_S)

    async def read_range(self, path: str, start: int, size_bytes: int) -> bytes:
        """Return a part of an object, less at its end; raises ObjectMissing if there is none."""
        return await self._run(lambda store: store.read_range(path, start, size_bytes), BULK_S)

    async def pieces(self, path: str, size_bytes: int) -> AsyncIterator[bytes]:
        """Return the content of an object in pieces, as its receiver wants them; one byte more than `size_bytes` if the
        object is larger. Raises ObjectMissing if there is none."""
        start = 0
        while start < size_bytes:
            piece = await self.read_range(path, start, min(PIECE_BYTES, size_bytes + 1 - start))
            if not piece:
                break
            yield piece
            start += len(piece)

    async def sign(self, paths: Sequence[str], valid_s: float, method: SignedMethod = "GET") -> Sequence[str]:
        """Return a URL for each path that reads its object, or writes it, without credentials, for a time (s)."""
        return await self._run(lambda store: store.sign(paths, valid_s, method))

    async def first(self, folder: str, limit: int) -> list[str]:
        """Return the paths of the first objects below a folder, by path."""
        return await self._run(lambda store: [found.path for found in islice(store.list(folder), limit)])

    async def delete_all(self, folder: str, but: str = "") -> None:
        """Remove all objects below a folder but that with the path `but`."""
        while paths := [path for path in await self.first(folder, _DELETED_AT_ONCE) if path != but]:
            await asyncio.gather(*(self.delete(path) for path in paths))

    async def list(self, folder: str) -> list[StoredObject]:
        """Return all objects below a folder, by path."""

        def listed(store: ObjectStore) -> list[StoredObject]:
            found = []
            for each in store.list(folder):
                # A bucket returns them in parts.
                self._silence.responded(time.monotonic())
                found.append(each)
            return sorted(found)

        return await self._run(listed)

    async def choose(self, folder: str, choice: Callable[[Callable[[str], Iterable[str]]], _Result]) -> _Result:
        """Return what `choice` returns, which reads names of objects in a folder: those after a name, see
        `ObjectStore.names`. It runs in a thread."""

        def chosen(store: ObjectStore) -> _Result:
            def responded(names: Iterable[str]) -> Iterator[str]:
                for name in names:
                    self._silence.responded(time.monotonic())
                    yield name

            def after(name: str) -> Iterable[str]:
                found = store.names(folder, name)
                return found if isinstance(found, list) else responded(found)

            return choice(after)

        return await self._run(chosen)

    async def delete(self, path: str) -> None:
        """Remove an object; nothing if it does not exist."""
        await self._run(lambda store: store.delete(path))

    async def now(self, random: bytes) -> float:
        """Return the time (Unix, s) by the clock of the store, or 0 if the store does not show what was just written.

        Args:
            random: a value that no other caller uses.
        """
        path = f"{store_paths.CLOCK}/{random.hex()}"
        try:
            await self.put(path, b"")
            return min(
                (each.written_at for each in await self.list(store_paths.CLOCK) if each.path == path), default=0.0
            )
        finally:
            await self.delete(path)

    async def put_record(self, path: str, record: msgspec.Struct) -> None:
        """Write a record as JSON, or replace it."""
        await self.put(path, msgspec.json.encode(record))

    async def put_new_record(self, path: str, record: msgspec.Struct) -> bool:
        """Write a record as JSON unless an object has the path; returns whether it was written."""
        return await self.put_new(path, msgspec.json.encode(record))

    async def find_record(self, path: str, kind: type[Record]) -> Record | None:
        """Return a record; None if there is none. Raises UnreadableRecord, too."""
        try:
            content = await self._run(lambda store: store.read(path))
        except ObjectMissing:
            return None
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableRecord(f"{path} is not a {kind.__name__}: {error}") from None

    async def _run(self, operation: Callable[[ObjectStore], _Result], patience_s: float = SILENT_S) -> _Result:
        """Run an operation in a thread. One that fails because the store is silent may still be executed later."""
        silence, started_at, key = self._silence, self._started_at, object()

        def run() -> _Result:
            started_at[key] = time.monotonic()
            try:
                if self._opened is None:
                    self._opened = _open(self.url)
                result = operation(self._opened)
                silence.responded(time.monotonic())
                return result
            except ObjectMissing:
                silence.responded(time.monotonic())
                raise
            except StoreUnavailable:
                # Its own limit of time may have ended it.
                silence.is_over(started_at[key], time.monotonic())
                raise
            finally:
                del started_at[key]

        try:
            if not silence.may_start(time.monotonic(), has_thread=len(started_at) < THREADS):
                raise StoreSilent
            running = asyncio.get_running_loop().run_in_executor(self._threads, run)
            try:
                while not (await asyncio.wait((running,), timeout=CHECK_S))[0]:
                    was_silent = silence.is_silent
                    if silence.is_over(started_at.get(key), time.monotonic(), patience_s):
                        if not was_silent:
                            log.warning("a job store does not respond", url=self.url)
                        raise StoreSilent
                return running.result()
            finally:
                running.cancel()
        except ObjectMissing:
            raise
        except StoreUnavailable:
            self._on_failure()
            raise


def _patience_s(content: bytes) -> float:
    return SILENT_S if len(content) < BULK_BYTES else BULK_S


class JobStorages:
    """The opened job stores by URL; the policy in force selects one."""

    def __init__(self, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start without a store; see `JobStorage` for `on_failure`."""
        self._on_failure = on_failure
        self._by_url: dict[str, tuple[JobStorage, ThreadPoolExecutor]] = {}

    def of(self, url: str) -> JobStorage:
        """Return the store at a URL."""
        found = self._by_url.get(url)
        if found is None:
            threads = ThreadPoolExecutor(THREADS, thread_name_prefix="job-store")
            found = self._by_url[url] = JobStorage(url, threads, self._on_failure), threads
        return found[0]

    def close(self) -> None:
        """Start no further operation."""
        for _, threads in self._by_url.values():
            threads.shutdown(wait=False, cancel_futures=True)


def _open(url: str) -> ObjectStore:
    """Open a store, and write its format: a folder must exist before its objects can be listed."""
    try:
        store = open_store(url)
    except MissingPackages as error:
        raise StoreUnavailable(str(error)) from None
    if not store.put_new(_FORMAT_PATH, _FORMAT) and store.read(_FORMAT_PATH) != _FORMAT:
        raise StoreUnavailable(f"{url} has jobs in the format of another release")
    return store
