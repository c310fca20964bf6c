"""Uploads in parts: through the agent, by signed URLs of a bucket, and what is refused at their completion."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from hashlib import md5
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from penstock.jobs import store_paths
from penstock.jobs.store_paths import UploadPaths
from penstock.jobs.upload import LIFETIME_S, UploadEnd
from regional_agent.jobs.api.uploads_api import MAX_BODY_BYTES
from regional_agent.jobs.storage.expiry import Expiry
from regional_agent.jobs.storage.upload_store import UploadStore
from regional_agent.jobs.uploads import completions, custom_ids, input_file, received_files
from tests.integration.test_batches import serving
from tests.support.codings import gzipped
from tests.support.jobs import JobClient, embeds, job_store, request_line, stored_files
from tests.support.jobs import input_file as lines_of
from tests.support.s3_server import BUCKET, NEEDS_MOTO, s3_address, s3_server
from tests.support.sockets import engine
from tests.support.wait import until


class Uploader:
    """A client of the Uploads API."""

    def __init__(self, client: JobClient) -> None:
        self.http = client.http

    async def create(self, size_bytes: int, **more: Any) -> httpx.Response:
        body = {"filename": "big.jsonl", "purpose": "batch", "bytes": size_bytes, "mime_type": "text/jsonl", **more}
        return await self.http.post("/v1/uploads", json=body)

    async def created(self, content: bytes) -> str:
        created = await self.create(len(content))
        assert created.status_code == 200, created.text
        return str(created.json()["id"])

    async def part(self, upload: str, content: bytes) -> httpx.Response:
        return await self.http.post(f"/v1/uploads/{upload}/parts", files={"data": ("upload", content)})

    async def parts(self, upload: str, *contents: bytes) -> list[str]:
        return [str((await self.part(upload, content)).json()["id"]) for content in contents]

    async def complete(self, upload: str, parts: list[str], **more: Any) -> httpx.Response:
        return await self.http.post(f"/v1/uploads/{upload}/complete", json={"part_ids": parts, **more})

    async def refused(self, upload: str, parts: list[str], **more: Any) -> tuple[int, str, str]:
        answer = await self.complete(upload, parts, **more)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]


def kept(tmp_path: Path) -> list[str]:
    """The objects of uploads in parts, without the marks of their deletion."""
    return [str(path) for path in stored_files(tmp_path / "store", "*uploads/*") if path.name.startswith("0")]


async def test_parts_that_were_cut_anywhere_are_a_file_and_its_batch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_file, "PART_BYTES", 1000)
    monkeypatch.setattr(received_files, "PART_BYTES", 50_000)
    content = lines_of(60)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        uploads = Uploader(client)
        upload = await uploads.created(content)
        last, first = await uploads.parts(upload, content[777:], content[:777])
        completed = (await uploads.complete(upload, [first, last], md5=md5(content).hexdigest())).json()
        assert (completed["status"], completed["file"]["bytes"]) == ("completed", len(content))
        file = completed["file"]["id"]
        assert (await client.http.get(f"/v1/files/{file}/content")).content == content
        ended = await client.ended((await client.create(file)).json()["id"])
        assert ended["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        assert not kept(tmp_path)
        large = await uploads.created(b"x" * 900_000)
        await uploads.parts(large, b"x" * 900_000)
        assert len(kept(tmp_path)) > 1, "a part is written in objects of bounded size"

        again = await uploads.complete(upload, [first, last])
        assert (again.status_code, again.json()) == (200, completed)
        assert await uploads.refused(upload, [first]) == (409, "upload_has_ended", "the upload is completed")
        cancelled = await client.http.post(f"/v1/uploads/{upload}/cancel")
        assert (cancelled.status_code, cancelled.headers["x-should-retry"]) == (409, "false")
        assert (await uploads.part(upload, b"x")).status_code == 409
        assert len((await client.http.get("/v1/files")).json()["data"]) == 2, "the input and the output"


async def test_a_refused_completion_names_the_lines_and_leaves_the_upload_as_it_was(tmp_path: Path) -> None:
    good, other = request_line("a"), request_line("b")
    bad = b"{" + good[1:].replace(b'"', b"'", 1)
    bomb = gzipped(good * 100_000)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        uploads = Uploader(client)
        upload = await uploads.created(good + other)
        of_good, of_other, of_bad, short = await uploads.parts(upload, good, other, bad, good[:-9])
        status, code, message = await uploads.refused(upload, [of_good, of_bad])
        assert (status, code) == (400, "invalid_json_line")
        assert "line 2 is not valid JSON" in message
        for parts, expected, text in (
            ([of_good, of_good], "duplicate_custom_id", "line 2: the `custom_id` is also that of line 1"),
            ([of_good, short], "size_mismatch", f"and `bytes` of the upload is {len(good + other)}"),
            ([of_good, "part_" + "0" * 32], "no_such_part", "the upload has no part named"),
            ([of_good, "../../x"], "no_such_part", "the upload has no part named"),
            ([], "invalid_parts", "`part_ids` has not 1 to 10000 parts"),
        ):
            status, code, message = await uploads.refused(upload, parts)
            assert (status, code) == (400, expected)
            assert text in message
        assert (await uploads.refused(upload, [of_good, of_other], md5="0" * 32))[1] == "checksum_mismatch"
        shown = (await client.http.get(f"/v1/uploads/{upload}")).json()
        assert (shown["status"], shown["file"], shown["expires_at"]) == (
            "pending",
            None,
            shown["created_at"] + LIFETIME_S,
        )
        assert (await client.http.get("/v1/files")).json()["data"] == []
        assert (await uploads.complete(upload, [of_good, of_other])).json()["status"] == "completed"

        upload = await uploads.created(bomb)
        status, code, message = await uploads.refused(upload, await uploads.parts(upload, bomb))
        assert (status, code) == (400, "invalid_json_line"), "a compressed file is not decompressed"

        store = stored_files(tmp_path / "store", "*file-data/*")
        await until(lambda: len(store) == 1)


async def test_a_host_without_space_for_temporary_files_refuses_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_ids, "MEMORY_BYTES", 100)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        uploads, content = Uploader(client), lines_of(1000)
        upload = await uploads.created(content)
        parts = await uploads.parts(upload, content)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        for refused in (await client.upload(content), await uploads.complete(upload, parts)):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert (await uploads.complete(upload, parts)).status_code == 200


async def test_what_an_upload_may_be_is_limited(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_file_bytes=2000, max_tenant_bytes=3000)
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        uploads = Uploader(client)
        assert (await uploads.create(2001)).json()["error"]["code"] == "file_too_large"
        assert (await uploads.create(0)).json()["error"]["code"] == "invalid_size"
        assert (await uploads.create(10, purpose="fine-tune")).json()["error"]["code"] == "invalid_purpose"
        assert (await client.http.post("/v1/uploads", content=b"[]")).status_code == 400
        upload = (await uploads.create(2000)).json()["id"]
        large = await client.http.post(f"/v1/uploads/{upload}/complete", content=b"[" + b" " * MAX_BODY_BYTES)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        too_large = await uploads.part(upload, b"x" * 2001)
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "part_too_large")
        assert (await uploads.part(upload, b"x" * 1500)).status_code == 200
        full = await uploads.part(upload, b"x" * 1500)
        assert (full.status_code, full.json()["error"]["code"]) == (413, "storage_full")
        assert (await uploads.create(1501)).json()["error"]["code"] == "storage_full"
        assert (await client.http.post(f"/v1/uploads/{upload}/parts", files={"file": b"x"})).status_code == 400
        cancelled = [(await client.http.post(f"/v1/uploads/{upload}/cancel")).json() for _ in range(2)]
        assert [each["status"] for each in cancelled] == ["cancelled", "cancelled"]
        assert (await uploads.refused(upload, ["part_" + "0" * 32]))[:2] == (409, "upload_has_ended")
        assert (await uploads.create(1501)).status_code == 200, "its parts are deleted"
        refused = await client.http.post(f"/v1/uploads/{upload}/urls", json={"parts": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "upload_has_ended")
        other = (await uploads.create(10)).json()["id"]
        refused = await client.http.post(f"/v1/uploads/{other}/urls", json={"parts": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "signed_urls_not_offered")
        for path in ("", "/parts", "/urls", "/complete", "/cancel"):
            method = "GET" if not path else "POST"
            files = {"data": b"x"} if path == "/parts" else None
            body = None if files else {"part_ids": ["x"], "parts": 1}
            for name in ("upload_" + "0" * 32, "..%2F..%2Fx", "file-x"):
                missing = await client.http.request(method, f"/v1/uploads/{name}{path}", json=body, files=files)
                assert (missing.status_code, missing.json()["error"]["code"]) == (404, "no_such_upload"), (path, name)


async def test_a_long_completion_goes_on_without_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "WAIT_S", 0.01)
    reads, may_read = UploadStore.read, asyncio.Event()

    async def held(self: UploadStore, objects: Any) -> Any:
        await may_read.wait()
        async for content in reads(self, objects):
            yield content

    monkeypatch.setattr(UploadStore, "read", held)
    good, bad = request_line("a"), b"{" * len(request_line("a"))
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        uploads = Uploader(client)
        upload = await uploads.created(good)
        of_good, of_bad = await uploads.parts(upload, good, bad)
        pending = await uploads.complete(upload, [of_bad])
        assert (pending.status_code, pending.json()["status"]) == (202, "pending")
        assert (await uploads.refused(upload, [of_good]))[:2] == (409, "completion_in_progress")
        may_read.set()
        await until(lambda: not agent.jobs.routes.completions.running)
        monkeypatch.setattr(completions, "WAIT_S", 30.0)
        assert len(stored_files(tmp_path / "store", "*problem.json")) == 1
        assert (await uploads.refused(upload, [of_bad]))[1] == "invalid_json_line"
        assert not stored_files(tmp_path / "store", "*problem.json"), "it is returned once"
        both = await asyncio.gather(*(uploads.complete(upload, [of_good]) for _ in range(2)))
        assert len({each.json()["file"]["id"] for each in both}) == 1
        assert len((await client.http.get("/v1/files")).json()["data"]) == 1


async def test_two_agents_that_complete_an_upload_make_one_file_and_a_cancellation_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, both_read = UploadStore.read, asyncio.Barrier(3)

    async def held(self: UploadStore, objects: Any) -> Any:
        await both_read.wait()
        async for content in reads(self, objects):
            yield content

    monkeypatch.setattr(UploadStore, "read", held)
    store, content = job_store(tmp_path / "store"), request_line("a")
    async with (
        engine(embeds) as gpu,
        serving(tmp_path / "1", gpu, job_store=store) as (_, client),
        serving(tmp_path / "2", gpu, job_store=store) as (_, other),
    ):
        uploads, others = Uploader(client), Uploader(other)
        upload = await uploads.created(content)
        parts = await uploads.parts(upload, content)
        completed = asyncio.gather(uploads.complete(upload, parts), others.complete(upload, parts))
        await both_read.wait()
        one, two = [each.json() for each in await completed]
        assert one == two
        assert one["file"]["bytes"] == len(content)
        assert [each["id"] for each in (await client.http.get("/v1/files")).json()["data"]] == [one["file"]["id"]]

        upload = await uploads.created(content)
        parts = await uploads.parts(upload, content)
        completed = asyncio.gather(uploads.complete(upload, parts), others.complete(upload, parts))
        await until(lambda: both_read.n_waiting == 2)
        assert (await client.http.post(f"/v1/uploads/{upload}/cancel")).json()["status"] == "cancelled"
        await both_read.wait()
        assert {(each.status_code, each.json()["error"]["code"]) for each in await completed} == {
            (409, "upload_changed")
        }
        assert len((await client.http.get("/v1/files")).json()["data"]) == 1


@pytest.mark.parametrize("ends", ["is cancelled", "is completed in another order"])
async def test_a_completion_of_an_upload_that_ends_otherwise_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    end, has_come, may_end = UploadStore.end, asyncio.Event(), asyncio.Event()

    async def held(self: UploadStore, paths: Any, ended: UploadEnd) -> bool:
        if not has_come.is_set():
            has_come.set()
            await may_end.wait()
        return await end(self, paths, ended)

    monkeypatch.setattr(UploadStore, "end", held)
    store, content = job_store(tmp_path / "store"), request_line("a") + request_line("b")
    async with (
        engine(embeds) as gpu,
        serving(tmp_path / "1", gpu, job_store=store) as (_, client),
        serving(tmp_path / "2", gpu, job_store=store) as (_, other),
    ):
        uploads, others = Uploader(client), Uploader(other)
        upload = await uploads.created(content)
        parts = await uploads.parts(upload, request_line("a"), request_line("b"))
        completed = asyncio.create_task(uploads.complete(upload, parts))
        await has_come.wait()
        if ends == "is cancelled":
            assert (await other.http.post(f"/v1/uploads/{upload}/cancel")).status_code == 200
        else:
            assert (await others.complete(upload, parts[::-1])).status_code == 200
        may_end.set()
        refused = await completed
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "upload_has_ended")


async def test_an_agent_that_finds_no_parts_since_another_completed_the_upload_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, has_come, may_list = UploadStore.parts, asyncio.Event(), asyncio.Event()

    async def held(self: UploadStore, paths: Any) -> Any:
        if not has_come.is_set():
            has_come.set()
            await may_list.wait()
        return await lists(self, paths)

    monkeypatch.setattr(UploadStore, "parts", held)
    store, content = job_store(tmp_path / "store"), request_line("a")
    async with (
        engine(embeds) as gpu,
        serving(tmp_path / "1", gpu, job_store=store) as (_, client),
        serving(tmp_path / "2", gpu, job_store=store) as (_, other),
    ):
        upload = await Uploader(client).created(content)
        parts = await Uploader(client).parts(upload, content)
        late = asyncio.create_task(Uploader(client).complete(upload, parts))
        await has_come.wait()
        first = await Uploader(other).complete(upload, parts)
        may_list.set()
        found = await late
        assert (found.status_code, found.json()) == (200, first.json())


async def test_an_upload_that_is_not_completed_is_deleted_with_what_a_late_url_wrote(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        uploads = Uploader(client)
        first, second = await uploads.created(b"x"), await uploads.created(b"x")
        await uploads.parts(first, b"x")
        await client.http.post(f"/v1/uploads/{second}/cancel")
        store = agent.jobs.routes._stores.opened()
        assert store is not None
        late = UploadPaths("open", second)
        assert store_paths.is_upload(second)
        await store.uploads.storage.put(late.part("part_" + "0" * 32, 0), b"late")
        expiry, created_at = Expiry(agent.jobs.routes._stores, Random(1)), store.files.clock()
        await expiry.sweep(created_at + LIFETIME_S)
        assert len(kept(tmp_path)) == 2, "a URL that was used at the end may still write"
        store.files.clock = lambda: created_at + LIFETIME_S
        await expiry.sweep(created_at + LIFETIME_S + 3 * 3600)
        assert stored_files(tmp_path / "store") == [tmp_path / "store/format"]
        assert (await client.http.get(f"/v1/uploads/{first}")).status_code == 404


@pytest.mark.parametrize("mark", [pytest.param(0, marks=NEEDS_MOTO)])
async def test_a_client_writes_parts_to_the_bucket_by_signed_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int
) -> None:
    content = lines_of(1000)
    cut = len(content) // 3
    pieces = [content[:cut], content[cut : 2 * cut], content[2 * cut :]]
    with s3_address(monkeypatch) as port:
        store = replace(job_store(tmp_path), url=f"s3://{BUCKET}/jobs", signed_urls_s=60)
        async with (
            s3_server(port),
            engine(embeds) as gpu,
            serving(tmp_path, gpu, job_store=store) as (agent, client),
            httpx.AsyncClient() as http,
        ):
            uploads = Uploader(client)
            upload = await uploads.created(content)
            signed = (await client.http.post(f"/v1/uploads/{upload}/urls", json={"parts": 3})).json()["data"]
            assert all("X-Amz-Expires=60" in each["url"] for each in signed)
            again = (await client.http.post(f"/v1/uploads/{upload}/urls", json={"parts": 2})).json()["data"]
            assert [each["id"] for each in again] == [each["id"] for each in signed[:2]]
            for piece, each in zip(pieces, signed, strict=True):
                put = await http.put(each["url"], content=piece, headers={"content-encoding": "gzip"})
                assert put.status_code == 200
            parts = [each["id"] for each in signed]
            await http.put(signed[0]["url"], content=pieces[0] + b"more")
            assert (await uploads.refused(upload, parts))[1] == "size_mismatch"
            await http.put(signed[0]["url"], content=b"{" * cut)
            assert (await uploads.refused(upload, parts))[1] == "invalid_json_line"
            await http.put(signed[0]["url"], content=pieces[0])
            completed = (await uploads.complete(upload, parts)).json()
            file = completed["file"]["id"]
            # A URL that is still valid changes nothing of the file.
            await http.put(signed[0]["url"], content=b"{" * cut)
            assert (await client.http.get(f"/v1/files/{file}/content")).content == content
            ended = await client.ended((await client.create(file)).json()["id"])
            assert ended["request_counts"]["completed"] == 1000
            assert (await client.http.post(f"/v1/uploads/{upload}/urls", json={"parts": 0})).status_code == 409
            other = await uploads.created(content)
            for number in (0, 1001):
                refused = await client.http.post(f"/v1/uploads/{other}/urls", json={"parts": number})
                assert refused.json()["error"]["code"] == "invalid_parts"
            assert json.loads((await client.http.get(f"/v1/uploads/{upload}")).content)["status"] == "completed"
            assert await agent.jobs.expiry.sweep(time.time() + LIFETIME_S + 3 * 3600) == 0
            assert (await client.http.get(f"/v1/uploads/{upload}")).status_code == 404
            assert (await client.http.get(f"/v1/files/{file}")).status_code == 200
