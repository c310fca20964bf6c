"""Whether the runs of a dead agent are paid for: the job store decides, by its claims and ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from penstock.accounts.outcome_rules import Outcome
from penstock.jobs.async_request import JobEnd, JobState
from penstock.jobs.job_records import BatchCounts, Claim, Segment
from penstock.jobs.store_paths import JobPaths
from penstock.ledger.ledger_record import RecordKind
from penstock.ledger.spool_format import JobResult
from regional_agent.jobs import record_settlement
from regional_agent.jobs.batches import batch_run
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.job_storage import JobStorages
from tests.integration.test_batches import serving
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.jobs import embeds, input_file
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until

BATCH, JOB = "batch_" + "0" * 32, "job_" + "0" * 32


def claim(number: int, accepted: tuple[tuple[int, int], ...] | None = ()) -> Claim:
    return Claim(number, "a", 1, 0.0, 0.0, accepted=accepted)


@pytest.mark.parametrize(("read", "counts"), [(3, True), (2, False)])
async def test_a_segment_counts_if_a_later_claim_in_the_store_has_read_it(
    tmp_path: Path, read: int, counts: bool
) -> None:
    batches, paths = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de"), JobPaths("t", BATCH)
    for each in (claim(1), claim(2, ((1, read),)), claim(3, None)):
        await batches.claim(paths, each)
    await batches.storage.put_record(paths.segment(1, 3, "json"), Segment(((1, 1),), BatchCounts(1)))
    assert await batches.has_result(JobResult("eu-de", "t", BATCH, 1, 3)) is counts


async def test_a_request_counts_if_the_end_in_the_store_is_of_its_claim(tmp_path: Path) -> None:
    jobs, paths = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de"), JobPaths("t", JOB)
    await jobs.claim(paths, claim(1, None))
    result = JobResult("eu-de", "t", JOB, 1, 0)
    assert await jobs.has_result(result) is None
    await jobs.storage.put_record(paths.end, JobEnd(JobState.COMPLETED, 0.0, claim=1))
    assert await jobs.has_result(result) is True


@pytest.mark.parametrize("last_segment", [0, 1])
async def test_what_a_late_agent_has_written_is_charged_if_the_next_claim_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_segment: int
) -> None:
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.02)
    monkeypatch.setattr(batch_run, "RENEW_S", 600.0)
    monkeypatch.setattr(record_settlement, "LOOK_S", 0.05)
    release = asyncio.Event()

    async def all_but_one(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"text 4" in received.body:
            await release.wait()
        await embeds(e, received, writer)

    folder = tmp_path / "ledger"
    async with engine(all_but_one) as gpu, serving(tmp_path, gpu, ledger=ledger_in(tmp_path)) as (agent, client):
        batch = await client.started(input_file(5))
        await until(lambda: batch in agent.jobs.worker._batches)
        run = agent.jobs.worker._batches[batch]
        await until(lambda: run.counts.completed == 4)
        segments = run._results.last_written if run._results is not None else 0
        last = segments if last_segment else 0
        # The claim has ended while the agent was paused.
        next_claim = claim(run.claim.number + 1, ((run.claim.number, last),))
        assert await run._batches.claim(run.paths, msgspec.structs.replace(next_claim, until=1e12))
        run._until = 0.0
        await until(lambda: batch not in agent.jobs.worker._batches)
        await until(lambda: not [*folder.glob("*.held"), *folder.glob("*.unsettled")])
        release.set()
    ends = [each for each in records_in(tmp_path) if each.kind == RecordKind.REQUEST and each.outcome != "deferred"]
    assert max(Counter(each.request_id for each in ends).values()) == 1
    assert len([each for each in ends if each.outcome == Outcome.OK]) == 4 * last_segment
    # The run of the fifth request was ended.
    assert all(each.outcome == Outcome.OK or each.is_overhead for each in ends)
    assert len(ends) in (4, 5)
