"""Files and results that clients read from the bucket of the job store, over the S3 protocol of moto's server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from adapters.object_store.folder_store import FolderStore
from adapters.object_store.object_store import StoreUnavailable
from regional_agent.jobs.storage import page
from tests.integration.test_async_requests import ended
from tests.integration.test_batches import serving
from tests.support.jobs import EMBEDDINGS, JobClient, embeds, input_file, job_store
from tests.support.planet import MODEL
from tests.support.s3_server import BUCKET, NEEDS_MOTO, s3_address, s3_server
from tests.support.sockets import engine


async def listed(client: JobClient, path: str, **query: str) -> list[str]:
    """Read a list in pages of one."""
    found: list[str] = []
    while True:
        cursor = {"after": found[-1]} if found else {}
        shown = (await client.http.get(path, params={"limit": "1", **query, **cursor})).json()
        found += [each["id"] for each in shown["data"]]
        if not shown["has_more"]:
            return found


async def test_without_the_policy_there_are_no_urls(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(input_file(2))).json()["id"]
        refused = await client.http.get(f"/v1/files/{file}/urls")
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "signed_urls_not_offered")
        assert refused.headers["x-should-retry"] == "false"
        assert (await client.http.get("/v1/files/file-unknown/urls")).status_code == 404
        assert (await client.http.get("/v1/jobs/job_unknown/urls")).status_code == 404
        assert (await client.http.post(f"/v1/files/{file}/urls")).status_code == 405
    with pytest.raises(StoreUnavailable, match="folder"):
        FolderStore(tmp_path).sign(["a"], 60)


@pytest.mark.parametrize("mark", [pytest.param(0, marks=NEEDS_MOTO)])
async def test_files_and_results_are_read_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int
) -> None:
    with s3_address(monkeypatch) as port:
        store = replace(job_store(tmp_path), url=f"s3://{BUCKET}/jobs", signed_urls_s=60)
        async with (
            s3_server(port),
            engine(embeds) as gpu,
            serving(tmp_path, gpu, job_store=store) as (_, client),
            httpx.AsyncClient() as http,
        ):
            content = input_file(5)
            file = (await client.upload(content)).json()["id"]
            found = (await client.http.get(f"/v1/files/{file}/urls")).json()
            parts = [(await http.get(part["url"])).content for part in found["data"]]
            assert (b"".join(parts), [len(part) for part in parts]) == (content, [p["bytes"] for p in found["data"]])
            assert "X-Amz-Expires=60" in found["data"][0]["url"]
            batch = await client.ended((await client.create(file)).json()["id"])
            output = (await client.http.get(f"/v1/files/{batch['output_file_id']}/urls")).json()
            lines = b"".join([(await http.get(part["url"])).content for part in output["data"]])
            assert lines == (await client.http.get(f"/v1/files/{batch['output_file_id']}/content")).content
            body = {"model": MODEL, "input": "text 1"}
            accepted = await client.http.post(EMBEDDINGS, json=body, headers={"prefer": "respond-async"})
            job = accepted.json()["id"]
            await ended(client, job)
            assert await listed(client, "/v1/files") == [batch["output_file_id"], file]
            assert await listed(client, "/v1/jobs") == [job]
            monkeypatch.setattr(page, "FEW", 1)
            for path, ids in (("/v1/files", [file, batch["output_file_id"]]), ("/v1/jobs", [job])):
                assert await listed(client, path, order="asc") == ids == (await listed(client, path))[::-1]
            (result,) = (await client.http.get(f"/v1/jobs/{job}/urls")).json()["data"]
            assert (await http.get(result["url"])).content == (await client.http.get(f"/v1/jobs/{job}/result")).content
            unsigned = result["url"].partition("?")[0]
            assert result["url"] != unsigned
