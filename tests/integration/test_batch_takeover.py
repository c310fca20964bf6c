"""Batches whose agent is killed, paused or stopped: another start continues, and each result counts once."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from adapters.object_store.object_store import StoreUnavailable
from adapters.servers.etcd import EtcdServer
from penstock.jobs import claims, store_paths
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.file_expiry import MAX_UPLOAD_S
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, BatchUsage, Claim, FileRecord, JobSender
from penstock.jobs.response_memory import ResponseMemory
from penstock.jobs.store_paths import JobPaths
from penstock.ledger.ledger_record import RecordKind
from penstock.ledger.spool_format import read_spool, records_of
from penstock.policy.kinds.billing import UsageStore
from regional_agent.jobs import job_worker
from regional_agent.jobs.batches import batch_run
from regional_agent.jobs.batches.results import Results
from regional_agent.jobs.request_attempts import RequestRunner
from regional_agent.jobs.storage import lost_regions
from regional_agent.jobs.storage.batch_store import BatchStore, ClaimLost
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_storage import JobStorages
from regional_agent.ledger.spool_file import boot_id
from tests.integration.test_async_requests import ended as until_job_ended
from tests.integration.test_async_requests import submit
from tests.integration.test_batches import serving
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.agents import running_agent
from tests.support.chats import answers_after, never_responds
from tests.support.dying_agent import POINTS
from tests.support.jobs import JobClient, closed, embeds, input_file, job_store
from tests.support.planet import MODEL, policy
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until

BATCH = "batch_" + "0" * 32


async def saves_nothing(segment: int, lines: list[int]) -> None:
    """Keep no records of a segment."""


async def test_what_the_agent_of_a_replaced_claim_writes_never_counts(tmp_path: Path) -> None:
    batches = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de")
    paths = JobPaths("t", BATCH)

    async def claimed(number: int) -> Results:
        claim = Claim(number, f"agent-{number}", 1, 1e12, 0.0)
        assert await batches.claim(paths, claim)
        assert not await batches.claim(paths, claim)
        results = Results(batches, paths, number, 10, ResponseMemory(), saves_nothing)
        await batches.renew(paths, replace(claim, accepted=await results.load()))
        return results

    paused = await claimed(1)
    paused.add(1, b"1 by 1\n", BatchUsage(1, 10, 100, ("m",)), is_error=False)
    await paused.write()
    second = await claimed(2)
    assert (1 in second.done, 2 in second.done) == (True, False)
    paused.add(2, b"2 by 1\n", is_error=False)
    await paused.write()
    second.add(2, b"2 by 2\n", BatchUsage(2, 20, 200, ("m",)), is_error=True)
    second.add(2, b"again\n", BatchUsage(7, 7, 7, ("n",)), is_error=True)
    await second.write()
    await batches.claim(paths, Claim(3, "agent-3", 1, 1e12, 0.0))  # died before it read what there is
    fourth = await claimed(4)
    paused.add(3, b"3 by 1\n", is_error=False)
    await paused.write()
    assert [line for line in range(1, 11) if line in fourth.done] == [1, 2]
    assert fourth.counts == BatchCounts(1, 1, 0, BatchUsage(3, 30, 300, ("m",)))
    assert [await batches.storage.read(part.path) for part in (*fourth.output, *fourth.errors)] == [
        b"1 by 1\n",
        b"2 by 2\n",
    ]


async def test_a_failed_write_is_repeated_as_it_was(tmp_path: Path) -> None:
    storage = JobStorages().of(f"file://{tmp_path}/store")
    batches, paths = BatchStore(storage, "eu-de"), JobPaths("t", BATCH)
    results = Results(batches, paths, 1, 10, ResponseMemory(), saves_nothing)
    await batches.claim(paths, Claim(1, "a", 1, 1e12, 0.0, BatchCounts(), accepted=()))
    results.add(1, b"1\n", is_error=False)
    (tmp_path / "store/tenants/t/batch-data" / BATCH / "segments").write_bytes(b"in the way")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="segments"):
            await results.write()
        results.add(2, b"2\n", is_error=False)
    (tmp_path / "store/tenants/t/batch-data" / BATCH / "segments").unlink()
    await results.write()
    assert not results.is_written
    await results.write()
    again = Results(batches, paths, 2, 10, ResponseMemory(), saves_nothing)
    await again.load()
    assert results.is_written
    assert (results.counts.completed, again.counts.completed, again.done.count) == (2, 2, 2)


async def test_a_batch_whose_request_ended_without_a_result_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job_worker, batch_run):
        monkeypatch.setattr(module, "LEASE_S", 0.1)
    monkeypatch.setattr(claims, "CLOCK_SKEW_S", 0.0)
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.05)
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    run, calls = RequestRunner.run, []

    async def fails_once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise ValueError
        return await run(*args)

    monkeypatch.setattr(RequestRunner, "run", fails_once)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        batch = await client.ended(await client.started(input_file(2)))
        assert (batch["status"], batch["request_counts"]["completed"], len(calls)) == ("completed", 2, 3)


async def test_a_stopped_agent_leaves_its_batch_to_another_one(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store")
    release = asyncio.Event()

    async def some(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(e.requests) > 3:
            await release.wait()
        await embeds(e, received, writer)

    async with engine(some) as gpu:
        async with (
            running_agent(tmp_path / "1", [gpu.address], job_store=store, name="one") as first,
            JobClient(first.traffic) as client,
        ):
            batch = await client.started(input_file(20))
            await until(lambda: len(gpu.requests) > 3 and first.counted() == {"ok": 3})
        before = len(gpu.requests)
        release.set()
        async with (
            running_agent(tmp_path / "2", [gpu.address], job_store=store, name="two") as second,
            JobClient(second.traffic) as client,
        ):
            ended = await client.ended(batch)
            lines = await client.lines(ended["output_file_id"])
    assert ended["request_counts"]["completed"] == 20
    assert Counter(each["custom_id"] for each in lines) == Counter(f"r{n}" for n in range(20))
    # What had a result when the first agent stopped has not run again.
    assert len(gpu.requests) == before + 17


def shorten_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims of dead agents expire after a second."""
    monkeypatch.setattr(claims, "CLOCK_SKEW_S", 0.1)
    monkeypatch.setattr(job_worker, "POLL_S", 0.1)
    for module in (batch_run, job_worker, claims):
        monkeypatch.setattr(module, "LEASE_S", 1.0)


async def test_the_agents_of_another_region_finish_the_jobs_of_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_leases(monkeypatch)
    monkeypatch.setattr(lost_regions, "BEAT_S", 0.1)
    folder = tmp_path / "store"
    store = job_store(folder, successors=("eu-es",))
    own = replace(job_store(tmp_path / "own", "eu-es"), name="own")
    async with (
        engine(never_responds) as silent,
        engine(embeds) as gpu,
        running_agent(tmp_path / "1", [silent.address], job_store=store) as dead,
        running_agent(tmp_path / "2", [gpu.address], region="eu-es", job_store=own) as other,
        JobClient(dead.traffic) as client,
        JobClient(other.traffic) as elsewhere,
    ):
        batch = await client.started(input_file(5))
        job = (await submit(client)).json()["id"]
        await until(lambda: len(silent.requests) == 3)
        other.config.policy = replace(other.config.policy, job_stores=(own, store))
        await asyncio.sleep(0.7)
        assert not gpu.requests, "the region is not lost"
        worker = dead.jobs.worker
        for task in (*worker._tasks.values(), *dead.jobs._tasks):
            task.cancel()
        monkeypatch.setattr(claims, "LOST_S", 0.5)
        ended = await elsewhere.ended(batch)
        lines = await elsewhere.lines(ended["output_file_id"])
        assert sorted(each["custom_id"] for each in lines) == [f"r{number}" for number in range(5)]
        assert (await until_job_ended(elsewhere, job))["status"] == "completed"
        assert len(gpu.requests) == 6
        assert "lost" in other.jobs.status()["other_regions"]["eu-de"]
        await closed(folder)
        # At once: agents still remove and create in it.
        folder.rename(tmp_path / "lost")
        folder.write_text("no folder")
        await until(lambda: "cannot be read" in other.jobs.status()["other_regions"]["eu-de"])
        assert (await elsewhere.http.get(f"/v1/batches/{batch}")).status_code == 503


async def test_another_agent_continues_when_a_dead_one_had_a_clock_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_leases(monkeypatch)
    store = job_store(tmp_path / "store")
    async with (
        engine(never_responds) as silent,
        engine(embeds) as gpu,
        running_agent(tmp_path / "1", [silent.address], job_store=store, name="one") as dead,
        running_agent(tmp_path / "2", [gpu.address], job_store=store, name="two") as other,
        JobClient(dead.traffic) as client,
    ):
        other.jobs.worker._batches |= {str(n): None for n in range(job_worker.MAX_BATCHES)}  # type: ignore[misc]
        batch = await client.started(input_file(5))
        await until(lambda: len(silent.requests) > 0)
        run = dead.jobs.worker._batches[batch]
        await run._batches.renew(run.paths, replace(run.claim, until=run.claim.until + 3600.0))
        other.jobs.worker._batches.clear()
        # As after the death of the process: nothing renews or gives up the claim.
        dead.jobs.worker._tasks[batch].cancel()
        for task in dead.jobs._tasks:
            task.cancel()
        ended = await client.ended(batch)
        assert ended["request_counts"]["completed"] == 5
        assert run.claim.agent == "one"
        with pytest.raises(ClaimLost):
            await run._check_claim()


async def test_a_claim_is_kept_while_the_results_of_earlier_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "RENEW_S", 0.05)
    load, may_load = Results.load, asyncio.Event()

    async def slowly(self: Results) -> tuple[tuple[int, int], ...]:
        await may_load.wait()
        return await load(self)

    monkeypatch.setattr(Results, "load", slowly)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        batch = await client.started(input_file(2))
        await until(lambda: batch in agent.jobs.worker._batches)
        run = agent.jobs.worker._batches[batch]
        first = run.claim.until
        await until(lambda: run.claim.until > first + 0.1)
        assert await run._batches.claim(run.paths, Claim(run.claim.number + 1, "other", 1, 1e12, 0.0))
        await until(lambda: batch not in agent.jobs.worker._batches)
        assert agent.metrics.registry.get_sample_value("penstock_agent_batch_claims_lost_total") == 1
        assert not gpu.requests
        may_load.set()


async def test_an_agent_whose_clock_jumps_completes_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.02)
    monkeypatch.setattr(batch_run, "RENEW_S", 0.05)
    block, jump_s = asyncio.Event(), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + jump_s, monotonic=time.monotonic)
    monkeypatch.setattr(batch_run, "time", clock)

    async with engine(answers_after(block, embeds)) as gpu, serving(tmp_path, gpu, slots=1) as (agent, client):
        batch = await client.started(input_file(3))
        await until(lambda: len(gpu.requests) == 1)
        run = agent.jobs.worker._batches[batch]
        for jump_s in (100_000.0, -100_000.0):
            await until(lambda: abs(run.claim.until - time.time() - jump_s) < 1000.0)  # noqa: B023
            renewed = run.claim.until
            await until(lambda: run.claim.until > renewed)  # noqa: B023
        block.set()
        ended = await client.ended(batch)
        assert (ended["status"], ended["request_counts"]["completed"]) == ("completed", 3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(("after the segment", "in the spool"), id="around the store's acceptance"),
        pytest.param(tuple(POINTS), id="at every point", marks=pytest.mark.long),
    ],
)
async def test_after_kill_9_each_request_has_one_result_and_one_paid_record(
    tmp_path: Path, own_etcd: EtcdServer, points: tuple[str, ...]
) -> None:
    fleet, usage, state = policy(), tmp_path / "usage", tmp_path / "a" / "state" / "ledger"
    in_force = replace(
        fleet,
        anonymous_tenant="open",
        job_stores=(job_store(tmp_path / "store", "eu-de"),),
        usage_stores=(UsageStore("all", f"file://{usage}", covers=frozenset(fleet.regions)),),
    )
    await publish(own_etcd, in_force)
    rng, runs = Random(1), Counter[str]()

    async def slowly(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            runs[json.loads(received.body)["input"]] += 1
            await asyncio.sleep(rng.random() * 0.2)
        await embeds(e, received, writer)

    requests = 400 + 100 * len(points)
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(slowly))
        agent = AgentProcess(
            "a",
            tmp_path / "a",
            region="eu-de",
            etcd_endpoint=own_etcd.endpoint,
            redis_url=None,
            endpoints_file=write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], 8),
        )
        whole = agent.argv
        stack.push_async_callback(asyncio.to_thread, agent.kill)

        async def start(point: str = "") -> JobClient:
            agent.argv = (sys.executable, "-m", "tests.support.dying_agent", point) if point else whole
            agent.start()
            await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
            return await stack.enter_async_context(JobClient(agent.faces()["traffic"]))

        batch, job = "", ""
        for point in points:
            client = await start(point)
            if not batch:
                batch = await client.started(input_file(requests))
            elif point == "after the end":
                job = (await submit(client, {"model": MODEL, "input": "a job"})).json()["id"]
            await until(lambda: not agent.alive)
            assert agent.returncode == -signal.SIGKILL
        client = await start()
        ended = await client.ended(batch)
        assert ended["status"] == "completed"
        assert ended["request_counts"] == {"total": requests, "completed": requests, "failed": 0}
        results = await client.lines(ended["output_file_id"])
        assert Counter(each["custom_id"] for each in results) == Counter(f"r{n}" for n in range(requests))
        if job:
            assert (await until_job_ended(client, job))["status"] == "completed"
        assert max(runs.values()) <= 1 + len(points), "at most one more run for each loss"
        await until(lambda: not [*state.glob("*.held"), *state.glob("*.unsettled")])
        await asyncio.to_thread(agent.stop, PATIENCE_S)
    by_file = {
        path.stem: [
            (row["request_id"], row["kind"], row["outcome"])
            for row in pq.read_table(path, partitioning=None).to_pylist()
        ]
        for path in usage.rglob("*.parquet")
    }
    # On a busy machine an agent stops before its uploader has put everything.
    for path in state.iterdir():
        left = records_of(read_spool(path.read_bytes(), boot_id()), is_last=True)
        by_file[f"a-{path.stem}"] = [(each.request_id, each.kind, each.outcome) for each in left]
    rows = [row for rows in by_file.values() for row in rows]
    paid = Counter(request_id for request_id, _, outcome in rows if outcome == "ok")
    assert set(paid.values()) == {1}, "the tenant pays for each result once"
    assert len(paid) == requests + bool(job)
    ran = [row for row in rows if row[1] in (RecordKind.REQUEST, RecordKind.UNKNOWN_END) and row[2] != "deferred"]
    # Each run has a record; a request may have been on its way to the engine when the agent died.
    assert 0 <= len(ran) - runs.total() <= 8 * len(points)


async def test_an_end_whose_write_was_repeated_is_the_first(tmp_path: Path) -> None:
    batches = BatchStore(JobStorages().of(f"file://{tmp_path}"), "eu-de")
    record = BatchRecord(BATCH, JobSender("t", "open"), "file-1", "/", "24h", 0, 0, 1)
    end = BatchEnd(BatchState.COMPLETED, 1.0, output_file_id="file-1")
    assert await batches.end(record, end)
    assert await batches.end(record, end)
    assert not await batches.end(record, replace(end, output_file_id="file-2"))


async def test_parts_that_an_interrupted_upload_left_take_no_room_forever(tmp_path: Path) -> None:
    now = 1e9
    files = FileStore(JobStorages().of(f"file://{tmp_path}"), Random(1), lambda: now)
    for _ in range(2):
        file = files.new_id()
        await files.storage.put(store_paths.file_part("t", file, 0), b"12345")
    await files.storage.put("tenants/t/file-data/other", b"")
    await files.put("t", FileRecord(file, "f", "batch", int(now), 5, ()), 3600.0)
    assert await files.used_bytes("t") == 10
    now += MAX_UPLOAD_S + 1
    assert await files.used_bytes("t") == 5
    assert [part.path for part in await files.storage.list("tenants/t/file-data/")] == [
        store_paths.file_part("t", file, 0),
        "tenants/t/file-data/other",
    ]
