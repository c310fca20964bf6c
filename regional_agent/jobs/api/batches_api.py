"""OpenAI's Batch API (https://platform.openai.com/docs/api-reference/batch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from penstock.jobs import store_paths
from penstock.jobs.batches.batch_state import BatchState, is_end
from penstock.jobs.batches.batch_view import batch_object, state_of
from penstock.jobs.batches.new_batch import MAX_METADATA, NewBatch, is_metadata_too_large, mismatches
from penstock.jobs.completion_window import MAX_WINDOW_S, deadline_of
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, JobSender
from penstock.jobs.store_paths import JobPaths
from penstock.policy.kinds.jobs import JobStore
from regional_agent.jobs.api.api_responses import Answer, BadInput, json_response
from regional_agent.jobs.api.files_api import no_such_file
from regional_agent.jobs.api.merged_lists import ListedStore
from regional_agent.jobs.storage.batch_store import BatchStore, JobRecord
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_stores_in_use import OpenStore

MAX_IDEMPOTENCY_KEY: Final = 256

MAX_DELETED: Final = 100
"""Number of deleted jobs with one Idempotency-Key and one body after which it is refused."""


class BatchesApi:
    """The batches of one tenant."""

    def __init__(
        self,
        store: OpenStore,
        sender: JobSender,
        on_created: Callable[[], None],
        expected_of_waiting: Callable[[BatchRecord, float], int | None],
    ) -> None:
        """Create the API for requests of `sender`.

        Args:
            on_created: called when a batch can be run.
            expected_of_waiting: returns when (Unix time, s) a batch that no agent runs yet would be complete.
        """
        self._expected_of_waiting = expected_of_waiting
        self._opened = store
        self._batches: BatchStore = store.batches
        self._files: FileStore = store.files
        self._store = store.document
        self._sender = sender
        self._on_created = on_created

    async def create(self, body: bytes, idempotency_key: bytes, webhook: str) -> Answer:
        """Create a batch.

        Args:
            idempotency_key: value of the header Idempotency-Key; a repeated request returns the batch of the first.
                Empty without one.
            webhook: see `BatchRecord.webhook`.
        """
        new = _new_batch(body)
        tenant = self._sender.tenant
        now = self._files.clock()
        expires_at = deadline_or_refuse(new.completion_window, int(now), "completion_window")
        file = await self._files.find(tenant, new.input_file_id)
        if file is None:
            raise no_such_file(new.input_file_id, "input_file_id")
        if not file.urls:
            raise BadInput(400, "invalid_input_file", "the file is no input of a batch", "input_file_id")
        batch_id = self._files.new_id(store_paths.BATCH)
        if idempotency_key:
            # The time in such an identifier is that of the file, so that a repetition has the same one.
            stamp = new.input_file_id.removeprefix(store_paths.FILE)[:12]
            parts = (tenant.encode(), new.input_file_id.encode(), idempotency_key_of(idempotency_key))
            digest = sha256(b"\0".join(parts)).hexdigest()
            batch_id = f"{store_paths.BATCH}{stamp}{digest[:20]}"
            if await self._batches.find(JobPaths(tenant, batch_id)) is not None:
                return await self._repeated(JobPaths(tenant, batch_id), new)
        await refuse_further_batches(self._batches, self._store, tenant)
        record = BatchRecord(
            batch_id,
            self._sender,
            file.id,
            new.endpoint,
            new.completion_window,
            int(now),
            expires_at,
            file.requests,
            new.metadata,
            webhook,
            None if new.output_expires_after is None else new.output_expires_after.seconds,
        )
        paths = JobPaths(tenant, batch_id)
        if not await self._batches.create(record):
            return await self._repeated(paths, new)
        problems = mismatches(file, new.endpoint)
        if problems:
            await self._batches.end(record, BatchEnd(BatchState.FAILED, now, BatchCounts(), errors=problems))
        else:
            self._on_created()
        return await self.show(batch_id)

    async def _repeated(self, paths: JobPaths, new: NewBatch) -> Answer:
        """Answer a request whose batch exists."""
        record = await self._batches.find(paths)
        if record is None or (record.endpoint, record.completion_window) != (new.endpoint, new.completion_window):
            message = "another batch was created with this Idempotency-Key"
            raise BadInput(409, "idempotency_key_reused", message)
        return await self.show(paths.id)

    async def view(self, batch: str) -> dict[str, object]:
        """Return a batch as an object."""
        return await self._object(await self._find(batch))

    async def show(self, batch: str) -> Answer:
        """Return a batch."""
        return json_response(await self.view(batch))

    async def cancel(self, batch: str) -> Answer:
        """Request the cancellation of a batch; twice is as good as once."""
        record = await self._find(batch)
        paths = JobPaths(record.sender.tenant, batch)
        progress = await self._batches.progress(paths)
        state = state_of(*progress[:2], is_cancelled=progress.cancelling_at is not None)
        if is_end(state) and state is not BatchState.CANCELLED:
            raise BadInput(409, "batch_has_ended", f"the batch is {state.value}, so it cannot be cancelled")
        if state is not BatchState.CANCELLED:
            await self._batches.cancel(paths, self._files.clock())
            self._on_created()
        return json_response(await self._object(record))

    def listed(self) -> ListedStore:
        """Return the batches as a list shows them."""

        async def show(batch: str) -> dict[str, Any] | None:
            record = await self._batches.find(JobPaths(self._sender.tenant, batch))
            return None if record is None else await self._object(record)

        return ListedStore(self._opened, store_paths.batches(self._sender.tenant), show, store_paths.BATCH)

    async def _find(self, batch: str) -> BatchRecord:
        record = None
        if store_paths.is_id(store_paths.BATCH, batch):
            record = await self._batches.find(JobPaths(self._sender.tenant, batch))
        if record is None:
            raise BadInput(404, "no_such_batch", f"no batch named {batch[:64]!r} exists", "batch_id")
        return record

    async def _object(self, record: BatchRecord) -> dict[str, object]:
        progress = await self._batches.progress(JobPaths(record.sender.tenant, record.id))
        now = self._files.clock()
        expected = self._expected_of_waiting(record, now)
        return batch_object(
            record, *progress[:2], cancelling_at=progress.cancelling_at, now=now, expected_of_waiting=expected
        )


def idempotency_key_of(value: bytes) -> bytes:
    """Return the value of the header Idempotency-Key. Raises BadInput for one that is too long."""
    if len(value) > MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key has more than {MAX_IDEMPOTENCY_KEY} bytes"
        raise BadInput(400, "invalid_idempotency_key", message)
    return value


async def job_of_key(
    jobs: BatchStore, prefix: str, tenant: str, parts: Sequence[bytes]
) -> tuple[JobPaths, JobRecord | None]:
    """Return the job of a request with an Idempotency-Key, and its record if it exists. Raises BadInput.

    A job that was deleted has left its end: its identifier is not used again until the end is deleted by age. A later
    job with the key may exist then.

    Args:
        parts: what the request consists of, its key included.
    """
    free: JobPaths | None = None
    for deleted in range(MAX_DELETED):
        number = (b"%d" % deleted,) if deleted else ()
        paths = JobPaths(tenant, store_paths.repeatable_id(prefix, tenant.encode(), *parts, *number))
        record = await jobs.record(paths)
        if record is not None:
            return paths, record
        if await jobs.find_end(paths) is not None:
            free = None
        elif free is not None:
            break
        else:
            free = paths
    if free is not None:
        return free, None
    message = f"{MAX_DELETED} jobs with this Idempotency-Key were deleted; use another one"
    raise BadInput(409, "idempotency_key_reused", message)


def deadline_or_refuse(window: str, created_at: int, param: str) -> int:
    """Return the deadline (Unix time, s) by a completion window. Raises BadInput for one that is none."""
    expires_at = deadline_of(window, created_at)
    if expires_at is None:
        message = f"`{param}` is not a time such as 1h, 24h or 7d of at most {MAX_WINDOW_S // 86_400}d, nor none"
        raise BadInput(400, "invalid_completion_window", message, param)
    return expires_at


async def refuse_further_batches(batches: BatchStore, store: JobStore, tenant: str) -> None:
    """Raise BadInput if a tenant has as many unfinished batches as it may."""
    if await batches.open_of(tenant, batches_only=True) >= store.max_open_batches:
        message = f"the tenant has {store.max_open_batches} unfinished batches; retry when one has ended"
        raise BadInput(429, "too_many_batches", message)


def _new_batch(body: bytes) -> NewBatch:
    try:
        new = msgspec.json.decode(body, type=NewBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(400, "bad_request", f"the body is not a request for a batch: {error}") from None
    if is_metadata_too_large(new):
        message = f"`metadata` has more than {MAX_METADATA} pairs, or keys or values that are too long"
        raise BadInput(400, "invalid_metadata", message, "metadata")
    return new
