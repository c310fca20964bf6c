"""Asynchronous requests: `Prefer: respond-async` on any route (RFC 7240), and `/v1/jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.http.header_rules import NOT_FOR_ENGINES
from penstock.jobs import store_paths
from penstock.jobs.async_request import (
    MAX_HEADERS,
    NO_CLAIM,
    WINDOW_HEADER,
    AsyncRequest,
    JobEnd,
    JobState,
    job_object,
    job_state,
)
from penstock.jobs.completion_window import DEFAULT_WINDOW
from penstock.jobs.job_records import JobSender
from penstock.jobs.request_queue import RequestQueue
from penstock.jobs.store_paths import JobPaths
from penstock.jobs.webhook import URL_HEADER
from regional_agent.http.messages import Request
from regional_agent.jobs.api.api_responses import Answer, BadInput, Content, Response, json_response
from regional_agent.jobs.api.batches_api import deadline_or_refuse, idempotency_key_of, job_of_key
from regional_agent.jobs.api.files_api import signed_urls
from regional_agent.jobs.api.merged_lists import ListedStore
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_stores_in_use import OpenStore

PREFER: Final = b"prefer"
_ASYNC: Final = b"respond-async"

_DROPPED: Final = NOT_FOR_ENGINES | {
    PREFER,
    URL_HEADER,
    WINDOW_HEADER,
    b"idempotency-key",
    b"cookie",
    b"transfer-encoding",
}
"""Headers that are not stored."""


def wants_async(request: Request) -> bool:
    """Whether the client prefers not to wait for the response."""
    if request.plain:
        return False
    wanted = b",".join(request.every(PREFER)).lower().split(b",")
    return any(preference.partition(b";")[0].strip() == _ASYNC for preference in wanted)


class JobsApi:
    """The asynchronous requests of one tenant."""

    def __init__(
        self, store: OpenStore, sender: JobSender, on_created: Callable[[], None], queue: RequestQueue
    ) -> None:
        """Create the API for requests of `sender`; `on_created` is called when a request can be run."""
        self._queue = queue
        self._opened = store
        self._jobs: BatchStore = store.batches
        self._files: FileStore = store.files
        self._store = store.document
        self._sender = sender
        self._on_created = on_created

    async def submit(self, request: Request, webhook: str) -> Answer:
        """Accept a request, and return where its result will be; see `AsyncRequest.webhook`."""
        tenant, now = self._sender.tenant, self._files.clock()
        headers = [(name.decode(), value.decode("latin-1")) for name, value in request.headers if name not in _DROPPED]
        if len(headers) > MAX_HEADERS:
            raise BadInput(400, "too_many_headers", f"an asynchronous request has more than {MAX_HEADERS} headers")
        window = (request.header(WINDOW_HEADER) or DEFAULT_WINDOW.encode()).decode("latin-1")
        expires_at = deadline_or_refuse(window, int(now), WINDOW_HEADER.decode())
        body, key = bytes(request.body), idempotency_key_of(request.header(b"idempotency-key") or b"")
        paths, known = JobPaths(tenant, self._files.new_id(store_paths.JOB)), None
        if key:
            # Another request with the key has another identifier.
            parts = (key, request.method, request.target, body)
            paths, known = await job_of_key(self._jobs, store_paths.JOB, tenant, parts)
        if not isinstance(known, AsyncRequest):
            known = AsyncRequest(
                paths.id,
                self._sender,
                request.method.decode(),
                request.target.decode("latin-1"),
                tuple(headers),
                len(body),
                int(now),
                expires_at,
                webhook,
                window,
            )
            await self._create(known, body)
        lines = (f"location: /v1/jobs/{paths.id}\r\npreference-applied: respond-async\r\n".encode(),)
        return Response(202, json_response(await self._object(known)).body, lines)

    async def _create(self, record: AsyncRequest, body: bytes) -> None:
        jobs, tenant, paths = self._jobs, self._sender.tenant, JobPaths(self._sender.tenant, record.id)
        open_jobs, held_bytes = await asyncio.gather(jobs.open_of(tenant), jobs.body_bytes(tenant))
        if open_jobs >= self._store.max_open_requests:
            message = f"the tenant has {open_jobs} unfinished requests; retry when one has ended"
            raise BadInput(429, "too_many_requests", message)
        if held_bytes + len(body) > self._store.max_tenant_bytes:
            await jobs.drop_ended_bodies(tenant, self._store.covers or ())
            held_bytes = await jobs.body_bytes(tenant)
        if held_bytes + len(body) > self._store.max_tenant_bytes:
            message = f"the unfinished requests of the tenant would have more than {self._store.max_tenant_bytes} bytes"
            raise BadInput(429, "storage_full", f"{message}; retry when some have ended")
        await jobs.storage.put(paths.mark(jobs.region, record.expires_at), b"")
        if body:
            await jobs.put_body(paths, body)
        await jobs.storage.put_new_record(paths.record, record)
        self._on_created()

    async def view(self, job: str) -> dict[str, object]:
        """Return a request and its state as an object."""
        return await self._object(await self._find(job))

    async def show(self, job: str) -> Answer:
        """Return a request and its state."""
        return json_response(await self.view(job))

    async def result(self, job: str) -> Answer:
        """Return the response, as the engine sent it."""
        end = await self._response_end(job)
        lines = tuple(f"{name}: {value}\r\n".encode("latin-1") for name, value in end.headers)
        return Content(
            end.body_bytes, self._jobs.storage.pieces(end.body_path, end.body_bytes), lines, end.status or 200
        )

    async def urls(self, job: str) -> Answer:
        """Return a URL of the store for the body of the response."""
        end = await self._response_end(job)
        return await signed_urls(self._jobs.storage, [(end.body_path, end.body_bytes)], self._store.signed_urls_s)

    async def _response_end(self, job: str) -> JobEnd:
        """Return the end of a request that has a response."""
        end = await self._end(await self._find(job))
        if end is None or end.status is None:
            raise BadInput(409, "no_result", "the job has no response; see its `status`")
        return end

    async def cancel(self, job: str) -> Answer:
        """Cancel a request that waits, and request the cancellation of one that runs; one that has ended stays as it
        is."""
        record, paths = await self._find(job), JobPaths(self._sender.tenant, job)
        if await self._end(record) is None:
            await self._jobs.cancel(paths, self._files.clock())
            # An agent that claims the request from now on reads the cancellation before it runs the request.
            if await self._jobs.newest_claim(paths) is None:
                await self._jobs.end(record, JobEnd(JobState.CANCELLED, self._files.clock(), claim=NO_CLAIM))
        return json_response(await self._object(record))

    async def delete(self, job: str) -> Answer:
        """Delete a request that has ended, with its result; request the cancellation of another one."""
        record = await self._find(job)
        if await self._end(record) is None:
            return await self.cancel(job)
        await self._jobs.delete(JobPaths(self._sender.tenant, job))
        return json_response({"id": job, "object": "job", "deleted": True})

    def listed(self) -> ListedStore:
        """Return the requests as a list shows them."""

        async def show(job: str) -> dict[str, Any] | None:
            record = await self._record(job)
            return None if record is None else await self._object(record)

        return ListedStore(self._opened, store_paths.jobs(self._sender.tenant), show, store_paths.JOB)

    async def _find(self, job: str) -> AsyncRequest:
        record = await self._record(job)
        if record is None:
            raise BadInput(404, "no_such_job", f"no job named {job[:64]!r} exists", "job_id")
        return record

    async def _record(self, job: str) -> AsyncRequest | None:
        if not store_paths.is_id(store_paths.JOB, job):
            return None
        return await self._jobs.storage.find_record(JobPaths(self._sender.tenant, job).record, AsyncRequest)

    async def _end(self, record: AsyncRequest) -> JobEnd | None:
        return await self._jobs.storage.find_record(JobPaths(self._sender.tenant, record.id).end, JobEnd)

    async def _object(self, record: AsyncRequest) -> dict[str, object]:
        paths, end = JobPaths(self._sender.tenant, record.id), await self._end(record)
        claim = await self._jobs.newest_claim(paths)
        is_cancelled = end is None and await self._jobs.is_cancelled(paths)
        if end is None and not is_cancelled:
            # The end of a cancelled request removes the mark, and may have done so since.
            end = await self._end(record)
        state = job_state(claim, end, is_cancelled=is_cancelled)
        expected = self._queue.forecast(record, claim, state, self._files.clock())
        return job_object(record, claim, end, state, expected, retention_s=self._store.retention_s)
