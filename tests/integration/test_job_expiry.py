"""Files, batches and asynchronous requests are deleted by age, and by their tenant."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from regional_agent.jobs.api import merged_lists
from regional_agent.jobs.storage import expiry, job_stores_in_use
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.job_storage import JobStorages
from tests.integration.test_async_requests import ended, submit
from tests.integration.test_batches import serving
from tests.support.chats import answers_after
from tests.support.jobs import closed, embeds, input_file, job_store, stored_files
from tests.support.sockets import engine

HOUR_S = 3600.0


def objects(store: Path) -> list[str]:
    """Paths of all objects of a store but its format and the paces of agents, which belong to no job."""
    paths = [path.relative_to(store) for path in stored_files(store)]
    return [str(path) for path in paths if path.name != "format" and path.parts[0] != "pace"]


async def test_what_has_ended_is_deleted_when_the_policy_keeps_it_no_longer(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", retention_s=10 * HOUR_S)
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (agent, client):
        batch = await client.ended(await client.started(input_file(3)))
        job = await ended(client, (await submit(client)).json()["id"])
        await closed(tmp_path / "store")
        now = time.time()
        assert now + 9 * HOUR_S < job["retained_until"] <= now + 10 * HOUR_S
        shown = (await client.http.get(f"/v1/files/{batch['output_file_id']}")).json()
        assert shown["expires_at"] == shown["created_at"] + 10 * HOUR_S
        before = objects(tmp_path / "store")
        assert await agent.jobs.expiry.sweep(now + 9.9 * HOUR_S) == 0
        assert objects(tmp_path / "store") == before
        # A damaged record of another tenant is kept, and does not keep the rest.
        damaged = [f"expiring/00000001/a/{job['id']}", f"tenants/a/job-data/{job['id']}/end.json"]
        for path in damaged:
            (tmp_path / "store" / path).parent.mkdir(parents=True)
            (tmp_path / "store" / path).write_bytes(b"{")
        assert await agent.jobs.expiry.sweep(now + 12 * HOUR_S) == 3
        assert objects(tmp_path / "store") == damaged
        for folder in ("expiring", "tenants"):
            rmtree(tmp_path / "store" / folder)
        assert objects(tmp_path / "store") == []
        for path in (f"/v1/batches/{batch['id']}", f"/v1/jobs/{job['id']}", f"/v1/files/{batch['output_file_id']}"):
            assert (await client.http.get(path)).status_code == 404
        folders = {path.name for path in (tmp_path / "store").iterdir() if path.is_dir()}
        assert folders <= {"pace"}, "no empty folder is left"


async def test_a_file_is_kept_while_an_unfinished_batch_reads_it(tmp_path: Path) -> None:
    release = asyncio.Event()

    store = job_store(tmp_path / "store", retention_s=HOUR_S)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=store) as (agent, client),
    ):
        batch = await client.started(input_file(2))
        other = (await client.upload(input_file(1))).json()["id"]
        in_use = (await client.batch(batch))["input_file_id"]
        later = time.time() + 30 * HOUR_S
        assert await agent.jobs.expiry.sweep(later) == 2
        assert await agent.jobs.expiry.sweep(later) == 0, "the file is kept for a further such time"
        assert (await client.http.get(f"/v1/files/{other}")).status_code == 404
        release.set()
        assert (await client.ended(batch))["request_counts"]["completed"] == 2
        await closed(tmp_path / "store")
        assert await agent.jobs.expiry.sweep(later + 3 * HOUR_S) == 2
        assert (await client.http.get(f"/v1/files/{in_use}")).status_code == 404


async def test_a_tenant_sets_when_its_files_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu) as (agent, client):

        async def uploaded(seconds: int) -> Any:
            fields = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
            return (await client.http.post("/v1/files", data=fields, files={"file": input_file(1)})).json()

        assert (await uploaded(3599))["error"]["code"] == "invalid_expires_after"
        file = await uploaded(7200)
        assert file["expires_at"] == file["created_at"] + 7200
        after = {"anchor": "created_at", "seconds": 3600}
        created = await client.create(file["id"], output_expires_after=after)
        later = file["expires_at"] + HOUR_S
        for at in (later, later + HOUR_S):
            assert await agent.jobs.expiry.sweep(at) == 1, "a look each hour: the batch reads the file"
        release.set()
        output = (await client.ended(created.json()["id"]))["output_file_id"]
        await closed(tmp_path / "store")
        policy = agent.config.policy
        (store,) = policy.job_stores
        shorter = replace(store, retention_s=3 * HOUR_S)
        agent.config.policy = replace(policy, job_stores=(shorter,))
        await agent.jobs.expiry.sweep(time.time())
        assert (await client.http.get(f"/v1/files/{file['id']}")).status_code == 200, "kept until the time it shows"
        shown = (await client.http.get(f"/v1/files/{output}")).json()
        assert shown["expires_at"] == shown["created_at"] + 3600
        files = FileStore(JobStorages().of(f"file://{tmp_path}/store"), Random(1), lambda: file["expires_at"])
        assert await files.find("open", file["id"]) is await files.find("open", output) is None
        assert await files.find_kept("open", file["id"]) is not None, "for a batch that runs"
        monkeypatch.setattr(job_stores_in_use, "FileStore", partial(FileStore, clock=lambda: later))
        await agent.jobs.expiry.sweep(later + HOUR_S)
        left = [path for path in objects(tmp_path / "store") if path.startswith("tenants/")]
        assert not [path for path in left if "/file" in path or path.endswith("output")], left


async def test_an_agent_whose_clock_is_not_that_of_the_store_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        await client.ended(await client.started(input_file(1)))
        await closed(tmp_path / "store")
        await client.http.post("/v1/uploads", json={"bytes": 1, "filename": "f", "purpose": "batch"})
        before = objects(tmp_path / "store")
        ahead_s = 400 * 24 * HOUR_S
        clock = SimpleNamespace(time=lambda: time.time() + ahead_s)
        monkeypatch.setattr(expiry, "time", clock)
        assert await agent.jobs.expiry.sweep(clock.time()) == 0
        assert objects(tmp_path / "store") == before
        ahead_s = 0.0
        assert await agent.jobs.expiry.sweep(time.time() + 400 * 24 * HOUR_S) == 2
        assert objects(tmp_path / "store") == []


async def test_a_tenant_deletes_a_request_that_has_ended_and_may_submit_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        key = {"idempotency-key": "k1"}
        job = (await submit(client, **key)).json()["id"]
        await ended(client, job)
        await closed(tmp_path / "store")
        assert (await client.http.delete(f"/v1/jobs/{job}")).json() == {"id": job, "object": "job", "deleted": True}
        assert (await client.http.get(f"/v1/jobs/{job}")).status_code == 404
        mark, end = objects(tmp_path / "store")
        assert (mark.partition("/")[0], end) == ("expiring", f"tenants/open/job-data/{job}/end.json")
        deleted, job = job, (await submit(client, **key)).json()["id"]
        assert deleted != job
        await ended(client, job)
        await closed(tmp_path / "store")
        page_of = merged_lists.page_of

        async def with_a_deleted_one(*args: Any) -> tuple[list[str], bool]:
            names, more = await page_of(*args)
            return [*names, "job_" + "0" * 32], more

        monkeypatch.setattr(merged_lists, "page_of", with_a_deleted_one)
        assert [each["id"] for each in (await client.http.get("/v1/jobs")).json()["data"]] == [job]
        await _ended_an_hour_later(tmp_path / "store", job)
        assert await agent.jobs.expiry.sweep(time.time() + 721.5 * HOUR_S) == 2
        assert not any(deleted in path for path in objects(tmp_path / "store"))
        assert (await client.http.get(f"/v1/jobs/{job}/result")).json()["text"] == "some text"
        runs = len(gpu.requests)
        assert (await submit(client, **key)).json()["id"] == job, "the one with the key that is left"
        assert (await client.http.delete(f"/v1/jobs/{job}")).status_code == 200
        third = (await submit(client, **key)).json()["id"]
        assert third not in (deleted, job), "the end of the second is left"
        await ended(client, third)
        assert len(gpu.requests) == runs + 1


async def _ended_an_hour_later(store: Path, job: str) -> None:
    """Move the end of a job, and leave the mark of its end, as of a job of an earlier release that ended twice."""
    end = store / f"tenants/open/job-data/{job}/end.json"
    content = end.read_bytes()
    at = float(content.partition(b'"at":')[2].partition(b",")[0])
    end.write_bytes(content.replace(b'"at":%b' % repr(at).encode(), b'"at":%b' % repr(at + HOUR_S).encode()))


async def test_what_an_interrupted_upload_left_is_deleted_by_age(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", retention_s=HOUR_S)
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (agent, client):
        file = (await client.upload(input_file(1))).json()["id"]
        (tmp_path / f"store/tenants/open/files/{file}.json").unlink()
        now = time.time()
        await agent.jobs.expiry.sweep(now + 3 * HOUR_S)
        assert any("file-data" in path for path in objects(tmp_path / "store")), "the upload may still run"
        await agent.jobs.expiry.sweep(now + 30 * HOUR_S)
        assert objects(tmp_path / "store") == []
