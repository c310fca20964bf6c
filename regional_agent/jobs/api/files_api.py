"""OpenAI's Files API (https://platform.openai.com/docs/api-reference/files), for files of batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from penstock.jobs import store_paths
from penstock.jobs.job_records import FileRecord
from regional_agent.jobs.api.api_responses import Answer, BadInput, Content, json_response
from regional_agent.jobs.api.merged_lists import ListedStore
from regional_agent.jobs.storage.file_store import FileStore, file_object
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.jobs.storage.job_stores_in_use import OpenStore

MISSING = "no_such_file"


class FilesApi:
    """The files of one tenant."""

    def __init__(self, store: OpenStore, tenant: str) -> None:
        self._store = store
        self._files: FileStore = store.files
        self._retention_s = store.document.retention_s
        self._signed_urls_s = store.document.signed_urls_s
        self._tenant = tenant

    async def _find(self, file: str) -> FileRecord:
        record = await self._files.find(self._tenant, file)
        if record is None:
            raise no_such_file(file)
        return record

    async def show(self, file: str) -> Answer:
        """Return a file's record."""
        return json_response(file_object(await self._find(file), self._retention_s))

    async def content(self, file: str) -> Answer:
        """Return a file's content."""
        record = await self._find(file)
        return Content(record.size_bytes, self._files.read(record))

    async def urls(self, file: str) -> Answer:
        """Return URLs of the store for the parts of a file, which together are its content."""
        record = await self._find(file)
        parts = [(part.path, part.size_bytes) for part in record.parts]
        return await signed_urls(self._files.storage, parts, self._signed_urls_s)

    async def delete(self, file: str) -> Answer:
        """Delete a file. A batch that reads the file fails."""
        record = await self._find(file)
        await self._files.delete(self._tenant, record)
        return json_response({"id": file, "object": "file", "deleted": True})

    def listed(self, purpose: str) -> ListedStore:
        """Return the files of a purpose, all with an empty one, as a list shows them."""

        async def show(file: str) -> dict[str, Any] | None:
            record = await self._files.find(self._tenant, file)
            is_shown = record is not None and purpose in ("", record.purpose)
            return file_object(record, self._retention_s) if record is not None and is_shown else None

        return ListedStore(self._store, store_paths.files(self._tenant), show, store_paths.FILE)


async def signed_urls(storage: JobStorage, parts: Sequence[tuple[str, int]], valid_s: int | UnsetType) -> Answer:
    """Return a URL of the store for each part (path and bytes), if the policy permits them for `valid_s` seconds."""
    if valid_s is UNSET:
        message = "the job store has no `signed_urls_s`; read the content through this API"
        raise BadInput(501, "signed_urls_not_offered", message)
    expires_at = int(time.time() + valid_s)
    urls = await storage.sign([path for path, _ in parts], valid_s) if parts else []
    items = [{"url": url, "bytes": size_bytes} for url, (_, size_bytes) in zip(urls, parts, strict=True)]
    return json_response({"object": "list", "data": items, "expires_at": expires_at})


def no_such_file(file: str, param: str = "file_id") -> BadInput:
    """The error for a file that the tenant does not have."""
    return BadInput(404, MISSING, f"no file named {file[:64]!r} exists", param)
