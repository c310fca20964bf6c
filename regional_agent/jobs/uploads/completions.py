"""Completions of uploads in parts: the parts are read from the store, checked as one input file, and written as a file.

A completion does not end with the request that began it, since the check of a large file takes longer than proxies wait
for a response.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import md5
from typing import Any, Final

from adapters.object_store.object_store import ObjectMissing, StoredObject, StoreUnavailable
from penstock.jobs.job_records import FileRecord
from penstock.jobs.store_paths import UploadPaths
from penstock.jobs.upload import Completion, UploadEnd, UploadProblem, UploadRecord, UploadState
from regional_agent.background_tasks import cancel
from regional_agent.jobs.api.api_responses import BadInput
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.uploads.input_writer import InputLimits, InputWriter

WAIT_S: Final = 60.0
"""Time (s) after which a request is answered although its completion still runs."""

SLICE_BYTES: Final = 64 * 1024
"""Bytes that are checked before other tasks of the event loop run."""


class RunningCompletion:
    """A completion in progress."""

    def __init__(self, tenant: str, asked: Completion, task: asyncio.Task[Any]) -> None:
        self.tenant = tenant
        self.asked = asked
        self.task = task
        self.waiters = 0
        """Requests that wait for it."""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return not self.task.done()


class Completions:
    """The completions that this agent runs."""

    def __init__(self) -> None:
        """Start without one."""
        self._running: dict[UploadPaths, RunningCompletion] = {}

    @property
    def running(self) -> list[RunningCompletion]:
        """Those in progress."""
        return [each for each in self._running.values() if each.is_active]

    def has(self, paths: UploadPaths) -> bool:
        """Whether an upload is being completed."""
        return paths in self._running

    async def run(
        self, store: OpenStore, paths: UploadPaths, record: UploadRecord, asked: Completion, limits: InputLimits
    ) -> bool:
        """Complete an upload, or wait for its completion in progress; returns whether it ended within WAIT_S.

        Raises:
            BadInput: the file is refused; the upload stays pending.
        """
        found = self._running.get(paths)
        if found is None:
            task = asyncio.create_task(self._run(store, paths, record, asked, limits), name="completion of an upload")
            found = self._running[paths] = RunningCompletion(paths.tenant, asked, task)
        elif found.asked != asked:
            raise BadInput(409, "completion_in_progress", "the upload is being completed with other parts")
        found.waiters += 1
        try:
            done, _ = await asyncio.wait({found.task}, timeout=WAIT_S)
        finally:
            found.waiters -= 1
        if not done:
            return False
        if isinstance(problem := found.task.result(), Exception):
            raise problem
        return True

    async def _run(
        self, store: OpenStore, paths: UploadPaths, record: UploadRecord, asked: Completion, limits: InputLimits
    ) -> BadInput | StoreUnavailable | None:
        """Complete an upload; returns why it failed. A problem that no request waits for is kept for the next one."""
        try:
            await _complete(store, paths, record, asked, limits)
        except BadInput as error:
            if not self._running[paths].waiters:
                with suppress(StoreUnavailable):
                    await store.uploads.storage.put_record(paths.problem, UploadProblem(asked, *error.parts))
            return error
        except StoreUnavailable as error:
            return error
        finally:
            del self._running[paths]
        return None

    async def stop(self) -> None:
        """End all of them: clients repeat their requests at another agent."""
        await cancel([each.task for each in self.running])


async def _complete(
    store: OpenStore, paths: UploadPaths, record: UploadRecord, asked: Completion, limits: InputLimits
) -> None:
    parts = await store.uploads.parts(paths)
    objects: list[StoredObject] = []
    for part in asked.part_ids:
        if part not in parts:
            raise BadInput(400, "no_such_part", f"the upload has no part named {part[:64]!r}", "part_ids")
        objects += parts[part]
    size_bytes = sum(each.size_bytes for each in objects)
    if size_bytes != record.size_bytes:
        message = f"the parts have {size_bytes} bytes, and `bytes` of the upload is {record.size_bytes}"
        raise BadInput(400, "size_mismatch", message, "part_ids")
    writer = InputWriter(store.files, limits)
    try:
        await writer.begin(sum(each.size_bytes for found in parts.values() for each in found))
        file = await _check(store, record, asked, objects, writer)
    finally:
        writer.close()
    if not await store.uploads.end(paths, UploadEnd(UploadState.COMPLETED, file.id, asked.part_ids)):
        # The upload was cancelled, or another agent has completed it.
        await store.files.delete(limits.tenant, file)


async def _check(
    store: OpenStore, record: UploadRecord, asked: Completion, objects: list[StoredObject], writer: InputWriter
) -> FileRecord:
    digest = md5(usedforsecurity=False)
    try:
        async for content in store.uploads.read(objects):
            for start in range(0, len(content), SLICE_BYTES):
                piece = content[start : start + SLICE_BYTES]
                digest.update(piece)
                writer.feed(piece)
                await asyncio.sleep(0)
            await writer.flush()
            if writer.is_refused:
                break
    except ObjectMissing:
        raise BadInput(409, "upload_changed", "a part was deleted while the upload was completed") from None
    if not writer.is_refused and asked.md5 is not None and digest.hexdigest() != asked.md5.lower():
        raise BadInput(400, "checksum_mismatch", "the file has another MD5 than `md5`", "md5")
    return await writer.finish(record.filename, record.file_expires_after_s)
