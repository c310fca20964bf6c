"""Runs one asynchronous request under a claim."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog
from msgspec.structs import replace

from adapters.object_store.object_store import ObjectMissing, StoreUnavailable
from penstock.jobs.async_request import KEPT_RESPONSE_HEADERS, TRANSITIONS, AsyncRequest, JobEnd, JobState
from penstock.jobs.claims import LEASE_S, RENEW_S
from penstock.jobs.job_records import Claim
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.response_progress import ResponseProgress
from penstock.jobs.store_paths import JobPaths
from penstock.ledger.spool_format import JobResult
from regional_agent.jobs.internal_connection import InternalResponse, ResponsePart
from regional_agent.jobs.job_deadline import JobDeadline
from regional_agent.jobs.request_attempts import RequestRunner, StoredRequest
from regional_agent.jobs.storage.batch_store import BatchStore

RETRY_S: Final = 5.0
"""Delay (s) before a failed write is repeated."""

log = structlog.get_logger()


class RequestRun:
    """One asynchronous request, as this agent runs it."""

    def __init__(
        self,
        record: AsyncRequest,
        claim: Claim,
        jobs: BatchStore,
        runner: RequestRunner,
        memory: ResponseMemory,
    ) -> None:
        """Prepare to run a request that this agent has claimed.

        Args:
            runner: runs requests as the request's sender.
            memory: counts the body and the response until `free_memory`.
        """
        self.held_records = runner.held_records
        self._memory = memory
        self._held_bytes = 0
        self._hold(record.body_bytes)
        self.record = record
        self.claim = claim
        self.paths = JobPaths(record.sender.tenant, record.id)
        self._jobs = jobs
        self._runner = runner
        self._state = JobState.IN_PROGRESS
        self._progress = ResponseProgress()
        self._deadline = JobDeadline(record.id, record.expires_at, jobs.storage)
        self._is_expired = False
        self.has_response = False
        """Whether the request need not run any more: what is left is to write its result."""

    async def run(self) -> JobEnd | None:
        """Run the request to its end, and return it; None if another agent has ended it.

        Raises:
            ClaimLost: another agent runs the request.
            StoreUnavailable: the body of the request cannot be read.
        """
        record = self.record
        self._is_expired = await self._deadline.has_passed()
        if self._is_stopped():
            return await self._end(None)
        try:
            body = await self._jobs.storage.read(self.paths.body) if record.body_bytes else b""
        except ObjectMissing:
            return await self._end("the body of the request is no longer in the store")
        lines = [f"{record.method} {record.target} HTTP/1.1\r\nhost: penstock\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in record.headers]
        request = StoredRequest("".join(lines).encode("latin-1"), body)
        running = asyncio.create_task(self._run(request), name="asynchronous request")
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=RENEW_S)
                if not running.done():
                    await self._renew(running)
            found = None if running.cancelled() else await running
        finally:
            running.cancel()
        return await self._end(found)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._memory.hold(size_bytes)

    def free_memory(self) -> None:
        """Count the request no longer."""
        self._memory.free(self._held_bytes)
        self._held_bytes = 0

    async def _run(self, request: StoredRequest) -> InternalResponse | str | None:
        found = await self._runner.run(request, self._is_stopped, self._on_part)
        self.has_response = True
        if isinstance(found, InternalResponse):
            self._hold(len(found.body))
        return found

    def _on_part(self, part: ResponsePart) -> bool:
        self._progress.add(part.headers, part.content)
        return False

    def cancel(self) -> None:
        """Do not run the request, because it was cancelled."""
        self._state = JobState.CANCELLING

    def _is_stopped(self) -> bool:
        return self._is_expired or self._state is JobState.CANCELLING

    async def _renew(self, running: asyncio.Task[InternalResponse | str | None]) -> None:
        """Renew the claim, and end the request if it was cancelled or has expired. Raises ClaimLost."""
        try:
            if time.time() >= self.claim.until:
                # The agent was paused, and what it sends again would run twice.
                await self._jobs.check_claim(self.paths, self.claim)
            self._is_expired = await self._deadline.has_passed()
            if await self._jobs.is_cancelled(self.paths):
                self.cancel()
            else:
                self.claim = replace(
                    self.claim,
                    until=time.time() + LEASE_S,
                    received_bytes=self._progress.received_bytes,
                    progress=self._progress.reported,
                )
                await self._jobs.renew(self.paths, self.claim)
        except StoreUnavailable as error:
            log.warning("the claim of a request was not renewed", job=self.record.id, error=str(error))
        if self._is_stopped():
            running.cancel()

    async def give_up(self) -> None:
        """End the claim, so that another agent runs the request at once."""
        await self._jobs.give_up(self.record, self.claim)

    async def _end(self, found: InternalResponse | str | None) -> JobEnd | None:
        """Write the result and the end."""
        while True:
            try:
                await self.held_records.save(
                    JobResult(self._jobs.region, self.paths.tenant, self.paths.id, self.claim.number, 0)
                )
                end = await self._result(found)
                assert end.state in TRANSITIONS[self._state]
                if not await self._jobs.end(self.record, end):
                    return None
                self.held_records.release(0)
                return end
            except StoreUnavailable as error:
                log.warning("the result of a request was not written", job=self.record.id, error=str(error))
            await asyncio.sleep(RETRY_S)

    async def _result(self, found: InternalResponse | str | None) -> JobEnd:
        now, claim = time.time(), self.claim.number
        if found is None:
            cancelled = self._state is JobState.CANCELLING
            return JobEnd(JobState.CANCELLED if cancelled else JobState.EXPIRED, now, claim=claim)
        if isinstance(found, str):
            return JobEnd(JobState.FAILED, now, error=found, claim=claim)
        path = self.paths.result(claim)
        await self._jobs.storage.put(path, found.body)
        headers = tuple(
            (name.decode(), found.headers[name].decode("latin-1"))
            for name in KEPT_RESPONSE_HEADERS
            if name in found.headers
        )
        return JobEnd(JobState.COMPLETED, now, found.status, headers, path, len(found.body), claim=claim)
