"""Requests with `Prefer: respond-async`: accepted at once, executed later, and read at /v1/jobs."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs import claims
from penstock.jobs.async_request import NO_CLAIM, JobEnd, JobState
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.job_records import BatchCounts, BatchEnd, BatchRecord, Claim
from penstock.jobs.store_paths import JobPaths
from regional_agent.jobs import agent_jobs, job_deadline, job_worker
from regional_agent.jobs.api import batches_api
from regional_agent.jobs.async_requests import pace_exchange, request_run
from regional_agent.jobs.batches import batch_run
from regional_agent.jobs.storage import job_storage
from regional_agent.jobs.storage.batch_store import BatchStore
from regional_agent.jobs.storage.job_storage import JobStorage, JobStorages
from tests.integration.test_batches import serving, with_tenants
from tests.support.agents import running_agent
from tests.support.chats import answers_after, never_responds
from tests.support.jobs import EMBEDDINGS, JobClient, closed, embeds, input_file, job_store, stored_files
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until

BODY = {"model": MODEL, "input": "some text"}
ENDS = ("completed", "failed", "cancelled", "expired")


async def submit(client: JobClient, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    """Send a request for embeddings that is answered later."""
    return await client.http.post(EMBEDDINGS, json=body or BODY, headers={"prefer": "respond-async", **headers})


async def until_shown(
    client: JobClient, job: str, condition: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any]:
    """Return a job once it meets a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: dict[str, Any] = (await client.http.get(f"/v1/jobs/{job}")).json()
            if condition(found):
                return found
            await asyncio.sleep(0.05)


async def ended(client: JobClient, job: str) -> dict[str, Any]:
    """Wait for the end of a job, and return it."""
    return await until_shown(client, job, lambda found: found["status"] in ENDS)


async def test_a_request_is_accepted_at_once_and_answered_later(tmp_path: Path) -> None:
    release = asyncio.Event()

    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu) as (_, client):
        accepted = await submit(client, cookie="c", accept="application/json")
        assert accepted.status_code == 202
        job = accepted.json()["id"]
        assert accepted.headers["location"] == f"/v1/jobs/{job}"
        assert accepted.headers["preference-applied"] == "respond-async"
        assert accepted.json()["status"] in ("queued", "in_progress")
        early = await client.http.get(f"/v1/jobs/{job}/result")
        assert (early.status_code, early.json()["error"]["code"]) == (409, "no_result")
        assert "x-should-retry" not in early.headers, "it has one later"
        await until(lambda: len(gpu.requests) == 1)
        release.set()
        done = await ended(client, job)
        assert (done["status"], done["method"], done["path"]) == ("completed", "POST", EMBEDDINGS)
        assert done["result"]["status_code"] == 200
        result = await client.http.get(done["result"]["url"])
        assert result.json()["text"] == "some text"
        assert result.headers["content-type"] == "application/json"
        assert json.loads(gpu.requests[0].body) == BODY
        assert gpu.requests[0].header("accept") == "application/json"
        assert gpu.requests[0].header("cookie") is None
        assert gpu.requests[0].header("prefer") is None
        assert [each["id"] for each in (await client.http.get("/v1/jobs")).json()["data"]] == [job]


async def test_a_result_is_read_as_often_as_clients_want_and_always_as_a_whole(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client, prefer="handling=lenient, respond-async, wait=5")).json()["id"]
        url = (await ended(client, job))["result"]["url"]
        whole = await client.http.get(url)
        for headers in ({}, {"range": "bytes=0-3"}, {"range": "bytes=99999999-"}):
            again = await client.http.get(url, headers=headers)
            assert (again.status_code, again.content) == (200, whole.content)
        head = await client.http.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
        assert len(gpu.requests) == 1


async def test_results_and_files_are_read_in_pieces_so_that_slow_clients_hold_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_storage, "PIECE_BYTES", 1000)
    read: dict[str, list[int]] = defaultdict(list)
    read_range = FolderStore.read_range

    def measured(store: FolderStore, path: str, start: int, size_bytes: int) -> bytes:
        found = read_range(store, path, start, size_bytes)
        read[path].append(len(found))
        return found

    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client, {"model": MODEL, "input": "x" * 4321})).json()["id"]
        url, content = (await ended(client, job))["result"]["url"], input_file(100)
        file = (await client.upload(content)).json()["id"]
        batch = await client.ended((await client.create(file)).json()["id"])
        monkeypatch.setattr(FolderStore, "read_range", measured)
        assert (await client.http.get(url)).json()["text"] == "x" * 4321
        assert (await client.http.get(f"/v1/files/{file}/content")).content == content
        assert len(await client.lines(batch["output_file_id"])) == 100
        large = [sizes for path, sizes in read.items() if sum(sizes) > 3000 and not path.endswith(".json")]
        assert len(large) >= 3
        assert max(map(max, large)) == 1000


async def test_a_large_upload_and_an_error_of_the_engine_are_results_too(tmp_path: Path) -> None:
    async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"multipart" in received.head:
            body = b"%d" % len(received.body)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        else:
            writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\n{}")

    async with engine(answers) as gpu, serving(tmp_path, gpu) as (_, client):
        form = {"model": (None, MODEL), "file": ("speech.wav", b"x" * 300_000)}
        accepted = await client.http.post(
            "/v1/audio/transcriptions", files=form, headers={"prefer": "wait=1, Respond-Async; a=b"}
        )
        assert accepted.status_code == 202, accepted.text
        done = await ended(client, accepted.json()["id"])
        assert int((await client.http.get(done["result"]["url"])).text) == len(gpu.requests[0].body) > 300_000
        refused = await ended(client, (await submit(client)).json()["id"])
        assert (refused["status"], refused["result"]["status_code"]) == ("completed", 422)
        assert (await client.http.get(refused["result"]["url"])).status_code == 422


async def test_a_cancelled_request_is_cancelled_at_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)

    async with engine(never_responds) as gpu, serving(tmp_path, gpu) as (agent, client):
        job = (await submit(client)).json()["id"]
        await until(lambda: agent.held() == 1 and len(gpu.requests) == 1)
        # The run may have ended by the time of the response.
        assert (await client.http.delete(f"/v1/jobs/{job}")).json()["status"] in ("cancelling", "cancelled")
        assert (await ended(client, job))["status"] == "cancelled"
        await asyncio.wait_for(gpu.closed_by_client.wait(), PATIENCE_S)
        await until(lambda: agent.held() == 0)
        assert (await client.http.post(f"/v1/jobs/{job}/cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_job_that_ends_while_its_state_is_read_is_not_shown_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    read, reads = BatchStore.newest_claim, 0
    read_of_state = 1 if is_batch else 2
    """A cancelled request is claimed or not before its state is read."""

    async def ends_after(store: BatchStore, paths: JobPaths) -> Claim | None:
        nonlocal reads
        found = await read(store, paths)
        reads += await store.is_cancelled(paths)
        if reads == read_of_state:
            record, at = await store.record(paths), time.time()
            assert record is not None
            if isinstance(record, BatchRecord):
                await store.end(record, BatchEnd(BatchState.CANCELLED, at, BatchCounts()))
            else:
                await store.end(record, JobEnd(JobState.CANCELLED, at, claim=NO_CLAIM))
        return found

    async with engine(never_responds) as gpu, serving(tmp_path, gpu) as (agent, client):
        if is_batch:
            job = await client.started(input_file(1))
        else:
            job = (await submit(client)).json()["id"]
        await until(lambda: agent.held() == 1 and len(gpu.requests) == 1)
        monkeypatch.setattr(BatchStore, "newest_claim", ends_after)
        path = f"/v1/batches/{job}/cancel" if is_batch else f"/v1/jobs/{job}/cancel"
        assert (await client.http.post(path)).json()["status"] == "cancelled"
        assert reads == read_of_state


async def test_a_request_that_waits_is_cancelled_at_once_and_never_runs(tmp_path: Path) -> None:
    release, store = asyncio.Event(), job_store(tmp_path / "store", concurrency=1, max_open_requests=2)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=store) as (_, client),
    ):
        first = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        waiting = (await submit(client, BODY | {"input": "waits"})).json()["id"]
        assert (await submit(client)).status_code == 429
        for _ in range(2):
            cancelled = (await client.http.post(f"/v1/jobs/{waiting}/cancel")).json()
            assert (cancelled["status"], cancelled["result"]) == ("cancelled", None)
        # It takes no place among the open requests.
        last = (await submit(client, BODY | {"input": "last"})).json()["id"]
        release.set()
        for job in (first, last):
            assert (await ended(client, job))["status"] == "completed"
        assert [json.loads(each.body)["input"] for each in gpu.requests] == [BODY["input"], "last"]


async def test_a_request_that_is_submitted_twice_runs_once(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        key = {"idempotency-key": "k1"}
        jobs = [(await submit(client, **key)).json()["id"] for _ in range(3)]
        assert len(set(jobs)) == 1
        await ended(client, jobs[0])
        assert (await submit(client, **key)).json()["status"] == "completed"
        other = (await submit(client, BODY | {"input": "other"}, **key)).json()["id"]
        assert other not in jobs
        await ended(client, other)
        assert len(gpu.requests) == 2
        none = {(await submit(client, **{"idempotency-key": ""})).json()["id"] for _ in range(2)}
        assert len(none) == 2, "an empty key is none"
        refused = await submit(client, **{"idempotency-key": "k" * 257})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_idempotency_key")


async def test_another_tenant_and_a_region_without_a_store(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        async with JobClient(agent.traffic, keys["a"]) as a, JobClient(agent.traffic, keys["b"]) as b:
            job = (await submit(a)).json()["id"]
            await ended(a, job)
            for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/result"):
                assert (await b.http.get(path)).status_code == 404
            assert (await b.http.delete(f"/v1/jobs/{job}")).status_code == 404
            assert (await b.http.get("/v1/jobs")).json()["data"] == []
        async with JobClient(agent.traffic, "no-key") as stranger:
            assert (await submit(stranger)).status_code == 401
    away = job_store(tmp_path / "store", "us-east")
    async with engine(embeds) as gpu, serving(tmp_path / "2", gpu, job_store=away) as (_, client):
        at_once = await submit(client)
        assert (at_once.status_code, at_once.json()["text"]) == (200, "some text")
        assert (await client.http.get("/v1/jobs")).status_code == 501


async def test_another_agent_runs_what_a_stopped_agent_accepted(tmp_path: Path) -> None:
    store, begun = job_store(tmp_path / "store"), asyncio.Event()

    async def never(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with (
        engine(never) as silent,
        running_agent(tmp_path / "1", [silent.address], job_store=store, name="one") as first,
        JobClient(first.traffic) as client,
    ):
        job = (await submit(client)).json()["id"]
        await begun.wait()
    async with (
        engine(embeds) as gpu,
        running_agent(tmp_path / "2", [gpu.address], job_store=store, name="two") as second,
        JobClient(second.traffic) as client,
    ):
        assert (await ended(client, job))["status"] == "completed"
        assert len(gpu.requests) == 1


async def test_a_job_is_claimed_without_a_look_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 10_000.0)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        for number in range(3):
            job = (await submit(client, BODY | {"input": f"text {number}"})).json()["id"]
            assert (await ended(client, job))["status"] == "completed"
        assert (await client.ended(await client.started(input_file(2))))["status"] == "completed"


async def test_of_two_agents_the_one_with_room_runs_what_the_other_has_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    store = job_store(tmp_path / "store", concurrency=1)
    async with (
        engine(never_responds) as one_gpu,
        engine(embeds) as other_gpu,
        running_agent(tmp_path / "1", [one_gpu.address], job_store=store, name="one") as first,
        JobClient(first.traffic) as client,
    ):
        held = (await submit(client)).json()["id"]
        await until(lambda: len(one_gpu.requests) == 1)
        waiting = [(await submit(client, BODY | {"input": f"text {number}"})).json()["id"] for number in range(3)]
        async with running_agent(tmp_path / "2", [other_gpu.address], job_store=store, name="two"):
            for job in waiting:
                assert (await ended(client, job))["status"] == "completed"
        assert (await client.http.get(f"/v1/jobs/{held}")).json()["status"] == "in_progress"
        assert (len(one_gpu.requests), len(other_gpu.requests)) == (1, 3)


async def test_a_response_above_the_limit_ends_at_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_jobs, "MAX_RESULT_BYTES", 100)

    async def endless(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000)
            await asyncio.Event().wait()

    async with engine(endless) as gpu, serving(tmp_path, gpu) as (agent, client):
        done = await ended(client, (await submit(client)).json()["id"])
        assert (done["status"], done["result"]) == ("failed", None)
        assert "larger than 100 bytes" in done["error"]["message"]
        await until(lambda: agent.held() == 0)


async def test_the_limit_of_open_requests_counts_no_repetition_and_is_none_of_batches(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_open_requests=1, max_open_batches=1)

    async with engine(never_responds) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        file = (await client.upload(input_file(1))).json()["id"]
        key = {"idempotency-key": "k1"}
        for _ in range(2):
            assert (await submit(client, **key)).status_code == 202
        assert (await submit(client)).json()["error"]["code"] == "too_many_requests"
        for _ in range(2):
            assert (await client.create(file, headers=key)).status_code == 200
        assert (await client.create(file)).json()["error"]["code"] == "too_many_batches"


async def test_bodies_of_requests_count_until_their_ends_and_are_not_kept_longer(tmp_path: Path) -> None:
    store, texts = job_store(tmp_path / "store", max_tenant_bytes=2500), ("a" * 1000, "b" * 1000, "c" * 1000)
    release = asyncio.Event()
    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        jobs = [(await submit(client, BODY | {"input": text})).json()["id"] for text in texts[:2]]
        refused = await submit(client, BODY | {"input": texts[2]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "storage_full")
        assert len(stored_files(tmp_path / "store", "*/body")) == 2
        release.set()
        for job in jobs:
            await ended(client, job)
        await closed(tmp_path / "store")
        assert stored_files(tmp_path / "store", "*/body") == stored_files(tmp_path / "store", "*/job-bytes/*") == []
        done = await ended(client, (await submit(client, BODY | {"input": texts[2]})).json()["id"])
        assert (await client.http.get(done["result"]["url"])).json()["text"] == texts[2]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_bodies_of_requests_that_an_earlier_release_has_ended_do_not_count(
    tmp_path: Path, is_deleted: bool
) -> None:
    store, texts = job_store(tmp_path / "store", max_tenant_bytes=2500), ("a" * 1000, "b" * 1000, "c" * 1000)
    release = asyncio.Event()
    release.set()
    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        job = (await submit(client)).json()["id"]
        await ended(client, job)
        await closed(tmp_path / "store")
        paths, storage = JobPaths("open", job), JobStorages().of(f"file://{tmp_path}/store")
        await storage.put(f"{paths.body_size}/2000", b"")
        if is_deleted:
            for path in (paths.record, paths.end):
                await storage.delete(path)
        else:
            await storage.put(paths.body, b"x" * 2000)
        release.clear()
        for text in texts[:2]:
            assert (await submit(client, BODY | {"input": text})).status_code == 202
        refused = await submit(client, BODY | {"input": texts[2]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "storage_full")
        assert len(stored_files(tmp_path / "store", "*/job-bytes/*")) == 2
        assert len(stored_files(tmp_path / "store", "*/body")) == 2


async def test_the_body_of_a_request_that_is_repeated_until_after_its_end_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, put_body, calls = job_store(tmp_path / "store", max_tenant_bytes=1500), BatchStore.put_body, 0
    both, release = asyncio.Event(), asyncio.Event()

    async def in_turns(jobs: BatchStore, paths: JobPaths, body: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await both.wait()
        elif calls == 2:
            both.set()
            await release.wait()
        await put_body(jobs, paths, body)

    monkeypatch.setattr(BatchStore, "put_body", in_turns)
    body, key = BODY | {"input": "a" * 1000}, {"idempotency-key": "k1"}
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        first, second = (asyncio.create_task(submit(client, body, **key)) for _ in range(2))
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        job = done.pop().result().json()["id"]
        await ended(client, job)
        await closed(tmp_path / "store")
        release.set()
        assert [(await each).json()["id"] for each in (first, second)] == [job, job]
        assert len(stored_files(tmp_path / "store", "*/job-bytes/*")) == 1
        assert (await submit(client, BODY | {"input": "b" * 1000})).status_code == 202


async def test_an_agent_that_was_paused_ends_a_request_that_another_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.05)
    # Each claim is over when it is renewed, as after a pause.
    monkeypatch.setattr(request_run, "LEASE_S", -60.0)
    async with engine(never_responds) as gpu, serving(tmp_path, gpu) as (agent, client):
        job = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        now = time.time()
        other = Claim(2, "another", 1, now + 600.0, now, BatchCounts())
        jobs = BatchStore(JobStorages().of(f"file://{tmp_path}/store"), "eu-de")
        assert await jobs.claim(JobPaths("open", job), other)
        lost = partial(agent.metrics.registry.get_sample_value, "penstock_agent_batch_claims_lost_total")
        await until(lambda: lost() == 1.0)
        await until(lambda: agent.held() == 0)
        assert (await client.http.get(f"/v1/jobs/{job}")).json()["status"] == "in_progress"
        assert len(gpu.requests) == 1


async def test_a_job_with_the_key_of_one_that_is_being_deleted_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, release, delete = asyncio.Event(), asyncio.Event(), JobStorage.delete

    async def waits(self: JobStorage, path: str) -> None:
        if "/claims/" in path and not held.is_set():
            held.set()
            await release.wait()
        await delete(self, path)

    key = {"idempotency-key": "k1"}
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client, **key)).json()["id"]
        await ended(client, job)
        monkeypatch.setattr(JobStorage, "delete", waits)
        deletion = asyncio.create_task(client.http.delete(f"/v1/jobs/{job}"))
        await held.wait()
        again = [(await submit(client, **key)).json()["id"] for _ in range(2)]
        assert job not in again
        assert len(set(again)) == 1
        release.set()
        assert (await deletion).status_code == 200
        assert (await ended(client, again[0]))["result"]["status_code"] == 200
        assert (await client.http.get(f"/v1/jobs/{job}")).status_code == 404
        assert (await submit(client, **key)).json()["id"] == again[0]
        assert len(gpu.requests) == 2


async def test_a_key_is_refused_after_too_many_deleted_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_api, "MAX_DELETED", 2)
    key = {"idempotency-key": "k1"}
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        for _ in range(2):
            job = (await submit(client, **key)).json()["id"]
            await ended(client, job)
            assert (await client.http.delete(f"/v1/jobs/{job}")).status_code == 200
        refused = await submit(client, **key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert (await submit(client, **{"idempotency-key": "k2"})).status_code == 202


async def test_a_job_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    folder, job = tmp_path / "store", "job_" + "0" * 32
    for path, content in ((f"tenants/open/jobs/{job}.json", "{}"), (f"open/eu-de/open/{job}", "")):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(content)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        done = await ended(client, (await submit(client)).json()["id"])
        assert done["status"] == "completed"


@pytest.mark.parametrize("ahead_s", [400 * 86_400.0, 86_399.0], ids=["beyond the window", "near its end"])
async def test_an_agent_whose_clock_is_ahead_of_the_store_expires_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s, monotonic=time.monotonic)
    for module in (job_worker, request_run, batch_run, job_deadline):
        monkeypatch.setattr(module, "time", clock)
    for module, name in ((request_run, "RENEW_S"), (batch_run, "RENEW_S"), (batch_run, "FLUSH_S")):
        monkeypatch.setattr(module, name, 0.1)
    release, asked = asyncio.Event(), list[float]()
    now = JobStorage.now

    async def noted(self: JobStorage, random: bytes) -> float:
        asked.append(await now(self, random))
        return asked[-1]

    monkeypatch.setattr(JobStorage, "now", noted)
    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client)).json()["id"]
        batch = await client.started(input_file(1))
        # Both have been asked for, and run on.
        await until(lambda: len(gpu.requests) == 2 and len(asked) >= 2)
        release.set()
        assert (await ended(client, job))["status"] == "completed"
        assert (await client.ended(batch))["request_counts"]["completed"] == 1


async def test_a_job_expires_when_the_store_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_run, "RENEW_S", 0.1)
    monkeypatch.setattr(job_deadline, "ASK_S", 0.1)
    ahead_s, now = 86_400.0, JobStorage.now
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s, monotonic=time.monotonic)
    monkeypatch.setattr(job_deadline, "time", clock)
    passed = False

    async def later(self: JobStorage, random: bytes) -> float:
        return await now(self, random) + (ahead_s if passed else 0.0)

    monkeypatch.setattr(JobStorage, "now", later)
    async with engine(never_responds) as gpu, serving(tmp_path, gpu) as (_, client):
        job = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        passed = True
        assert (await ended(client, job))["status"] == "expired"
        await asyncio.wait_for(gpu.closed_by_client.wait(), PATIENCE_S)


async def test_a_request_that_waits_expires_although_no_agent_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    store = job_store(tmp_path / "store", concurrency=1)
    async with engine(never_responds) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        runs = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        monkeypatch.setattr(batches_api, "deadline_of", lambda window, created_at: created_at - 1)
        waiting = (await submit(client)).json()["id"]
        assert (await ended(client, waiting))["status"] == "expired"
        assert (await client.http.get(f"/v1/jobs/{runs}")).json()["status"] == "in_progress"
        assert len(gpu.requests) == 1


async def test_what_was_cancelled_or_has_expired_ends_although_no_agent_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "MAX_BATCHES", 1)
    release, store = asyncio.Event(), job_store(tmp_path / "store", concurrency=1)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=store) as (agent, client),
    ):
        worker, opened = agent.jobs.worker, agent.jobs.stores.opened()
        assert opened is not None
        file = (await client.upload(input_file(2))).json()["id"]
        first = (await client.create(file)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        job = (await submit(client)).json()["id"]
        await until(lambda: job in worker._requests)
        waiting, cancelled = [(await client.create(file)).json()["id"] for _ in range(2)]
        orphan = (await submit(client)).json()["id"]
        # Its agent is dead, so that another one ends it.
        assert await opened.batches.claim(JobPaths("open", orphan), Claim(1, "dead", 1, 0.0, 0.0, BatchCounts()))
        assert (await client.http.post(f"/v1/batches/{cancelled}/cancel")).json()["status"] == "cancelling"
        assert (await client.http.post(f"/v1/jobs/{orphan}/cancel")).json()["status"] == "cancelling"
        monkeypatch.setattr(batches_api, "deadline_of", lambda window, created_at: created_at - 1)
        expired = (await client.create(file)).json()["id"]
        for batch, state in ((cancelled, "cancelled"), (expired, "expired")):
            found = await client.ended(batch)
            assert (found["status"], found["request_counts"]["failed"]) == (state, 2)
            assert {each["error"]["code"] for each in await client.lines(found["error_file_id"])} == {f"batch_{state}"}
        assert (await ended(client, orphan))["status"] == "cancelled"
        assert (await client.batch(first))["status"] == "in_progress"
        assert (await client.batch(waiting))["status"] == "validating"
        await until(lambda: [*worker._batches, *worker._requests] == [first, job])
        release.set()
        assert {(await client.ended(each))["status"] for each in (first, waiting)} == {"completed"}
        assert (await ended(client, job))["status"] == "completed"
        await closed(tmp_path / "store")
        assert not stored_files(tmp_path / "store", "cancelled/*")


async def test_requests_of_one_tenant_do_not_wait_for_all_of_another(tmp_path: Path) -> None:
    begun: list[str] = []
    release = {"a0": asyncio.Event(), "others": asyncio.Event()}

    async def waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            begun.append(json.loads(received.body)["input"])
            await release.get(begun[-1], release["others"]).wait()
        await embeds(e, received, writer)

    store = job_store(tmp_path / "store", concurrency=2)
    async with engine(waits) as gpu, serving(tmp_path, gpu, job_store=store, slots=8) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        async with JobClient(agent.traffic, keys["a"]) as a, JobClient(agent.traffic, keys["b"]) as b:
            for number in range(4):
                await submit(a, BODY | {"input": f"a{number}"})
                await until(lambda n=number: len(begun) == min(2, n + 1))  # type: ignore[misc]
            last = (await submit(b, BODY | {"input": "b"})).json()["id"]
            release["a0"].set()
            await until(lambda: len(begun) == 3)
            assert begun == ["a0", "a1", "b"]
            release["others"].set()
            await ended(b, last)


async def test_of_a_tenants_jobs_the_one_with_the_earliest_deadline_is_served_first(tmp_path: Path) -> None:
    begun: list[str] = []
    release = asyncio.Event()

    async def waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            begun.append(json.loads(received.body)["input"])
            await release.wait()
        await embeds(e, received, writer)

    async with engine(waits) as gpu, serving(tmp_path, gpu, slots=1, queue=0) as (agent, client):
        await submit(client, BODY | {"input": "first"})
        await until(lambda: len(begun) == 1)
        shown = {}
        for number, window in enumerate(("none", "24h", "1h"), start=1):
            headers = {} if window == "24h" else {"x-completion-window": window}
            shown[window] = (await submit(client, BODY | {"input": window}, **headers)).json()
            await until(lambda n=number: agent.queue.queues.batch_waiting_here(MODEL) == n)  # type: ignore[misc]
        release.set()
        for job in shown.values():
            await ended(client, job["id"])
        assert begun == ["first", "1h", "24h", "none"]
        assert {window: job["completion_window"] for window, job in shown.items()} == {each: each for each in shown}
        assert shown["none"]["expires_at"] is None
        assert shown["1h"]["expires_at"] - shown["1h"]["created_at"] == 3600
        refused = await submit(client, **{"x-completion-window": "soon"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_completion_window")


async def test_a_job_whose_start_the_store_interrupts_runs_later_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLOCK_SKEW_S", 0.1)
    monkeypatch.setattr(job_worker, "POLL_S", 0.1)
    monkeypatch.setattr(job_worker, "LEASE_S", 0.3)
    is_cancelled, failed = BatchStore.is_cancelled, 0

    async def fails_once(jobs: BatchStore, paths: JobPaths) -> bool:
        nonlocal failed
        if agent.jobs.worker._not_before.get(paths.id) is None and not failed and await jobs.newest_claim(paths):
            failed += 1
            raise StoreUnavailable("the test makes it fail")
        return await is_cancelled(jobs, paths)

    monkeypatch.setattr(BatchStore, "is_cancelled", fails_once)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        job = (await submit(client)).json()["id"]
        await until(lambda: failed == 1)
        assert not agent.jobs.worker._requests
        assert agent.jobs.memory.held_bytes == 0
        await ended(client, job)
        await until(lambda: not agent.jobs.worker._requests)


async def test_a_queued_request_shows_when_it_will_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    monkeypatch.setattr(pace_exchange, "WRITE_S", 0.1)
    monkeypatch.setattr(pace_exchange, "READ_S", 0.1)
    release = asyncio.Event()

    async def first_only(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.body:
            await (asyncio.sleep(2.0) if b"first" in received.body else release.wait())
        await embeds(e, received, writer)

    store = job_store(tmp_path / "store", concurrency=1)
    async with (
        engine(first_only) as gpu,
        running_agent(tmp_path / "1", [gpu.address], job_store=store, name="one") as one,
        JobClient(one.traffic) as client,
    ):
        await ended(client, (await submit(client, BODY | {"input": "first"})).json()["id"])
        running = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 2)
        async with (
            running_agent(tmp_path / "2", [gpu.address], job_store=store, name="two") as two,
            JobClient(two.traffic) as other,
        ):
            await submit(other)
            await until(lambda: len(gpu.requests) == 3)
            jobs = [(await submit(client, BODY | {"input": f"{number}"})).json()["id"] for number in range(3)]
            # One request of 2 s has ended at agent one, so that it ends half a request each second.
            for each in (client, other):
                await until_shown(each, jobs[2], lambda job: job["expected_start_at"] is not None)
            await until(lambda: one.jobs.status()["waiting_requests"] == two.jobs.status()["waiting_requests"] == 3)
            first, last = await until_shown(other, jobs[0]), await until_shown(other, jobs[2])
            assert [first["status"], last["status"]] == ["queued", "queued"]
            assert 3 <= last["expected_start_at"] - first["expected_start_at"] < 60
            assert last["expected_completion_at"] - last["expected_start_at"] >= 2
            assert one.jobs.status()["last_request_starts_at"] >= last["expected_start_at"] - 1
            begun = await until_shown(client, running)
            assert begun["expected_start_at"] is None
            release.set()
            for job in jobs:
                done = await ended(client, job)
                assert (done["expected_start_at"], done["expected_completion_at"]) == (None, None)


async def test_an_agent_that_stops_completes_what_engines_have_and_leaves_the_rest_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batch_run, claims, job_worker, request_run):
        monkeypatch.setattr(module, "LEASE_S", 3600.0)
    monkeypatch.setattr(job_worker, "POLL_S", 0.1)
    release = asyncio.Event()
    store = job_store(tmp_path / "store")
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path / "a", gpu, slots=1, queue=0, job_store=store) as (agent, client),
    ):
        job = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        waiting = (await submit(client, {"model": MODEL, "input": "waits"})).json()["id"]
        await until(lambda: agent.waiting() == 1)
        batch = await client.started(input_file(2))
        await until(lambda: batch in agent.jobs.worker.status()["batches"])
        async with serving(tmp_path / "b", gpu, name="agent-2", job_store=store) as (other, _):
            await until(lambda: other.jobs.worker._held_until.keys() == {job, waiting, batch})
            draining = asyncio.create_task(agent.jobs.wait_drained(PATIENCE_S))
            # At once: none of their claims has to expire.
            await until(lambda: sorted(agent.jobs.worker._requests) == [job] and not agent.jobs.worker._batches)
            await until(lambda: waiting in other.jobs.worker._requests and len(gpu.requests) >= 3)
            assert not draining.done()
            release.set()
            assert await draining
            for each in (job, waiting):
                assert (await ended(client, each))["status"] == "completed"
            assert (await client.ended(batch))["request_counts"]["completed"] == 2
        bodies = [request.body for request in gpu.requests]
        assert len(bodies) == len(set(bodies)) == 4, "each has run once"
        assert (await submit(client)).status_code == 202


async def test_an_agent_that_stops_gives_up_what_has_not_ended_in_time(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store")
    async with (
        engine(never_responds) as gpu,
        serving(tmp_path / "a", gpu, job_store=store) as (agent, client),
    ):
        job = (await submit(client)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        assert await agent.jobs.wait_drained(0.0)
        assert (agent.jobs.worker._requests, agent.held()) == ({}, 0)
        async with serving(tmp_path / "b", gpu, name="agent-2", job_store=store):
            await until(lambda: len(gpu.requests) == 2)
            assert (await until_shown(client, job))["status"] == "in_progress"


@pytest.mark.parametrize("concurrency", [4, 100])
async def test_an_agent_that_stops_completes_the_requests_of_a_batch_that_engines_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.1)
    release = asyncio.Event()
    store = job_store(tmp_path / "store", concurrency=concurrency)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path / "a", gpu, slots=4, queue=0, job_store=store) as (agent, client),
    ):
        batch = await client.started(input_file(8))
        await until(lambda: len(gpu.requests) == 3 and agent.waiting() > 0)
        draining = asyncio.create_task(agent.jobs.wait_drained(PATIENCE_S))
        await until(lambda: agent.waiting() == 0)
        release.set()
        assert await draining
        assert len(gpu.requests) == 3, "no further one has started"
        async with serving(tmp_path / "b", gpu, name="agent-2", job_store=store):
            assert (await client.ended(batch))["request_counts"]["completed"] == 8
        assert len(gpu.requests) == 8, "each has run once"
