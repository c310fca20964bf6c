"""Anthropic's Message Batches API, on the files and batches of OpenAI's.

Source: https://platform.claude.com/docs/en/api/creating-message-batches and the pages beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from penstock.jobs import store_paths
from penstock.jobs.batches.message_batch import (
    ENDPOINT,
    MAX_REQUESTS,
    MessageRequest,
    decode_requests,
    input_line,
    message_batch_object,
    problem_text,
)
from penstock.jobs.batches.request_line import LineChecks
from penstock.jobs.job_records import BatchRecord, FileRecord, JobSender
from penstock.jobs.store_paths import JobPaths
from penstock.routing.reasons import Reason
from regional_agent.jobs.api.api_responses import Answer, BadInput, Content, json_response
from regional_agent.jobs.api.batches_api import idempotency_key_of, job_of_key, refuse_further_batches
from regional_agent.jobs.api.merged_lists import ListedStore
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_stores_in_use import OpenStore
from regional_agent.jobs.uploads.input_writer import InputLimits, InputWriter

LIFETIME_S: Final = 86_400
"""Time (s) for which a batch may wait and run, as at Anthropic."""

_AT_ONCE: Final = 200
"""Requests that are checked before other tasks of the event loop run."""


class MessageBatchesApi:
    """The message batches of one tenant."""

    def __init__(self, store: OpenStore, sender: JobSender, checks: LineChecks, on_created: Callable[[], None]) -> None:
        """Create the API for requests of `sender`.

        Args:
            checks: of the requests of new batches.
            on_created: called when a batch can be run.
        """
        self._opened = store
        self._batches: BatchStore = store.batches
        self._files: FileStore = store.files
        self._store = store.document
        self._sender = sender
        self._checks = checks
        self._on_created = on_created

    async def create(self, body: bytes, idempotency_key: bytes, webhook: str) -> Answer:
        """Create a batch; its requests are stored as an input file.

        Args:
            idempotency_key: value of the header Idempotency-Key; a repeated request returns the batch of the first.
                Empty without one.
            webhook: see `BatchRecord.webhook`.
        """
        tenant, now = self._sender.tenant, self._files.clock()
        batch = self._files.new_id(store_paths.MESSAGE_BATCH)
        if idempotency_key:
            parts = (idempotency_key_of(idempotency_key), body)
            (_, batch), known = await job_of_key(self._batches, store_paths.MESSAGE_BATCH, tenant, parts)
            if known is not None:
                return await self.show(batch)
        try:
            new = decode_requests(body, min(MAX_REQUESTS, self._store.max_requests))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the body is not a request for a batch: {error}"
            raise BadInput(400, Reason.BAD_REQUEST.value, message) from None
        await refuse_further_batches(self._batches, self._store, tenant)
        file = await self._write_input(new, batch)
        record = BatchRecord(
            batch, self._sender, file.id, ENDPOINT, "24h", int(now), int(now) + LIFETIME_S, file.requests, None, webhook
        )
        if await self._batches.create(record):
            self._on_created()
        else:
            await self._files.delete(tenant, file)
        return await self.show(batch)

    async def _write_input(self, new: list[MessageRequest], batch: str) -> FileRecord:
        """Check the requests, and write them as a file."""
        writer = InputWriter(self._files, InputLimits(self._sender.tenant, self._store, self._checks), problem_text)
        try:
            await writer.begin()
            for number, request in enumerate(new):
                writer.feed(input_line(request))
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                    await writer.flush()
                if writer.is_refused:
                    break
            return await writer.finish(f"{batch}_input.jsonl")
        finally:
            writer.close()

    async def view(self, batch: str) -> dict[str, Any]:
        """Return a batch as an object."""
        return await self._object(await self._find(batch))

    async def show(self, batch: str) -> Answer:
        """Return a batch."""
        return json_response(await self.view(batch))

    async def cancel(self, batch: str) -> Answer:
        """Request the cancellation of a batch; one that has ended stays as it is."""
        record = await self._find(batch)
        paths = JobPaths(self._sender.tenant, batch)
        if await self._batches.find_end(paths) is None:
            await self._batches.cancel(paths, self._files.clock())
            self._on_created()
        return json_response(await self._object(record))

    async def delete(self, batch: str) -> Answer:
        """Delete a batch that has ended, with its requests and results."""
        record = await self._find(batch)
        paths = JobPaths(self._sender.tenant, batch)
        if await self._batches.find_end(paths) is None:
            raise BadInput(400, "batch_in_progress", "the batch has not ended; cancel it first")
        file = await self._files.find(self._sender.tenant, record.input_file_id)
        if file is not None:
            await self._files.delete(self._sender.tenant, file)
        await self._batches.delete(paths)
        return json_response({"id": batch, "type": "message_batch_deleted"})

    async def results(self, batch: str) -> Answer:
        """Return the results of a batch that has ended, a line for each request."""
        await self._find(batch)
        progress = await self._batches.progress(JobPaths(self._sender.tenant, batch))
        end = progress.end
        if end is None:
            raise BadInput(404, "no_results", "the batch has not ended; see its `processing_status`")
        files = [
            file
            for each in (end.output_file_id, end.error_file_id)
            if each is not None and (file := await self._files.find(self._sender.tenant, each)) is not None
        ]
        lines = (b"content-type: application/x-jsonl\r\n",)
        return Content(sum(file.size_bytes for file in files), self._read(files), lines)

    async def _read(self, files: list[FileRecord]) -> AsyncIterator[bytes]:
        for file in files:
            async for part in self._files.read(file):
                yield part

    def listed(self) -> ListedStore:
        """Return the batches as a list shows them."""

        async def show(batch: str) -> dict[str, Any] | None:
            record = await self._batches.find(JobPaths(self._sender.tenant, batch))
            return None if record is None else await self._object(record)

        return ListedStore(self._opened, store_paths.batches(self._sender.tenant), show, store_paths.MESSAGE_BATCH)

    async def _find(self, batch: str) -> BatchRecord:
        record = None
        if store_paths.is_id(store_paths.MESSAGE_BATCH, batch):
            record = await self._batches.find(JobPaths(self._sender.tenant, batch))
        if record is None:
            raise BadInput(404, "no_such_batch", f"no batch named {batch[:64]!r} exists")
        return record

    async def _object(self, record: BatchRecord) -> dict[str, Any]:
        progress = await self._batches.progress(JobPaths(record.sender.tenant, record.id))
        return message_batch_object(record, *progress[:2], cancelling_at=progress.cancelling_at)
