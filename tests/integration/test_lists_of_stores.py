"""Lists of files and jobs at an agent that may finish the jobs of another region, whose store is another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.jobs.job_records import FileRecord
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.jobs.api import merged_lists
from regional_agent.jobs.storage.file_store import FileStore
from regional_agent.jobs.storage.page import Page
from tests.integration.test_async_requests import submit
from tests.integration.test_batches import with_tenants
from tests.integration.test_message_batches import requests
from tests.support.agents import Agent, running_agent
from tests.support.jobs import JobClient, embeds, input_file, job_store, stored_files
from tests.support.sockets import engine
from tests.support.wait import PATIENCE_S

LISTS = ("/v1/files", "/v1/batches", "/v1/jobs", "/v1/messages/batches")


@asynccontextmanager
async def two_regions(tmp_path: Path, **fields: Any) -> AsyncIterator[tuple[Agent, Agent]]:
    """Agents of eu-de and of its successor eu-es, each with a store of its own."""
    store = job_store(tmp_path / "store", successors=("eu-es",), **fields)
    own = replace(job_store(tmp_path / "own", "eu-es"), name="own")
    async with (
        engine(embeds) as gpu,
        running_agent(tmp_path / "1", [gpu.address], job_store=store) as one,
        running_agent(tmp_path / "2", [gpu.address], region="eu-es", job_store=own) as two,
    ):
        routes = (*preset_routes("openai"), *preset_routes("anthropic"))
        one.config.policy = replace(one.config.policy, routes=routes)
        two.config.policy = replace(two.config.policy, routes=routes, job_stores=(own, store))
        yield one, two


async def pages(client: JobClient, path: str, **query: str) -> list[str]:
    """Read all pages of a list, of two items each; returns the identifiers."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        response = await client.http.get(path, params={"limit": "2", **query, **cursor})
        assert response.status_code == 200, response.text
        page = response.json()
        ids = [each["id"] for each in page["data"]]
        assert "missing_stores" not in page
        assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        found += ids
        if not page["has_more"]:
            return found
        cursor = {"after_id" if "messages" in path else "after": ids[-1]}


async def create(client: JobClient, path: str) -> str:
    """Create an item of a list."""
    if path == "/v1/files":
        created = await client.upload(input_file(1))
    elif path == "/v1/batches":
        created = await client.create((await client.upload(input_file(1))).json()["id"])
    elif path == "/v1/jobs":
        created = await submit(client)
    else:
        created = await client.http.post(path, json=requests("text"))
    assert created.status_code in (200, 202), created.text
    return str(created.json()["id"])


@pytest.mark.parametrize("path", LISTS)
async def test_lists_have_what_each_store_has_in_one_order(tmp_path: Path, path: str) -> None:
    async with (
        two_regions(tmp_path) as (one, two),
        JobClient(one.traffic) as first,
        JobClient(two.traffic) as second,
    ):
        made = [await create(client, path) for client in (first, second, first, first, second, second, first)]
        found = await pages(second, path)
        if path == "/v1/files":
            assert (await pages(second, path, order="asc"))[: len(made)] == sorted(made)
            assert await pages(second, path, purpose="batch") == found
            assert await pages(second, path, purpose="batch_output") == []
        assert found == sorted(made, reverse=True)
        assert await pages(first, path) == sorted((made[0], made[2], made[3], made[6]), reverse=True)
        if path == "/v1/messages/batches":
            page = (await second.http.get(path, params={"limit": "2", "before_id": sorted(made)[2]})).json()
            assert ([each["id"] for each in page["data"]], page["has_more"]) == (sorted(made)[4:2:-1], True)


async def test_a_list_names_the_store_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_lists, "OTHER_TIMEOUT_S", PATIENCE_S)
    async with (
        two_regions(tmp_path) as (one, two),
        JobClient(one.traffic) as first,
        JobClient(two.traffic) as second,
    ):
        made = [await create(client, "/v1/files") for client in (first, second, second)]
        # At once: agents still remove and create in it.
        (tmp_path / "store").rename(tmp_path / "lost")
        (tmp_path / "store").write_text("no folder")
        page = (await second.http.get("/v1/files")).json()
        assert [each["id"] for each in page["data"]] == [made[2], made[1]]
        (missing,) = page["missing_stores"]
        assert (missing["name"], missing["regions"]) == ("jobs", ["eu-de"])
        assert "not in this list" in missing["message"]
        # The store of the region itself is needed.
        assert (await first.http.get("/v1/files")).status_code == 503


async def test_a_store_that_falls_silent_amid_a_list_delays_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_lists, "OTHER_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(merged_lists, "SHOWN_AT_ONCE", 3)
    async with (
        two_regions(tmp_path) as (one, two),
        JobClient(one.traffic) as first,
        JobClient(two.traffic) as second,
    ):
        for _ in range(4):
            await create(first, "/v1/files")
        made = await create(second, "/v1/files")
        reads, find, names = 0, FileStore.find, merged_lists.MergedList._names

        async def then_in_haste(merged: merged_lists.MergedList, page: Page) -> Any:
            found = await names(merged, page)
            monkeypatch.setattr(merged_lists, "OTHER_TIMEOUT_S", 0.1)
            return found

        async def silent(files: FileStore, tenant: str, file: str) -> FileRecord | None:
            nonlocal reads
            if files.storage.url.endswith("/own"):
                return await find(files, tenant, file)
            reads += 1
            return await asyncio.Future()

        monkeypatch.setattr(FileStore, "find", silent)
        monkeypatch.setattr(merged_lists.MergedList, "_names", then_in_haste)
        page = (await second.http.get("/v1/files")).json()
        assert [each["id"] for each in page["data"]] == [made]
        assert ([each["name"] for each in page["missing_stores"]], reads) == (["jobs"], 2)


async def test_a_record_that_cannot_be_read_hides_no_other_one(tmp_path: Path) -> None:
    async with (
        two_regions(tmp_path) as (one, two),
        JobClient(one.traffic) as first,
        JobClient(two.traffic) as second,
    ):
        made = [await create(client, "/v1/files") for client in (first, first, second, second)]
        for folder, file in (("store", made[1]), ("own", made[2])):
            (record,) = stored_files(tmp_path / folder, f"*/files/{file}.json")
            record.write_text("{")
        page = (await second.http.get("/v1/files")).json()
        assert [each["id"] for each in page["data"]] == [made[3], made[0]]
        assert "missing_stores" not in page


async def test_a_job_is_found_although_another_store_cannot_be_read(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, two), JobClient(one.traffic) as first, JobClient(two.traffic) as second:
        file = await create(first, "/v1/files")
        lost = replace(job_store(tmp_path / "lost", "us-east", successors=("eu-es",)), name="a-lost")
        (tmp_path / "lost").write_text("no folder")
        policy = two.config.policy
        two.config.policy = replace(policy, job_stores=(lost, *(policy.job_stores or ())))
        assert (await second.http.get(f"/v1/files/{file}")).status_code == 200
        # It could have this one.
        assert (await second.http.get(f"/v1/files/{file[:-1]}{'0' if file[-1] != '0' else '1'}")).status_code == 503


async def test_lists_have_nothing_of_other_tenants_or_of_forbidden_stores(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, two):
        keys = with_tenants(one, "a", "b")
        with_tenants(two, "a", "b")
        async with (
            JobClient(one.traffic, keys["a"]) as first,
            JobClient(two.traffic, keys["a"]) as second,
            JobClient(two.traffic, keys["b"]) as other,
        ):
            file = await create(first, "/v1/files")
            assert await pages(second, "/v1/files") == [file]
            assert await pages(other, "/v1/files") == []
            policy = two.config.policy
            governed = replace(policy.tenants["a"], data_class="personal")
            own, store = policy.job_stores
            for wide, is_listed in ((store, True), (replace(store, successors=("eu-es", "us-east")), False)):
                tenants = policy.tenants | {"a": governed}
                two.config.policy = replace(policy, tenants=tenants, job_stores=(own, wide))
                assert bool(await pages(second, "/v1/files")) is is_listed
