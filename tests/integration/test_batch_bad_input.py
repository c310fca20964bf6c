"""Batches whose file, model or results become bad while they run, and compressed uploads: a clear error for each."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.jobs.batches import item_results
from regional_agent.jobs import agent_jobs
from regional_agent.jobs.batches import batch_run
from tests.integration.test_batches import serving
from tests.support.agents import running_agent
from tests.support.chats import answers_after
from tests.support.codings import gzipped
from tests.support.jobs import JobClient, embeds, input_file, job_store, request_line
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until


async def test_a_file_that_is_deleted_while_its_batch_runs_fails_the_batch_and_keeps_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.05)
    release = asyncio.Event()
    # Three parts of 4 MiB; those after the first are read once all of its requests have started.
    content = b"".join(request_line(f"r{n}", "x" * 1_500_000) for n in range(6))

    async def waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b'Content-Length: 27\r\n\r\n{"choices": [], "data": []}'
        )

    store = job_store(tmp_path / "store", concurrency=1)
    async with engine(waits) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        file = (await client.upload(content)).json()["id"]
        batch = (await client.create(file)).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        assert (await client.http.delete(f"/v1/files/{file}")).status_code == 200
        release.set()
        ended = await client.ended(batch)
        (error,) = ended["errors"]["data"]
        assert (ended["status"], error["code"]) == ("failed", "input_file_deleted")
        assert 0 < ended["request_counts"]["completed"] == len(await client.lines(ended["output_file_id"])) < 6
        assert ended["request_counts"]["failed"] == 0


async def test_a_file_of_another_system_is_read_by_two_batches_at_once(tmp_path: Path) -> None:
    names = ["r", "\u00e9", "e\u0301", "\U0001f600", "\u2028", "a\tb", "x" * 512]
    lines = [request_line(name).rstrip() for name in names]
    content = b"\xef\xbb\xbf" + b"\r\n\r\n \r\n".join(lines)
    release = asyncio.Event()
    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(content)).json()["id"]
        batches = [(await client.create(file)).json()["id"] for _ in range(2)]
        await until(lambda: len(gpu.requests) >= 2)
        release.set()
        for batch in batches:
            ended = await client.ended(batch)
            assert ended["request_counts"] == {"total": len(names), "completed": len(names), "failed": 0}
            results = await client.lines(ended["output_file_id"])
            assert sorted(each["custom_id"] for each in results) == sorted(names)
        assert (await client.http.get(f"/v1/files/{file}/content")).content == content
        surrogate = request_line("x").replace(b'"x"', b'"\\ud800"')
        assert (await client.upload(surrogate)).json()["error"]["code"] in ("invalid_json_line", "invalid_custom_id")


async def test_a_model_that_vanishes_while_a_batch_runs_is_an_error_of_each_later_request(tmp_path: Path) -> None:
    release = asyncio.Event()

    store = job_store(tmp_path / "store", concurrency=1)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=store) as (agent, client),
    ):
        batch = await client.started(input_file(3))
        await until(lambda: len(gpu.requests) == 1)
        models = {name: model for name, model in agent.config.policy.models.items() if name != MODEL}
        agent.config.policy = replace(agent.config.policy, models=models)
        release.set()
        ended = await client.ended(batch)
        assert ended["status"] == "completed"
        assert ended["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        errors = await client.lines(ended["error_file_id"])
        assert {each["custom_id"] for each in errors} == {"r1", "r2"}
        assert {each["response"]["body"]["error"]["code"] for each in errors} == {"model_not_found"}


async def test_what_has_not_run_waits_while_the_policy_has_no_job_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_results, "RETRY_CAP_S", 0.05)
    release = asyncio.Event()
    store = job_store(tmp_path / "store", concurrency=1)
    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=store) as (agent, client),
    ):
        waited = partial(
            agent.metrics.registry.get_sample_value, "penstock_agent_batch_requests_total", {"event": "waited"}
        )
        batch = await client.started(input_file(3))
        await until(lambda: len(gpu.requests) == 1)
        policy = agent.config.policy
        agent.config.policy = replace(policy, job_stores=())
        release.set()
        await until(lambda: waited() >= 2.0)
        assert (await client.http.get(f"/v1/batches/{batch}")).json()["error"]["code"] == "not_offered"
        agent.config.policy = policy
        ended = await client.ended(batch)
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert len(gpu.requests) == 3


async def test_a_result_above_the_limit_is_an_error_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_jobs, "MAX_RESULT_BYTES", 1000)
    content = request_line("small") + request_line("large", "x" * 2000) + request_line("other")
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        ended = await client.ended(await client.started(content))
        assert ended["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        (error,) = await client.lines(ended["error_file_id"])
        assert (error["custom_id"], error["error"]["code"]) == ("large", "response_incomplete")


async def test_a_response_that_is_not_json_is_an_error_of_its_request(tmp_path: Path) -> None:
    async def html(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"page" not in received.body:
            await embeds(e, received, writer)
            return
        # Without a retry, the page is forwarded as received.
        while agent.proxy.retry_budget.withdraw(agent.proxy.clock()):
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")

    content = request_line("a") + request_line("b", "page") + request_line("c")
    async with engine(html) as gpu, serving(tmp_path, gpu) as (agent, client):
        ended = await client.ended(await client.started(content))
        assert ended["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert {each["custom_id"] for each in await client.lines(ended["output_file_id"])} == {"a", "c"}
        (error,) = await client.lines(ended["error_file_id"])
        assert (error["custom_id"], error["response"], error["error"]["code"]) == ("b", None, "response_not_json")


async def test_a_compressed_upload_is_refused_and_never_expanded(tmp_path: Path) -> None:
    bomb = gzipped(b"\0" * 50_000_000)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        as_file = await client.upload(bomb)
        assert as_file.status_code == 400
        assert as_file.json()["error"]["code"] == "invalid_json_line"
        form = {"content-type": "multipart/form-data; boundary=B", "content-encoding": "gzip"}
        encoded = await client.http.post("/v1/files", content=bomb, headers=form)
        assert (encoded.status_code, encoded.json()["error"]["code"]) == (400, "bad_request"), encoded.text
        assert (await client.upload(input_file(1))).status_code == 200


@pytest.mark.parametrize(
    ("text", "siblings", "status", "code"),
    [("breaks", 0, 503, "none_ready"), ("breaks", 1, 429, "saturated"), ("fails", 0, 503, "none_ready")],
)
async def test_a_request_that_its_engine_fails_has_three_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, siblings: int, status: int, code: str
) -> None:
    """A prompt that crashes engines would otherwise crash them until the window of its batch ends."""
    monkeypatch.setattr(item_results, "RETRY_BASE_S", 0.01)

    async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"breaks" in received.body:
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\nCUDA error")

    async def is_full(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")

    store = job_store(tmp_path / "store")
    async with (
        engine(breaks) as gpu,
        engine(is_full) as full,
        running_agent(tmp_path, [gpu.address, full.address][: 1 + siblings], job_store=store) as agent,
        JobClient(agent.traffic) as client,
    ):
        ended = await client.ended(await client.started(request_line("a", text)))
        (error,) = await client.lines(ended["error_file_id"])
        response = error["response"]
        assert (response["status_code"], response["body"]["error"]["code"]) == (status, code)
        assert len(gpu.requests) == item_results.MAX_RUNS
