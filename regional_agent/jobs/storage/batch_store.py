"""The batches of tenants in one job store: records, claims, segments of results, and ends."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from adapters.object_store.object_store import ObjectMissing
from penstock.jobs import store_paths
from penstock.jobs.async_request import AsyncRequest, JobEnd
from penstock.jobs.claims import result_counts
from penstock.jobs.job_records import BatchEnd, BatchRecord, Claim, Segment
from penstock.jobs.store_paths import Expiring, JobPaths, OpenJob, open_job
from penstock.jobs.webhook import webhook_of
from penstock.ledger.spool_format import JobResult
from regional_agent.jobs.storage.job_storage import JobStorage, UnreadableRecord

JobRecord = BatchRecord | AsyncRequest


class ClaimLost(Exception):
    """The claim was not renewed in time, or the agent stops: another agent continues."""


class Progress(NamedTuple):
    """What the store has of a batch besides its record."""

    claim: Claim | None
    """The newest claim."""
    end: BatchEnd | None
    cancelling_at: int | None
    """See `BatchStore.cancelling_at`."""


class BatchStore:
    """Batches of all tenants; every call names the tenant, and finds batches of this tenant only."""

    def __init__(self, storage: JobStorage, region: str) -> None:
        """Use the batches of `storage`; new ones belong to `region`."""
        self.storage = storage
        self.region = region

    async def create(self, record: BatchRecord) -> bool:
        """Write a new batch, which is marked as open before it exists; returns False if the identifier is in use."""
        paths = JobPaths(record.sender.tenant, record.id)
        await self.storage.put(paths.mark(self.region, record.expires_at), b"")
        return await self.storage.put_new_record(paths.record, record)

    async def find(self, paths: JobPaths) -> BatchRecord | None:
        """Return the record of a batch; None if the tenant has none with the identifier."""
        if not (store_paths.is_batch(paths.id) and store_paths.is_job(paths.id)):
            return None
        return await self.storage.find_record(paths.record, BatchRecord)

    async def record(self, paths: JobPaths) -> JobRecord | None:
        """Return the record of a batch or of an asynchronous request; None if there is none."""
        kind: type[BatchRecord] | type[AsyncRequest] = BatchRecord if store_paths.is_batch(paths.id) else AsyncRequest
        return await self.storage.find_record(paths.record, kind)

    async def progress(self, paths: JobPaths) -> Progress:
        """Return the progress of a batch."""
        claim, end, cancelling_at = None, await self.storage.find_record(paths.end, BatchEnd), None
        if end is None:
            claim, cancelling_at = await self.newest_claim(paths), await self.cancelling_at(paths)
            if cancelling_at is None:
                # The end of a cancelled batch removes the mark, and may have done so since.
                end = await self.storage.find_record(paths.end, BatchEnd)
        return Progress(claim if end is None else None, end, cancelling_at)

    async def newest_claim(self, paths: JobPaths) -> Claim | None:
        """Return the claim with the highest number; None if there is none."""
        claims = await self.claims(paths)
        return await self.storage.find_record(claims[-1], Claim) if claims else None

    async def check_claim(self, paths: JobPaths, claim: Claim) -> None:
        """Check whether a claim of this agent is still the newest. Raises ClaimLost."""
        newest = await self.newest_claim(paths)
        if newest is not None and newest.number != claim.number:
            raise ClaimLost

    async def claims(self, paths: JobPaths) -> list[str]:
        """Return the paths of all claims, oldest first."""
        return [found.path for found in await self.storage.list(paths.claims)]

    async def claim(self, paths: JobPaths, claim: Claim) -> bool:
        """Write a new claim; returns False if another agent has written one with its number."""
        return await self.storage.put_new_record(paths.claim(claim.number), claim)

    async def renew(self, paths: JobPaths, claim: Claim) -> None:
        """Replace a claim of this agent."""
        await self.storage.put_record(paths.claim(claim.number), claim)

    async def give_up(self, record: JobRecord, claim: Claim) -> None:
        """End a claim of this agent, so that another agent runs the job at once, whenever it has looked before."""
        paths = JobPaths(record.sender.tenant, record.id)
        await self.renew(paths, replace(claim, until=0.0))
        await self.storage.put(paths.mark(self.region, record.expires_at), store_paths.GIVEN_UP)

    async def cancel(self, paths: JobPaths, now: float) -> None:
        """Request the cancellation of a job at `now` (Unix time, s); a repeated request changes nothing."""
        await self.storage.put_new(paths.cancellation, b"%d" % now)
        if await self.find_end(paths) is not None:
            # It ended meanwhile, so that nothing else would remove the mark.
            await self.storage.delete(paths.cancellation)

    async def is_cancelled(self, paths: JobPaths) -> bool:
        """Whether cancellation was requested."""
        return await self.cancelling_at(paths) is not None

    async def cancelling_at(self, paths: JobPaths) -> int | None:
        """Return when (Unix time, s) cancellation was requested; None if it was not, 0 if by an earlier release."""
        try:
            return int(await self.storage.read(paths.cancellation) or b"0")
        except ObjectMissing:
            return None

    async def cancelled(self) -> set[str]:
        """Return the identifiers of all jobs whose cancellation was requested and that have not ended."""
        return {each.path.rpartition("/")[2] for each in await self.storage.list(store_paths.CANCELLED)}

    async def last_segments(self, paths: JobPaths) -> dict[int, int]:
        """Return the number of the last segment of each claim that has one."""
        last: dict[int, int] = {}
        for each in await self.storage.list(paths.segments):
            numbers = store_paths.segment_numbers(each.path)
            if numbers is not None:
                claim, number = numbers
                last[claim] = max(last.get(claim, 0), number)
        return last

    async def segment(self, paths: JobPaths, claim: int, number: int) -> Segment | None:
        """Return the record of a segment; None if it was deleted."""
        return await self.storage.find_record(paths.segment(claim, number, "json"), Segment)

    async def end(self, record: JobRecord, end: BatchEnd | JobEnd) -> bool:
        """Write the end of a job, and remove its mark; returns False if it has ended before."""
        paths = JobPaths(record.sender.tenant, record.id)
        # A write that a client library or a file system repeated finds its own object.
        is_first = (
            await self.storage.put_new_record(paths.end, end)
            or await self.storage.find_record(paths.end, type(end)) == end
        )
        if is_first:
            await self.close(record, end)
        return is_first

    async def close(self, record: JobRecord, end: BatchEnd | JobEnd) -> None:
        """Write what follows an end, and remove the marks of the open job. May be repeated."""
        paths = JobPaths(record.sender.tenant, record.id)
        if record.webhook:
            event = webhook_of(paths.id, end.state.value, record.webhook, end.at)
            await self.storage.put_record(paths.event(end.at).webhook(self.region, 0), event)
        await self.storage.put(store_paths.expiring(paths.tenant, paths.id, end.at).mark, b"")
        if isinstance(record, AsyncRequest) and record.body_bytes:
            await self._drop_body(paths)
        await self.storage.delete(paths.cancellation)
        await self.storage.delete(paths.mark(self.region, record.expires_at))

    async def put_body(self, paths: JobPaths, body: bytes) -> None:
        """Write the body of a new asynchronous request."""
        await self.storage.put(f"{paths.body_size}/{len(body)}", b"")
        await self.storage.put(paths.body, body)

    async def body_bytes(self, tenant: str) -> int:
        """Return the size (bytes) of the bodies of a tenant's asynchronous requests that have not ended."""
        sizes = await self.storage.list(store_paths.body_sizes(tenant))
        return sum(store_paths.body_bytes(each.path) for each in sizes)

    async def drop_ended_bodies(self, tenant: str, regions: Iterable[str]) -> None:
        """Delete the bodies of a tenant's asynchronous requests that have ended in `regions`: those that an agent of an
        earlier release has ended or deleted, or that a repeated request wrote after the end."""
        sizes = await self.storage.list(store_paths.body_sizes(tenant))
        # Each of the sizes was written after its mark.
        marks = [await self.storage.list(f"{store_paths.open_batches(region)}/{tenant}") for region in regions]
        is_open = {job.paths.id for listed in marks for each in listed if (job := open_job(each.path)) is not None}
        for name in {each.path.split("/")[-2] for each in sizes} - is_open:
            paths = JobPaths(tenant, name)
            with suppress(UnreadableRecord):
                if await self.find_end(paths) is not None:
                    await self._drop_body(paths)
                elif await self.storage.find_record(paths.record, msgspec.Raw) is None:
                    await self.storage.delete_all(paths.body_size)

    async def _drop_body(self, paths: JobPaths) -> None:
        await self.storage.delete(paths.body)
        await self.storage.delete_all(paths.body_size)

    async def find_end(self, paths: JobPaths) -> BatchEnd | JobEnd | None:
        """Return the end of a job; None if it has not ended."""
        kind: type[BatchEnd] | type[JobEnd] = BatchEnd if store_paths.is_batch(paths.id) else JobEnd
        return await self.storage.find_record(paths.end, kind)

    async def has_result(self, result: JobResult) -> bool | None:
        """Whether a result counts, see `result_counts`."""
        paths = JobPaths(result.tenant, result.job)
        end = await self.find_end(paths)
        newest = await self.newest_claim(paths)
        later: list[Claim] = []
        exists = False
        if newest is not None and store_paths.is_batch(result.job):
            for number in range(newest.number, result.claim, -1):
                claim = await self.storage.find_record(paths.claim(number), Claim)
                if claim is not None:
                    later.append(claim)
            exists = await self.segment(paths, result.claim, result.segment) is not None
        return result_counts(result, newest, later, end, exists=exists)

    async def delete(self, paths: JobPaths) -> None:
        """Delete a job that has ended: first its record, then its result files and all other objects. State and time of
        its end are left until `delete_expired`, so that no job has its identifier while an agent deletes this one.
        """
        await self.storage.delete(paths.record)
        await self.storage.delete(paths.cancellation)
        end = await self.find_end(paths)
        left: BatchEnd | JobEnd | None = None
        if isinstance(end, JobEnd):
            left = JobEnd(end.state, end.at, claim=end.claim)
        elif end is not None:
            left = BatchEnd(end.state, end.at, claim=end.claim)
            for file in (end.output_file_id, end.error_file_id):
                if file is not None:
                    await self.storage.delete(store_paths.file_record(paths.tenant, file))
        await self.storage.delete_all(paths.body_size)
        await self.storage.delete_all(paths.data, but=paths.end)
        if left is not None:
            await self.storage.put_record(paths.end, left)

    async def delete_expired(self, expired: Expiring) -> None:
        """Delete a job, what a deletion has left of it, and the mark of its deletion by age.

        In stores of earlier releases, a job that was deleted and submitted again with its Idempotency-Key has another
        end, or none, and is kept.
        """
        paths = JobPaths(expired.tenant, expired.id)
        end = await self.find_end(paths)
        if end is not None:
            is_meant = store_paths.expiring(paths.tenant, paths.id, end.at) == expired
        else:
            is_meant = await self.storage.find_record(paths.record, msgspec.Raw) is None
        if is_meant:
            await self.delete(paths)
            await self.storage.delete(paths.end)
        await self.storage.delete(expired.mark)

    async def input_files(self, tenant: str, regions: Iterable[str]) -> set[str]:
        """Return the identifiers of the files that a tenant's unfinished batches in `regions` read."""
        found = set()
        for region in regions:
            for each in await self.storage.list(f"{store_paths.open_batches(region)}/{tenant}"):
                job = open_job(each.path)
                record = None if job is None else await self.find(job.paths)
                if record is not None:
                    found.add(record.input_file_id)
        return found

    async def open_jobs(self) -> list[OpenJob]:
        """Return the batches and asynchronous requests of the region that have not ended."""
        marks = await self.storage.list(store_paths.open_batches(self.region))
        return [job for each in marks if (job := open_job(each.path, each.size_bytes)) is not None]

    async def open_of(self, tenant: str, *, batches_only: bool = False) -> int:
        """Return the number of a tenant's jobs, or batches, that have not ended."""
        found = await self.storage.list(f"{store_paths.open_batches(self.region)}/{tenant}")
        return sum(not batches_only or store_paths.is_batch(each.path.rpartition("/")[2]) for each in found)
