"""Receivers of the file of a form: an input file is checked and written, a part of an upload is written as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from penstock.jobs import store_paths
from penstock.jobs.job_records import ExpiresAfter
from penstock.jobs.store_paths import UploadPaths
from penstock.jobs.upload import UploadRecord
from penstock.policy.kinds.jobs import JobStore
from regional_agent.jobs.api.api_responses import Answer, BadInput, json_response
from regional_agent.jobs.storage.file_store import FileStore, file_object
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.storage.upload_store import UploadStore
from regional_agent.jobs.uploads.input_file import PART_BYTES
from regional_agent.jobs.uploads.input_writer import OTHER_PURPOSE, PURPOSE, InputLimits, InputWriter
from regional_agent.jobs.uploads.upload_form import UploadForm


class ReceivedInput:
    """The file of `POST /v1/files`."""

    field = b"file"

    def __init__(self, files: FileStore, limits: InputLimits) -> None:
        self.tenant = limits.tenant
        self._retention_s = limits.store.retention_s
        self._writer = InputWriter(files, limits)
        self.begin = self._writer.begin
        self.feed = self._writer.feed
        self.flush = self._writer.flush
        self.close = self._writer.close

    @property
    def is_refused(self) -> bool:
        """Whether the rest need not be read."""
        return self._writer.is_refused

    async def finish(self, form: UploadForm) -> Answer:
        """Return the file."""
        if not self.is_refused and form.fields.get("purpose") != PURPOSE:
            raise BadInput(400, "invalid_purpose", OTHER_PURPOSE, "purpose")
        record = await self._writer.finish(form.filename, _expires_after_s(form))
        return json_response(file_object(record, self._retention_s))


def _expires_after_s(form: UploadForm) -> int | None:
    """Return the age (s) at which the file of a form expires; None without one. Raises BadInput."""
    prefix = "expires_after["
    fields = {name[len(prefix) : -1]: value for name, value in form.fields.items() if name.startswith(prefix)}
    if not fields:
        return None
    try:
        return msgspec.convert(fields, ExpiresAfter, strict=False).seconds
    except msgspec.ValidationError as error:
        raise BadInput(400, "invalid_expires_after", f"`expires_after`: {error}", "expires_after") from None


class ReceivedPart:
    """The part of `POST /v1/uploads/{id}/parts`, which is written in objects of bounded size."""

    field = b"data"
    is_refused = False

    def __init__(self, store: OpenStore, paths: UploadPaths, find: Callable[[], Awaitable[UploadRecord]]) -> None:
        """Receive a part of an upload; `find` returns the upload, or raises BadInput unless it is pending."""
        self.tenant = paths.tenant
        self._files: FileStore = store.files
        self._uploads: UploadStore = store.uploads
        self._store: JobStore = store.document
        self._paths = paths
        self._find = find
        self._part = store.files.new_id(store_paths.PART)
        self._chunks: list[bytes] = []
        self._kept_bytes = self._size_bytes = self._left_bytes = self._max_bytes = 0
        self._objects = 0

    async def begin(self) -> None:
        """Check the upload, and read what the tenant may still store."""
        self._max_bytes = (await self._find()).size_bytes
        self._left_bytes = self._store.max_tenant_bytes - await self._files.used_bytes(self.tenant)

    def feed(self, data: bytes) -> None:
        """Keep a part of the part."""
        self._chunks.append(data)
        self._kept_bytes += len(data)
        self._size_bytes += len(data)

    async def flush(self) -> None:
        """Write an object if enough was received. Raises BadInput."""
        if self._size_bytes > self._max_bytes:
            raise BadInput(413, "part_too_large", "the part is larger than `bytes` of the upload", "data")
        if self._size_bytes > self._left_bytes:
            message = f"the files of the tenant would take more than {self._store.max_tenant_bytes} bytes"
            raise BadInput(413, "storage_full", f"{message}; delete files")
        if self._kept_bytes >= PART_BYTES:
            await self._write()

    async def finish(self, form: UploadForm) -> Answer:
        """Return the part."""
        await self.flush()
        if self._kept_bytes or not self._objects:
            await self._write()
        # The upload may have ended meanwhile.
        await self._find()
        return json_response(
            {
                "id": self._part,
                "object": "upload.part",
                "created_at": int(self._files.clock()),
                "upload_id": self._paths.id,
            }
        )

    async def _write(self) -> None:
        content, self._chunks, self._kept_bytes = b"".join(self._chunks), [], 0
        await self._uploads.storage.put(self._paths.part(self._part, self._objects), content)
        self._objects += 1

    def close(self) -> None:
        """Do nothing: a part that no client can name is deleted with its upload."""
