"""OpenAI's Uploads API (https://platform.openai.com/docs/api-reference/uploads), for input files of batches.

Beyond it, `urls` returns signed URLs by which clients write parts to the bucket themselves.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET

from penstock.jobs import store_paths
from penstock.jobs.job_records import FileRecord
from penstock.jobs.store_paths import UploadPaths
from penstock.jobs.upload import (
    LIFETIME_S,
    MAX_PARTS,
    MAX_SIGNED_PARTS,
    Completion,
    NewUpload,
    PartUrls,
    UploadEnd,
    UploadRecord,
    UploadState,
    signed_part,
    state_of,
    upload_object,
)
from regional_agent.jobs.api.api_responses import Answer, BadInput, json_response
from regional_agent.jobs.storage.file_store import file_object
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.uploads.completions import Completions
from regional_agent.jobs.uploads.input_writer import OTHER_PURPOSE, PURPOSE, InputLimits
from regional_agent.jobs.uploads.received_files import ReceivedPart
from regional_agent.jobs.uploads.upload_form import MAX_FILENAME

MAX_PENDING: Final = 100
"""Uploads in parts of a tenant that may be pending; an upload is deleted a day after its creation."""

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Maximum size (bytes) of a JSON body: several times that of a completion with MAX_PARTS parts."""

_Body = TypeVar("_Body")


class UploadsApi:
    """The uploads in parts of one tenant."""

    def __init__(self, store: OpenStore, limits: InputLimits, completions: Completions) -> None:
        """Create the API for files within `limits`."""
        self._store = store
        self._limits = limits
        self._completions = completions

    def receiver(self, upload: str) -> ReceivedPart:
        """Return what receives a part of an upload."""
        return ReceivedPart(self._store, self._paths(upload), partial(self._pending, upload))

    async def create(self, body: bytes) -> Answer:
        """Create an upload."""
        new = _decoded(body, NewUpload)
        tenant, document, files = self._limits.tenant, self._limits.store, self._store.files
        if new.purpose != PURPOSE:
            raise BadInput(400, "invalid_purpose", OTHER_PURPOSE, "purpose")
        if not 0 < new.bytes <= document.max_file_bytes:
            message = f"`bytes` is not a size of 1 to {document.max_file_bytes}"
            raise BadInput(400, "file_too_large" if new.bytes > 0 else "invalid_size", message, "bytes")
        if await files.used_bytes(tenant) + new.bytes > document.max_tenant_bytes:
            message = f"the files of the tenant would take more than {document.max_tenant_bytes} bytes"
            raise BadInput(413, "storage_full", f"{message}; delete files")
        if await self._store.uploads.pending(tenant) >= MAX_PENDING:
            message = f"the tenant has {MAX_PENDING} pending uploads; complete or cancel them"
            raise BadInput(429, "too_many_uploads", message)
        now = int(files.clock())
        upload = files.new_id(store_paths.UPLOAD)
        after_s = None if new.expires_after is None else new.expires_after.seconds
        record = UploadRecord(upload, new.filename[:MAX_FILENAME], new.bytes, now, now + LIFETIME_S, after_s)
        await self._store.uploads.create(self._paths(upload), record)
        return json_response(upload_object(record, UploadState.PENDING, None))

    async def show(self, upload: str) -> Answer:
        """Return an upload."""
        return await self._shown(await self._find(upload))

    async def urls(self, upload: str, body: bytes) -> Answer:
        """Return signed URLs that write the first parts of an upload."""
        record, asked = await self._pending(upload), _decoded(body, PartUrls)
        valid_s, now = self._limits.store.signed_urls_s, self._store.files.clock()
        if valid_s is UNSET:
            message = "the job store has no `signed_urls_s`; send parts through this API"
            raise BadInput(501, "signed_urls_not_offered", message)
        if not 1 <= asked.parts <= MAX_SIGNED_PARTS:
            raise BadInput(400, "invalid_parts", f"`parts` is not a number from 1 to {MAX_SIGNED_PARTS}", "parts")
        # No URL is valid when the parts are deleted.
        valid_s = int(min(valid_s, record.expires_at - now)) or 1
        parts = [signed_part(upload, number) for number in range(asked.parts)]
        paths = [self._paths(upload).part(part, 0) for part in parts]
        urls = await self._store.uploads.storage.sign(paths, valid_s, "PUT")
        items = [{"id": part, "method": "PUT", "url": url} for part, url in zip(parts, urls, strict=True)]
        return json_response({"object": "list", "data": items, "expires_at": int(now) + valid_s})

    async def complete(self, upload: str, body: bytes) -> Answer:
        """Check the parts, and make them a file; again is as good as once."""
        record, asked, paths = await self._find(upload), _decoded(body, Completion), self._paths(upload)
        if not 1 <= len(asked.part_ids) <= MAX_PARTS:
            raise BadInput(400, "invalid_parts", f"`part_ids` has not 1 to {MAX_PARTS} parts", "part_ids")
        end = await self._store.uploads.find_end(paths)
        if end is None or end.part_ids != asked.part_ids:
            await self._pending(upload)
            problem = await self._store.uploads.take_problem(paths, asked)
            if problem is not None:
                raise BadInput(problem.status, problem.code, problem.message, problem.param)
            failure: BadInput | None = None
            try:
                if not await self._completions.run(self._store, paths, record, asked, self._limits):
                    return await self._shown(record, status=202)
            except BadInput as error:
                failure = error
            # Meanwhile another agent may have completed the upload, and deleted the parts that this one was to read, or
            # another request have ended it otherwise.
            end = await self._store.uploads.find_end(paths)
            if end is None or end.part_ids != asked.part_ids:
                if failure is None:
                    await self._pending(upload)
                else:
                    raise failure
        return await self._shown(record)

    async def cancel(self, upload: str) -> Answer:
        """Cancel an upload, and delete its parts; twice is as good as once."""
        record, paths = await self._find(upload), self._paths(upload)
        if not await self._store.uploads.end(paths, UploadEnd(UploadState.CANCELLED)):
            await self._refuse_ended(record, UploadState.COMPLETED)
        return await self._shown(record)

    def _paths(self, upload: str) -> UploadPaths:
        return UploadPaths(self._limits.tenant, upload)

    async def _find(self, upload: str) -> UploadRecord:
        record = await self._store.uploads.find(self._paths(upload))
        if record is None:
            raise BadInput(404, "no_such_upload", f"no upload named {upload[:64]!r} exists", "upload_id")
        return record

    async def _pending(self, upload: str) -> UploadRecord:
        """Return an upload that has neither ended nor expired."""
        record = await self._find(upload)
        await self._refuse_ended(record, UploadState.COMPLETED, UploadState.CANCELLED, UploadState.EXPIRED)
        return record

    async def _refuse_ended(self, record: UploadRecord, *states: UploadState) -> None:
        end = await self._store.uploads.find_end(self._paths(record.id))
        state = state_of(record, end, self._store.files.clock())
        if state in states:
            raise BadInput(409, "upload_has_ended", f"the upload is {state.value}", "upload_id")

    async def _shown(self, record: UploadRecord, status: int = 200) -> Answer:
        end = await self._store.uploads.find_end(self._paths(record.id))
        file: FileRecord | None = None
        if end is not None and end.file_id:
            file = await self._store.files.find(self._limits.tenant, end.file_id)
        shown = None if file is None else file_object(file, self._limits.store.retention_s)
        state = state_of(record, end, self._store.files.clock())
        return json_response(upload_object(record, state, shown), status)


def _decoded(body: bytes, kind: type[_Body]) -> _Body:
    if len(body) > MAX_BODY_BYTES:
        raise BadInput(413, "body_too_large", f"the body has more than {MAX_BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(400, "bad_request", f"the body is not a request for this path: {error}") from None
