"""Runs one batch under a claim: its requests with bounded concurrency, their results in segments, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from adapters.object_store.object_store import ObjectMissing, StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.batches.batch_state import BatchState, end_running
from penstock.jobs.batches.item_results import OPENAI_LINES, UNRUN, problem_of, with_reasoning
from penstock.jobs.batches.item_results import request_id as request_id_of
from penstock.jobs.batches.line_splitter import LineSplitter
from penstock.jobs.batches.message_batch import MESSAGE_LINES
from penstock.jobs.batches.request_line import LineProblem, RequestLine, decode_line
from penstock.jobs.claims import LEASE_S, RENEW_S
from penstock.jobs.job_records import (
    NOTHING_USED,
    BatchCounts,
    BatchEnd,
    BatchRecord,
    BatchUsage,
    Claim,
    FilePart,
    FileRecord,
    result_file,
)
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.store_paths import JobPaths
from penstock.ledger.spool_format import JobResult
from regional_agent.jobs.batches.results import FLUSH_BYTES, Results
from regional_agent.jobs.internal_connection import InternalResponse
from regional_agent.jobs.job_deadline import JobDeadline
from regional_agent.jobs.request_attempts import RequestRunner, StoredRequest
from regional_agent.jobs.storage.batch_store import ClaimLost
from regional_agent.jobs.storage.job_stores_in_use import OpenStore

FLUSH_S: Final = 2.0
"""Maximum time (s) for which a result is in memory only: after a kill, requests of this time run again."""

GRACE_S: Final = 60.0
"""Time (s) that running requests have after a cancellation or the end of the completion window."""

LOST_RETRY_S: Final = 5.0
"""Delay (s) before a failed write is repeated."""

_HEADERS: Final = b"host: penstock\r\ncontent-type: application/json\r\n"
_ANTHROPIC_VERSION: Final = b"anthropic-version: 2023-06-01\r\n"

log = structlog.get_logger()


class _Damaged(Exception):
    """The store has another input than the one that was checked, from a line on."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: the input file in the store is damaged")
        self.line = line


class BatchRun:
    """One batch, as this agent runs it."""

    def __init__(
        self,
        record: BatchRecord,
        claim: Claim,
        store: OpenStore,
        runner: RequestRunner,
        concurrency: Callable[[], int],
        memory: ResponseMemory,
    ) -> None:
        """Prepare to run a batch that this agent has claimed.

        Args:
            runner: runs requests as the batch's sender.
            concurrency: how many requests may run at a time now.
            memory: counts results until they are written, or `free_memory`.
        """
        self.held_records = runner.held_records
        self._memory = memory
        self.record = record
        self.claim = claim
        self.paths = JobPaths(record.sender.tenant, record.id)
        self._batches = store.batches
        self._files = store.files
        self._retention_s = store.document.retention_s
        self._runner = runner
        self._concurrency = concurrency
        is_message = record.id.startswith(store_paths.MESSAGE_BATCH)
        self._lines = MESSAGE_LINES if is_message else OPENAI_LINES
        self._headers = _HEADERS + (_ANTHROPIC_VERSION if is_message else b"")
        self._ends_as: BatchState | None = None
        """EXPIRED or CANCELLED once no further request starts."""
        self._until = claim.until
        self._deadline = JobDeadline(record.id, record.expires_at, store.batches.storage)
        self._results: Results | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._failure: BaseException | None = None
        """What ended a request without a result."""
        self._room = asyncio.Event()
        self._began_with = 0
        self._began_at = time.monotonic()

    @property
    def counts(self) -> BatchCounts:
        """The written results."""
        results = self._results
        return BatchCounts() if results is None else results.counts

    @property
    def requests_left(self) -> int:
        """Number of requests without a result."""
        return self.record.requests - (0 if self._results is None else self._results.done.count)

    @property
    def per_s(self) -> float:
        """Rate (1/s) of results since this agent began to run the batch."""
        elapsed_s = time.monotonic() - self._began_at
        return (self.counts.completed + self.counts.failed - self._began_with) / elapsed_s if elapsed_s > 0 else 0.0

    async def run(self) -> BatchEnd | None:
        """Run the batch to its end, and return it; None if another agent has ended it.

        Raises:
            ClaimLost: another agent may run the batch.
            StoreUnavailable: the store cannot be read; the claim is still valid.
        """
        file = await self._files.find_kept(self.record.sender.tenant, self.record.input_file_id)
        if file is None:
            return await self._end(BatchState.FAILED, self._deleted())
        results = self._results = Results(
            self._batches, self.paths, self.claim.number, file.lines, self._memory, self._save_records
        )
        accepted = await self._load(results)
        self.claim = replace(self.claim, accepted=accepted, counts=self.counts)
        await self._renew()
        self._began_with = self.counts.completed + self.counts.failed
        if await self._deadline.has_passed():
            self.stop_as(BatchState.EXPIRED)
        keeper = asyncio.create_task(self._keep(results), name="results of a batch")
        reader = asyncio.create_task(self._run_all(file, results), name="requests of a batch")
        try:
            await asyncio.wait({keeper, reader}, return_when=asyncio.FIRST_COMPLETED)
            if keeper.done():
                await keeper  # raises ClaimLost
            problem = await reader
        finally:
            for task in (keeper, reader, *self._running):
                task.cancel()
            await asyncio.gather(keeper, reader, *self._running, return_exceptions=True)
        await self._write_rest(results)
        if self._failure is not None:
            # The batch runs again: it must not end without the result of a request.
            raise self._failure
        return await self._end(BatchState.FAILED if problem else self._ends_as or BatchState.COMPLETED, problem)

    async def _load(self, results: Results) -> tuple[tuple[int, int], ...]:
        """Read the results of earlier claims, and keep the claim meanwhile. Raises ClaimLost."""
        loading = asyncio.create_task(results.load(), name="results of earlier claims")
        try:
            while not (await asyncio.wait({loading}, timeout=RENEW_S))[0]:
                await self._check_claim()
                self.claim = replace(self.claim, until=time.time() + LEASE_S)
                await self._batches.renew(self.paths, self.claim)
            await self._check_claim()
            return loading.result()
        finally:
            loading.cancel()

    def free_memory(self) -> None:
        """Count unwritten results no longer."""
        if self._results is not None:
            self._results.free_memory()

    @property
    def is_stopped(self) -> bool:
        """Whether no further request starts."""
        return self._ends_as is not None

    def stop_as(self, state: BatchState) -> None:
        """Start no further request, because the batch was cancelled or has expired."""
        if self._ends_as is None:
            self._ends_as = state
            self._room.set()
            loop = asyncio.get_running_loop()
            loop.call_later(GRACE_S, self._cut)

    def pause(self, at_target: Collection[str]) -> bool:
        """Start no further request, and end those without a target, because the agent stops; returns whether one runs.

        Args:
            at_target: identifiers of the requests that a target may be running.
        """
        self._is_paused = True
        kept = {task for task in self._running if task.get_name() in at_target}
        for task in self._running - kept:
            task.cancel()
        return bool(kept)

    def _cut(self) -> None:
        for task in tuple(self._running):
            task.cancel()

    # requests

    async def _run_all(self, file: FileRecord, results: Results) -> tuple[LineProblem, ...]:
        """Run every line without a result; returns why the batch fails, or nothing."""
        before = 0
        for part in file.parts:
            lines = range(before + 1, before + part.lines + 1)
            if any(line not in results.done for line in lines):
                try:
                    content = await self._read(part)
                except ObjectMissing:
                    await self._wait_for_running()
                    return self._deleted()
                try:
                    if len(content) != part.size_bytes:
                        raise _Damaged(before + 1)
                    await self._run_part(content, before, results)
                except _Damaged as error:
                    await self._wait_for_running()
                    return (LineProblem("input_file_damaged", str(error), error.line),)
            else:
                await asyncio.sleep(0)
            before += part.lines
        await self._wait_for_running()
        return ()

    async def _read(self, part: FilePart) -> bytes:
        while True:
            try:
                return await self._batches.storage.read(part.path)
            except ObjectMissing:
                raise
            except StoreUnavailable as error:
                log.warning("a part of a batch's input cannot be read", batch=self.record.id, error=str(error))
                await asyncio.sleep(LOST_RETRY_S)

    async def _run_part(self, content: bytes, before: int, results: Results) -> None:
        splitter = LineSplitter()
        splitter.line = before
        for number, text in (*splitter.feed(content), *splitter.finish()):
            if number in results.done:
                continue
            while not self._may_start():
                self._room.clear()
                await self._room.wait()
            try:
                line, request_id = decode_line(text), request_id_of(self.record.id, number)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise _Damaged(number) from None
            if self._ends_as is not None:
                self._add_unrun(number, line, request_id, results)
                continue
            task = asyncio.create_task(self._run_line(number, line, request_id, results), name=request_id)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _may_start(self) -> bool:
        """Whether the next line may run, or receive its error. None may while the store is slow or away."""
        if self._is_paused or self._memory.is_full or time.time() >= self._until:
            return False
        return self._ends_as is not None or len(self._running) < self._concurrency()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        self._room.set()

    async def _wait_for_running(self) -> None:
        while self._running:
            await asyncio.wait(tuple(self._running))
        if self._is_paused:
            # Requests may have ended without a result: another agent runs them, and ends the batch.
            await asyncio.Event().wait()

    async def _run_line(self, number: int, line: RequestLine, request_id: str, results: Results) -> None:
        head = b"POST %b HTTP/1.1\r\n%bx-request-id: %b\r\n" % (line.url.encode(), self._headers, request_id.encode())
        try:
            found = await self._runner.run(StoredRequest(head, bytes(line.body)), lambda: self._ends_as is not None)
        except asyncio.CancelledError:
            if self._ends_as is None:
                raise
            found = None
        usage = self.held_records.usage_of(request_id)
        if found is None:
            self._add_unrun(number, line, request_id, results, usage)
            return
        if isinstance(found, InternalResponse):
            problem = problem_of(found.status, found.body)
            if problem is None:
                text = self._lines.result(request_id, line.custom_id, found.status, found.body)
                results.add(number, text, with_reasoning(usage, found.body), is_error=found.status >= 400)
                return
        else:
            problem = "response_incomplete", found
        results.add(number, self._lines.error(request_id, line.custom_id, *problem), usage, is_error=True)

    def _add_unrun(
        self, number: int, line: RequestLine, request_id: str, results: Results, usage: BatchUsage = NOTHING_USED
    ) -> None:
        assert self._ends_as is not None
        text = self._lines.error(request_id, line.custom_id, *UNRUN[self._ends_as])
        results.add(number, text, usage, is_error=True, is_unrun=True)

    # results and the claim

    async def _save_records(self, segment: int, lines: list[int]) -> None:
        tenant, batch = self.record.sender.tenant, self.record.id
        result = JobResult(self._batches.region, tenant, batch, self.claim.number, segment)
        await self.held_records.save(result, [request_id_of(batch, line) for line in lines])

    async def _keep(self, results: Results) -> None:
        """Write results and renew the claim until cancelled. Raises ClaimLost."""
        renew_at = time.monotonic() + RENEW_S
        while True:
            await asyncio.sleep(FLUSH_S if results.unwritten_bytes < FLUSH_BYTES else 0.05)
            try:
                if time.time() >= self._until:
                    await self._check_claim()
                await results.write()
                if time.monotonic() >= renew_at or time.time() >= self._until:
                    await self._check_claim()
                    renew_at = time.monotonic() + RENEW_S
                    await self._renew()
                    if await self._batches.is_cancelled(self.paths):
                        self.stop_as(BatchState.CANCELLED)
                if self._ends_as is None and await self._deadline.has_passed():
                    self.stop_as(BatchState.EXPIRED)
            except StoreUnavailable as error:
                log.warning("progress of a batch was not written", batch=self.record.id, error=str(error))
            self._room.set()

    async def _check_claim(self) -> None:
        """Check whether the claim is still the newest: what it wrote before then counts. Raises ClaimLost."""
        written = 0 if self._results is None else self._results.last_written
        await self._batches.check_claim(self.paths, self.claim)
        self.held_records.release(written)

    async def _renew(self) -> None:
        now, counts = time.time(), self.counts
        state = BatchState.IN_PROGRESS if self._ends_as is not BatchState.CANCELLED else BatchState.CANCELLING
        claim = replace(self.claim, until=now + LEASE_S, counts=counts, per_s=self.per_s, state=state)
        await self._batches.renew(self.paths, claim)
        self.claim, self._until = claim, claim.until

    async def give_up(self) -> None:
        """Write what is left, and end the claim, so that another agent continues at once."""
        with suppress(StoreUnavailable, ClaimLost):
            if self._results is not None and self.claim.accepted is not None:
                await self._results.write()
                await self._results.write()
                await self._check_claim()
            if time.time() < self._until:
                await self._batches.give_up(self.record, replace(self.claim, counts=self.counts))

    async def _write_rest(self, results: Results) -> None:
        while not results.is_written:
            try:
                await results.write()
            except StoreUnavailable as error:
                log.warning("results of a batch were not written", batch=self.record.id, error=str(error))
                await asyncio.sleep(LOST_RETRY_S)

    async def _end(self, state: BatchState, errors: tuple[LineProblem, ...] = ()) -> BatchEnd | None:
        """Write the result files and the end."""
        now, results, tenant = time.time(), self._results, self.record.sender.tenant
        files: list[FileRecord | None] = [None, None]
        if results is not None:
            files = [self._file("output", results.output, now), self._file("error", results.errors, now)]
        for file in files:
            if file is not None:
                await self._files.put(tenant, file, self._retention_s)
        output, error = files
        end = BatchEnd(
            end_running(state),
            now,
            self.counts,
            self.claim.started_at,
            now,
            None if output is None else output.id,
            None if error is None else error.id,
            errors,
            self.claim.number,
            await self._batches.cancelling_at(self.paths),
        )
        if await self._batches.end(self.record, end):
            if results is not None:
                self.held_records.release(results.last_written)
            return end
        for file in files:
            if file is not None:
                await self._files.storage.delete(store_paths.file_record(tenant, file.id))
        return None

    def _file(self, name: str, parts: list[FilePart], now: float) -> FileRecord | None:
        return result_file(self.record, self._files.new_id(), name, parts, int(now)) if parts else None

    def _deleted(self) -> tuple[LineProblem, ...]:
        message = f"the input file {self.record.input_file_id} was deleted while the batch ran"
        return (LineProblem("input_file_deleted", message),)
