"""The upload of a file: checked and written to the store as it arrives, in constant memory."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs.job_records import FilePart, FileRecord
from penstock.jobs.request_line import LineChecks
from penstock.policy.kinds.jobs import JobStore
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import JSON, Answer, BadInput, Refuse, Response, answer_of, json_response
from regional_agent.jobs.storage.file_store import FileStore, file_object
from regional_agent.jobs.uploads.input_file import InputFile
from regional_agent.jobs.uploads.upload_form import BadForm, UploadForm

QUEUED_BYTES: Final = 1024 * 1024
"""Received bytes from which reading from the client pauses until they are processed."""

SHOWN_PROBLEMS: Final = 10
"""Number of problems of lines in an error message."""

PURPOSE: Final = "batch"

log = structlog.get_logger()


class UploadLimits(NamedTuple):
    """Whose file an upload is, and what limits it."""

    tenant: str
    store: JobStore
    checks: LineChecks


class FileUpload:
    """The handler of an upload."""

    def __init__(
        self, request: Request, connection: ClientConnection, refuse: Refuse, files: FileStore, limits: UploadLimits
    ) -> None:
        """Begin with the part of the body that has arrived.

        Raises:
            BadForm: the request's Content-Type is not that of a form.
        """
        store = limits.store
        self._input = InputFile(limits.checks, store.max_file_bytes, store.max_requests)
        self._form = UploadForm(request.header(b"content-type") or b"", self._input.feed)
        self._request = request
        self._connection = connection
        self._refuse = refuse
        self._files = files
        self._limits = limits
        self.tenant = limits.tenant
        self._id = files.new_id()
        self._written: list[FilePart] = []
        self._chunks: deque[bytes] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._ended = request.whole
        received = bytes(request.body)
        connection.listener.bodies.drop(request)
        self._add(received)
        self._task = asyncio.create_task(self._run(), name="file upload")

    @property
    def is_active(self) -> bool:
        """Whether the upload has not ended."""
        return not self._task.done()

    # RequestHandler

    def on_client_gone(self) -> None:
        """Drop what was written."""
        self._task.cancel()

    def on_client_writable(self, writable: bool) -> None:
        """Do nothing: the response is short."""

    def on_request_body(self, chunk: bytes) -> None:
        """Queue a part of the body."""
        self._add(chunk)

    def on_request_end(self) -> None:
        """Process the end of the body."""
        self._ended = True
        self._arrived.set()

    def on_request_refused(self, refusal: Refusal) -> None:
        """Drop what was written, and refuse the request."""
        self._task.cancel()
        self._connection.respond(*self._refuse(refusal, self._request))

    def drop_body(self) -> bool:
        """Return True: the body is not kept."""
        return True

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._queued_bytes += len(chunk)
        if self._queued_bytes > QUEUED_BYTES and not self._ended:
            self._connection.pause_reading()
        self._arrived.set()

    async def _run(self) -> None:
        try:
            answer = await answer_of(self._answer())
            if isinstance(answer, Refusal):
                self._connection.respond(*self._refuse(answer, self._request))
            elif isinstance(answer, Response):
                self._connection.respond(answer.status, [JSON], answer.body)
        except Exception:
            log.exception("an upload failed")
            self._connection.abort()
        finally:
            self._input.close()

    async def _answer(self) -> Answer:
        is_kept = False
        try:
            used_bytes = await self._files.used_bytes(self._limits.tenant)
            await self._receive(self._limits.store.max_tenant_bytes - used_bytes)
            record = FileRecord(
                self._id,
                self._form.filename,
                PURPOSE,
                int(self._files.clock()),
                self._input.size_bytes,
                tuple(self._written),
                self._input.lines,
                self._input.requests,
                self._input.urls,
            )
            await self._files.put(self._limits.tenant, record)
            is_kept = True
        except BadForm as error:
            raise BadInput(400, Reason.BAD_REQUEST.value, str(error)) from None
        finally:
            if not is_kept and self._written:
                # Not awaited here: the task may have been cancelled.
                self._dropping = asyncio.create_task(self._drop(), name="drop of an upload")
        return json_response(file_object(record, self._limits.store.retention_s))

    async def _receive(self, left_bytes: int) -> None:
        """Write the parts of the file until its end; `left_bytes` is left of the tenant's storage."""
        file = self._input
        while not (self._ended and not self._chunks):
            if not self._chunks:
                self._arrived.clear()
                self._connection.resume_reading()
                await self._arrived.wait()
                continue
            chunk = self._chunks.popleft()
            self._queued_bytes -= len(chunk)
            self._form.feed(chunk)
            if file.is_refused:
                break
            if file.size_bytes > left_bytes:
                message = f"the files of the tenant would take more than {self._limits.store.max_tenant_bytes} bytes"
                raise BadInput(413, "storage_full", f"{message}; delete files")
            await self._write_parts()
        if not file.is_refused:
            self._form.finish()
            if self._form.purpose != PURPOSE:
                raise BadInput(400, "invalid_purpose", "`purpose` is not `batch`, the only one here", "purpose")
            await asyncio.to_thread(file.finish)
        if file.problems:
            shown = "; ".join(problem.message for problem in file.problems[:SHOWN_PROBLEMS])
            more = len(file.problems) - SHOWN_PROBLEMS
            raise BadInput(400, file.problems[0].code, shown + (f"; and {more} more" if more > 0 else ""), "file")
        await self._write_parts()

    async def _write_parts(self) -> None:
        parts, self._input.parts = self._input.parts, []
        await self._files.write_parts(self._limits.tenant, self._id, parts, self._written)

    async def _drop(self) -> None:
        try:
            await self._files.drop_parts(tuple(self._written))
        except StoreUnavailable as error:
            log.warning("parts of an upload were not deleted", file=self._id, error=str(error))
