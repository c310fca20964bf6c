"""The uploads in parts of tenants in one job store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

from adapters.object_store.object_store import StoredObject
from penstock.jobs.store_paths import UploadPaths, is_upload, uploads
from penstock.jobs.upload import Completion, UploadEnd, UploadProblem, UploadRecord
from regional_agent.jobs.storage.job_storage import JobStorage

READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a part that are read at a time: an object that a client wrote by a signed URL may have gigabytes."""


class UploadStore:
    """Uploads of all tenants; the paths name the tenant."""

    def __init__(self, storage: JobStorage) -> None:
        self.storage = storage

    async def create(self, paths: UploadPaths, record: UploadRecord) -> None:
        """Write a new upload, which is marked for its deletion before it exists."""
        await self.storage.put(paths.mark(record.expires_at), b"")
        await self.storage.put_record(paths.record, record)

    async def find(self, paths: UploadPaths) -> UploadRecord | None:
        """Return the record of an upload; None if the tenant has none with the identifier."""
        return await self.storage.find_record(paths.record, UploadRecord) if is_upload(paths.id) else None

    async def find_end(self, paths: UploadPaths) -> UploadEnd | None:
        """Return the end of an upload; None if it is pending."""
        return await self.storage.find_record(paths.end, UploadEnd)

    async def end(self, paths: UploadPaths, end: UploadEnd) -> bool:
        """Write the end of an upload, and delete its parts; returns False if it has ended before."""
        # A write that a client library repeated finds its own object.
        is_first = await self.storage.put_new_record(paths.end, end) or await self.find_end(paths) == end
        if is_first:
            await self.storage.delete_all(paths.parts)
        return is_first

    async def pending(self, tenant: str) -> int:
        """Return the number of a tenant's uploads that have not ended; expired ones count until they are deleted."""
        names = [each.path.split("/")[3:] for each in await self.storage.list(uploads(tenant))]
        return sum(name[1:] == ["upload.json"] and [name[0], "end.json"] not in names for name in names)

    async def take_problem(self, paths: UploadPaths, asked: Completion) -> UploadProblem | None:
        """Return the problem of a completion that failed, once."""
        problem = await self.storage.find_record(paths.problem, UploadProblem)
        if problem is not None:
            await self.storage.delete(paths.problem)
        return problem if problem is not None and problem.asked == asked else None

    async def parts(self, paths: UploadPaths) -> dict[str, list[StoredObject]]:
        """Return the objects of each part in their order."""
        found: dict[str, list[StoredObject]] = {}
        for each in await self.storage.list(paths.parts):
            found.setdefault(each.path.split("/")[-2], []).append(each)
        return found

    async def read(self, objects: Iterable[StoredObject]) -> AsyncIterator[bytes]:
        """Return the content of objects in their order, with the sizes that they had when they were listed."""
        for each in objects:
            for start in range(0, each.size_bytes, READ_BYTES):
                size_bytes = min(READ_BYTES, each.size_bytes - start)
                yield await self.storage.read_range(each.path, start, size_bytes)

    async def delete(self, paths: UploadPaths, mark: str) -> None:
        """Delete all that is left of an upload, and its mark."""
        await self.storage.delete_all(paths.folder)
        await self.storage.delete(mark)
