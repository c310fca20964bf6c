"""The files of tenants in one job store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from random import Random
from typing import Any

from penstock.jobs import store_paths
from penstock.jobs.file_expiry import MAX_UPLOAD_S, expires_at, expiring_since
from penstock.jobs.job_records import FilePart, FileRecord
from penstock.jobs.store_paths import Expiring
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.jobs.uploads.input_file import InputPart


class FileStore:
    """Files of all tenants; every call names the tenant, and finds files of this tenant only."""

    def __init__(self, storage: JobStorage, rng: Random, clock: Callable[[], float] = time.time) -> None:
        """Use the files of `storage`; `clock` returns Unix time (s)."""
        self.storage = storage
        self._rng = rng
        self.clock = clock

    def new_id(self, prefix: str = store_paths.FILE) -> str:
        """Return a new identifier."""
        return store_paths.new_id(prefix, self.clock(), self._rng.randbytes(store_paths.RANDOM_BYTES))

    async def find(self, tenant: str, file: str) -> FileRecord | None:
        """Return the record of a file; None if the tenant has none with the identifier, or it has expired."""
        record = await self.find_kept(tenant, file)
        if record is not None and record.expires_at is not None and record.expires_at <= self.clock():
            return None
        return record

    async def find_kept(self, tenant: str, file: str) -> FileRecord | None:
        """Return the record of a file, also of one that has expired: a batch that runs still reads it."""
        if not store_paths.is_id(store_paths.FILE, file):
            return None
        return await self.storage.find_record(store_paths.file_record(tenant, file), FileRecord)

    async def put(self, tenant: str, record: FileRecord, retention_s: float) -> None:
        """Write the record of a file whose parts are written; see `JobStore.retention_s`."""
        if record.expires_at is not None:
            since = expiring_since(record, retention_s)
            await self.storage.put(store_paths.expiring(tenant, record.id, since).mark, b"")
        await self.storage.put_record(store_paths.file_record(tenant, record.id), record)

    async def begin(self, tenant: str, file: str) -> None:
        """Mark a file, which is about to be written, for its deletion by age."""
        mark = store_paths.expiring(tenant, file, store_paths.created_at(file)).mark
        await self.storage.put(mark, b"")

    async def write_parts(self, tenant: str, file: str, parts: Iterable[InputPart], written: list[FilePart]) -> None:
        """Write further parts of a file; `written` has those before, and receives each before it is written."""
        for part in parts:
            if not written:
                await self.begin(tenant, file)
            path = store_paths.file_part(tenant, file, len(written))
            written.append(FilePart(path, len(part.content), part.lines))
            await self.storage.put(path, part.content)

    async def delete(self, tenant: str, record: FileRecord) -> None:
        """Delete a file: its record first, so that no file has a part of its content."""
        await self.storage.delete(store_paths.file_record(tenant, record.id))
        await self.drop_parts(record.parts)

    async def delete_expired(self, expired: Expiring) -> None:
        """Delete what is left of an uploaded file, and its mark."""
        tenant, file, mark = expired
        record = await self.find_kept(tenant, file)
        if record is not None:
            # Those of result files are objects of their batch.
            await self.delete(tenant, record)
        await self.storage.delete_all(f"{store_paths.all_file_data(tenant)}/{file}")
        await self.storage.delete(mark)

    async def drop_parts(self, parts: tuple[FilePart, ...]) -> None:
        """Delete parts that no record names."""
        for part in parts:
            await self.storage.delete(part.path)

    async def read(self, record: FileRecord) -> AsyncIterator[bytes]:
        """Return the content of a file, in pieces."""
        for part in record.parts:
            async for piece in self.storage.pieces(part.path, part.size_bytes):
                yield piece

    async def used_bytes(self, tenant: str) -> int:
        """Return the size (bytes) of the uploaded files of a tenant, with those that arrive, whole or in parts.

        Deletes parts without a record that an interrupted upload or deletion left.
        """
        used_bytes, oldest = 0, self.clock() - MAX_UPLOAD_S
        parts = await self.storage.list(store_paths.all_file_data(tenant))
        # The records after the parts: a file that is complete meanwhile has its record.
        records = {each.path for each in await self.storage.list(store_paths.files(tenant))}
        for part in parts:
            file = part.path.split("/")[-2]
            has_record = store_paths.file_record(tenant, file) in records
            if not has_record and store_paths.is_id(store_paths.FILE, file) and store_paths.created_at(file) < oldest:
                await self.storage.delete(part.path)
            else:
                used_bytes += part.size_bytes
        uploads = await self.storage.list(store_paths.uploads(tenant))
        return used_bytes + sum(each.size_bytes for each in uploads)


def file_object(record: FileRecord, retention_s: float) -> dict[str, Any]:
    """A file as OpenAI's API shows it (https://platform.openai.com/docs/api-reference/files/object).

    Args:
        retention_s: see `JobStore.retention_s`.
    """
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "expires_at": expires_at(record, retention_s),
    }
