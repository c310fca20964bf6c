"""Objects of the job store that were damaged or removed by other means: clear errors, and no job that never ends."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import httpx
import pytest

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs.store_paths import Expiring, JobPaths
from regional_agent.jobs import job_worker
from regional_agent.jobs.storage.batch_store import BatchStore, JobRecord
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys
from regional_agent.result_cache.stored_bodies import StoredBodies
from tests.integration.test_async_requests import ended
from tests.integration.test_batches import serving
from tests.support.chats import never_responds
from tests.support.jobs import EMBEDDINGS, closed, embeds, input_file, job_store, request_line, stored_files
from tests.support.planet import MODEL
from tests.support.sockets import engine
from tests.support.wait import until


@pytest.mark.parametrize(
    ("damaged", "line", "completed"),
    [
        (request_line("r0") + b"{" * len(request_line("r1")) + request_line("r2"), 2, 1),
        (request_line("r0"), 1, 0),
        (b"", 1, 0),
    ],
)
async def test_a_batch_with_a_damaged_input_fails_with_the_line(
    tmp_path: Path, damaged: bytes, line: int, completed: int
) -> None:
    content = b"".join(request_line(f"r{n}") for n in range(3))
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(content)).json()["id"]
        (part,) = stored_files(tmp_path / "store", f"*file-data/{file}/000000")
        part.write_bytes(damaged)
        batch = await client.ended((await client.create(file)).json()["id"])
        (error,) = batch["errors"]["data"]
        assert (batch["status"], error["code"], error["line"]) == ("failed", "input_file_damaged", line)
        assert batch["request_counts"]["completed"] == completed == len(await client.lines(batch["output_file_id"]))


@pytest.mark.parametrize("damaged", [b"short", input_file(3) + b"more"])
async def test_the_connection_of_damaged_content_is_closed(tmp_path: Path, damaged: bytes) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(input_file(3))).json()["id"]
        (part,) = stored_files(tmp_path / "store", f"*file-data/{file}/000000")
        part.write_bytes(damaged)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.http.get(f"/v1/files/{file}/content")
        assert (await client.http.get(f"/v1/files/{file}")).status_code == 200


async def test_an_asynchronous_request_without_its_body_fails(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store")
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (agent, client):
        agent.jobs.worker._requests |= {str(n): None for n in range(store.concurrency)}  # type: ignore[misc]
        body = {"model": MODEL, "input": "text 1"}
        job = (await client.http.post(EMBEDDINGS, json=body, headers={"prefer": "respond-async"})).json()["id"]
        (stored,) = stored_files(tmp_path / "store", f"*job-data/{job}/body")
        stored.unlink()
        agent.jobs.worker._requests.clear()
        agent.jobs.worker.wake()
        found = await ended(client, job)
        assert (found["status"], found["error"]["message"]) == (
            "failed",
            "the body of the request is no longer in the store",
        )


async def test_what_is_left_of_a_job_without_a_record_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "MISSING_S", 0.0)
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    store = job_store(tmp_path / "store", concurrency=1)
    async with engine(never_responds) as gpu, serving(tmp_path, gpu, job_store=store) as (agent, client):
        monkeypatch.setattr(job_worker, "MAX_BATCHES", 0)
        batch = await client.started(input_file(1))
        opened = agent.jobs.stores.opened()
        assert opened is not None
        paths = JobPaths("open", batch)
        # As by an operator who removes the folder of a tenant.
        await opened.batches.storage.delete(paths.record)
        await opened.batches.cancel(paths, time.time())
        monkeypatch.setattr(job_worker, "MAX_BATCHES", 32)
        agent.jobs.worker.wake()
        await closed(tmp_path / "store")
        await until(lambda: not stored_files(tmp_path / "store", f"*{batch}*"))


async def test_objects_of_others_in_the_store_stop_nothing(tmp_path: Path) -> None:
    job = f"job_{'0' * 32}"
    others = (
        f"open/eu-de/acme/{job}.bak",
        "open/eu-de/notes",
        "webhooks/eu-de/notes",
        "webhooks/eu-de/acme/job/.nfs0001",
        "expiring/notes",
        "uploading/notes",
        "cancelled/notes",
        "results/eu-de/notes",
    )
    store = tmp_path / "store"
    for path in others:
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).write_bytes(b"")
    keys = WebhookKeys((b"k" * 32,))
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        agent.jobs.webhooks._keys = keys
        await agent.jobs.webhooks.look()
        await agent.jobs.expiry.sweep(time.time())
        await StoredBodies(agent.jobs.stores, Random(1)).sweep()
        batch = await client.started(input_file(2))
        assert (await client.ended(batch))["status"] == "completed"
    assert all((store / path).exists() for path in others)


async def test_a_job_whose_objects_the_store_refuses_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    store = tmp_path / "store"
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        worker, read = agent.jobs.worker, BatchStore.record
        # Jobs wait for each other, in the order of their tenant's deadlines.
        agent.jobs.worker._requests |= {str(n): None for n in range(1000)}  # type: ignore[misc]
        headers = {"prefer": "respond-async"}
        jobs = []
        for text in ("first", "second", "third"):
            body = {"model": MODEL, "input": text}
            jobs.append((await client.http.post(EMBEDDINGS, json=body, headers=headers)).json()["id"])

        async def refuses(batches: BatchStore, paths: JobPaths) -> JobRecord | None:
            if paths.id == jobs[0]:
                raise StoreUnavailable("access denied")
            return await read(batches, paths)

        monkeypatch.setattr(BatchStore, "record", refuses)
        worker._requests.clear()
        worker.wake()
        assert [(await ended(client, job))["status"] for job in jobs[1:]] == ["completed"] * 2
        assert (await client.http.get(f"/v1/jobs/{jobs[0]}")).json()["status"] == "queued"
        # It is the first of what has expired, too.
        await until(lambda: len(stored_files(store, "expiring/*")) == 2)
        delete, denied = BatchStore.delete_expired, sorted(jobs[1:])[0]

        async def refuses_deletion(batches: BatchStore, expired: Expiring) -> None:
            if expired.id == denied:
                raise StoreUnavailable("access denied")
            await delete(batches, expired)

        monkeypatch.setattr(BatchStore, "delete_expired", refuses_deletion)
        assert await agent.jobs.expiry.sweep(time.time() + 40 * 86_400.0) == 1
        assert [path.name for path in stored_files(store, "expiring/*")] == [denied]
