"""Files and batches at one agent: uploads, execution, results, cancellation, and what other tenants see."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.fleet.counts.request_counts import RequestCounts
from penstock.jobs.batches import item_results
from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.store_paths import JobPaths
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Queueing
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.service_objective import ServiceObjective
from regional_agent.http.limits import Limits
from regional_agent.jobs.api import batches_api
from regional_agent.jobs.batches import batch_run
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers_after
from tests.support.jobs import JobClient, closed, embeds, input_file, job_store, request_line, stored_files
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until, until_async


@asynccontextmanager
async def serving(tmp_path: Path, gpu: ScriptedEngine, **more: Any) -> AsyncIterator[tuple[Agent, JobClient]]:
    """An agent with a job store in front of one engine, and a client."""
    store = more.pop("job_store", None) or job_store(tmp_path / "store")
    limits = Limits(idle_linger_s=0.0)
    async with (
        running_agent(tmp_path, [gpu.address], job_store=store, limits=limits, **more) as agent,
        JobClient(agent.traffic) as client,
    ):
        yield agent, client


async def test_a_batch_has_a_result_for_each_request(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        batch = await client.started(input_file(50), metadata={"night": "1"})
        ended = await client.ended(batch)
        assert ended["status"] == "completed"
        assert ended["request_counts"] == {"total": 50, "completed": 50, "failed": 0}
        assert ended["metadata"] == {"night": "1"}
        results = await client.lines(ended["output_file_id"])
        assert {each["custom_id"]: each["response"]["body"]["text"] for each in results} == {
            f"r{number}": f"text {number}" for number in range(50)
        }
        assert len(results) == len(gpu.requests) == 50
        assert ended["error_file_id"] is None


async def test_a_large_file_is_kept_in_parts_of_whole_lines_and_comes_back_unchanged(tmp_path: Path) -> None:
    content = b"\r\n".join(request_line(f"r{n}", "x" * 1000).rstrip() for n in range(9000)) + b"\n\n"
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        uploaded = (await client.upload(content)).json()
        assert (uploaded["object"], uploaded["bytes"], uploaded["purpose"]) == ("file", len(content), "batch")
        parts = stored_files(tmp_path / "store", "*file-data/*")
        assert [path.name for path in parts] == ["000000", "000001", "000002"]
        assert all(path.read_bytes().endswith(b"\n") for path in parts)
        read = await client.http.get(f"/v1/files/{uploaded['id']}/content")
        assert read.content == content
        shown = await client.http.get(f"/v1/files/{uploaded['id']}")
        assert shown.json() == uploaded
        assert (await client.http.delete(f"/v1/files/{uploaded['id']}")).json()["deleted"] is True
        assert (await client.http.get(f"/v1/files/{uploaded['id']}")).status_code == 404
        assert not stored_files(tmp_path / "store", "*file-data/*")


BAD = [
    (b"{not json\n", "invalid_json_line", "line 1 is not valid JSON"),
    (b'{"custom_id": "a"}\n', "invalid_request", "line 1: Object missing required field `url`"),
    (
        request_line("a") + b"\n" + request_line("b") + request_line("a"),
        "duplicate_custom_id",
        "line 4: the `custom_id`",
    ),
    (request_line("a", url="/v1/nothing"), "invalid_url", "line 1: no requests with a JSON body"),
    (request_line("a", url="/v1/embeddings\r\nx: y"), "invalid_url", "line 1: no requests"),
    (request_line("a", url="/v1/audio/transcriptions"), "invalid_url", "line 1: no requests with a JSON body"),
    (request_line("a") + request_line("b", model="nothing"), "model_not_found", "line 2: no model named 'nothing'"),
    (request_line("a" * 513), "invalid_custom_id", "line 1: `custom_id` has not 1 to 512"),
    (b'{"custom_id":"a","url":"/v1/embeddings","body":[]}', "invalid_body", "line 1: `body` is not a JSON object"),
    (b'{"custom_id":"a","url":"/v1/embeddings","body":{}}', "missing_model", "line 1: `body` has no `model`"),
    (b"\n\n", "empty_file", "the file has no request"),
    (b"\n \r" * 51 + request_line("a"), "too_many_empty_lines", "the file has more than 50 empty lines"),
    (input_file(51), "too_many_requests", "the file has more than 50 requests"),
    (b"x" * 20_001, "file_too_large", "the file is larger than 20000 bytes"),
]


async def test_a_file_with_a_bad_line_is_refused_with_the_number_of_the_line(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_requests=50, max_file_bytes=20_000)
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        for content, code, message in BAD:
            refused = await client.upload(content)
            assert refused.status_code == 400, content
            error = refused.json()["error"]
            assert error["code"] == code, error
            assert message in error["message"]
        several = await client.upload(b"{\n" * 30)
        assert several.json()["error"]["message"].count("is not valid JSON") == 10
        assert "and 20 more" in several.json()["error"]["message"]
        assert (await client.upload(input_file(1), purpose="fine-tune")).json()["error"]["code"] == "invalid_purpose"
        missing = await client.http.post("/v1/files", files={"purpose": (None, "batch")})
        assert "no field `file`" in missing.json()["error"]["message"]
        assert (await client.http.post("/v1/files", json={})).json()["error"]["code"] == "bad_request"

        def nothing_is_kept() -> bool:
            return stored_files(tmp_path / "store") == [tmp_path / "store/format"]

        await until(nothing_is_kept)


async def test_a_batch_of_another_url_fails_with_the_number_of_the_line(tmp_path: Path) -> None:
    content = request_line("a") + request_line("b", url="/v1/completions")
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        failed = await client.ended(await client.started(content))
        assert failed["status"] == "failed"
        (error,) = failed["errors"]["data"]
        assert (error["line"], error["code"], error["param"]) == (2, "mismatched_endpoint", "url")
        assert not gpu.requests


async def fails_for_some(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    if json.loads(received.body)["input"] == "bad":
        writer.write(b'HTTP/1.1 400 Bad Request\r\nContent-Length: 17\r\n\r\n{"error":{"a":1}}')
    elif json.loads(received.body)["input"] == "no json":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 4\r\n\r\nabcd")
    elif json.loads(received.body)["input"] == "text":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbusy")
    else:
        await embeds(e, received, writer)


async def test_errors_of_requests_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    content = request_line("a", "good") + request_line("b", "bad") + request_line("c", "no json")
    content += request_line("d", "text")
    async with engine(fails_for_some) as gpu, serving(tmp_path, gpu) as (_, client):
        ended = await client.ended(await client.started(content))
        assert ended["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        errors = {each["custom_id"]: each for each in await client.lines(ended["error_file_id"])}
        assert errors["b"]["response"]["status_code"] == 400
        assert errors["b"]["response"]["body"] == {"error": {"a": 1}}
        assert errors["d"]["response"]["status_code"] == 502, "what is no answer of the API completes nothing"
        assert (errors["c"]["response"], errors["c"]["error"]["code"]) == (None, "response_not_json")
        assert [each["custom_id"] for each in await client.lines(ended["output_file_id"])] == ["a"]
        assert errors.keys() == set("bcd")


async def test_a_batch_shows_its_model_and_what_its_requests_have_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_results, "RETRY_BASE_S", 0.01)

    async def uses(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        text = received.body.partition(b"text ")[2][:1]
        status, body = 200, {"data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
        if text == b"1":
            status, body = 400, {"error": {"message": "no"}}
        elif text == b"2" and len([each for each in e.requests if each.body == received.body]) == 1:
            status, body = 500, {"error": {"message": "the first run"}}
        sent = json.dumps(body).encode() if received.body else b""
        writer.write(
            b"HTTP/1.1 %d Status\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(sent), sent)
        )

    async with engine(uses) as gpu, serving(tmp_path, gpu, ledger=ledger_in(tmp_path)) as (_, client):
        batch = await client.started(input_file(4))
        assert (await client.batch(batch)).keys() >= {"model", "usage"}
        ended = await client.ended(batch)
        assert ended["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
        assert ended["model"] == MODEL
        assert ended["usage"] == {
            "input_tokens": 21,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 21,
        }
    records = [record for record in records_in(tmp_path) if record.tenant == "open"]
    assert sum(record.input_tokens for record in records if not record.is_overhead) == 21


async def test_a_batch_shows_the_reasoning_tokens_of_its_chats(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 20}}

    async def reasons(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        sent = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage}).encode() if received.body else b""
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(sent), sent)
        )

    path = "/v1/chat/completions"
    lines = [
        {"custom_id": str(n), "method": "POST", "url": path, "body": {"model": MODEL, "messages": []}} for n in range(2)
    ]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    async with engine(reasons) as gpu, serving(tmp_path, gpu) as (_, client):
        shown = (await client.ended(await client.started(content, endpoint=path)))["usage"]
        assert (shown["output_tokens"], shown["output_tokens_details"]) == (60, {"reasoning_tokens": 40})


async def test_a_cancelled_batch_has_the_results_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.05)
    monkeypatch.setattr(batch_run, "RENEW_S", 0.05)
    release = asyncio.Event()

    async def first_ones(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if json.loads(received.body)["input"] != "text 0":
            await release.wait()
        await embeds(e, received, writer)

    async with engine(first_ones) as gpu, serving(tmp_path, gpu, slots=4) as (agent, client):
        batch = await client.started(input_file(2000))

        async def has_one() -> bool:
            return (await client.batch(batch))["request_counts"]["completed"] == 1

        await until_async(has_one)
        assert (await client.batch(batch))["status"] == "in_progress"
        for _ in range(2):
            cancelling = await client.http.post(f"/v1/batches/{batch}/cancel")
            assert cancelling.json()["status"] == "cancelling"
            assert cancelling.json()["cancelling_at"] >= cancelling.json()["in_progress_at"]
        await until(lambda: agent.jobs.worker._batches[batch]._ends_as is BatchState.CANCELLED)
        release.set()
        ended = await client.ended(batch)
        assert (ended["status"], ended["cancelling_at"]) == ("cancelled", cancelling.json()["cancelling_at"])
        output, errors = await client.lines(ended["output_file_id"]), await client.lines(ended["error_file_id"])
        assert len(output) == len(gpu.requests) < 100
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert sorted(each["custom_id"] for each in output + errors) == sorted(f"r{n}" for n in range(2000))
        assert (await client.http.post(f"/v1/batches/{batch}/cancel")).json()["status"] == "cancelled"
        # As by a client whose request was read before the end, and executed after it.
        opened = agent.jobs.stores.opened()
        assert opened is not None
        await closed(tmp_path / "store")
        await opened.batches.cancel(JobPaths("open", batch), time.time())
        assert not stored_files(tmp_path / "store", "cancelled/*")


async def test_a_batch_whose_window_has_passed_has_an_error_for_each_open_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_api, "deadline_of", lambda window, created_at: created_at - 1)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        ended = await client.ended(await client.started(input_file(3)))
        assert (ended["status"], ended["output_file_id"]) == ("expired", None)
        errors = await client.lines(ended["error_file_id"])
        assert {each["custom_id"]: each["error"]["code"] for each in errors} == dict.fromkeys(
            ("r0", "r1", "r2"), "batch_expired"
        )
        assert not gpu.requests


async def test_a_batch_fails_when_its_input_is_deleted_before_it_starts(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(input_file(1))).json()["id"]
        created = client.create(file)
        deleted = client.http.delete(f"/v1/files/{file}")
        batch, gone = await asyncio.gather(created, deleted)
        assert gone.status_code == 200
        if batch.status_code == 200:  # else the file was deleted first
            ended = await client.ended(batch.json()["id"])
            assert ended["status"] in ("failed", "completed")
        assert (await client.create(file)).json()["error"]["code"] == "no_such_file"


def with_tenants(agent: Agent, *names: str) -> dict[str, str]:
    """Add tenants with an API key each to the policy; returns the keys."""
    keys = {name: f"key-of-{name}" for name in names}
    tenants = {
        name: Tenant(name, "open", key_digests=(sha256(key.encode()).hexdigest(),)) for name, key in keys.items()
    }
    policy = agent.config.policy
    agent.config.policy = replace(policy, tenants=policy.tenants | tenants)
    return keys


async def test_files_and_batches_of_another_tenant_do_not_exist(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        async with JobClient(agent.traffic, keys["a"]) as a, JobClient(agent.traffic, keys["b"]) as b:
            file = (await a.upload(input_file(1))).json()["id"]
            batch = (await a.create(file)).json()["id"]
            output = (await a.ended(batch))["output_file_id"]
            for of_a in (file, output):
                assert (await a.http.get(f"/v1/files/{of_a}")).status_code == 200
                for path in (f"files/{of_a}", f"files/{of_a}/content", f"files/{of_a}/urls", f"batches/{of_a}"):
                    assert (await b.http.get(f"/v1/{path}")).status_code == 404
                assert (await b.http.delete(f"/v1/files/{of_a}")).status_code == 404
            assert (await b.http.get(f"/v1/batches/{batch}")).status_code == 404
            assert (await b.http.post(f"/v1/batches/{batch}/cancel")).status_code == 404
            assert (await b.create(file)).status_code == 404
            for path in ("/v1/files/..%2f..%2fa%2ffiles%2f" + file, "/v1/files/%2e%2e"):
                assert (await b.http.get(path)).status_code == 404
            for kind in ("files", "batches"):
                assert (await b.http.get(f"/v1/{kind}")).json()["data"] == []
                assert len((await a.http.get(f"/v1/{kind}")).json()["data"]) == (2 if kind == "files" else 1)
        async with JobClient(agent.traffic, "no-key") as stranger:
            assert (await stranger.http.get("/v1/files")).status_code == 401
            assert (await stranger.upload(b"x" * 100_000)).status_code == 401


async def test_a_list_has_pages_and_newest_first(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        ids = [(await client.upload(input_file(1))).json()["id"] for _ in range(3)]
        page = (await client.http.get("/v1/files?limit=2")).json()
        assert page["has_more"] is True
        rest = (await client.http.get(f"/v1/files?limit=2&after={page['last_id']}")).json()
        assert rest["has_more"] is False
        assert sorted(each["id"] for each in page["data"] + rest["data"]) == sorted(ids)
        oldest = (await client.http.get(f"/v1/files?order=asc&limit=1&after={min(ids)}&purpose=batch")).json()
        assert ([each["id"] for each in oldest["data"]], oldest["has_more"]) == (sorted(ids)[1:2], True)
        assert (await client.http.get("/v1/files?limit=1&purpose=batch_output")).json()["data"] == []
        for query in ("limit=x", "order=up"):
            refused = (await client.http.get(f"/v1/files?{query}")).json()["error"]
            assert refused["code"] == f"invalid_{refused['param']}"


async def test_the_same_idempotency_key_creates_one_batch(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (_, client):
        file = (await client.upload(input_file(1))).json()["id"]
        key = {"idempotency-key": "night-1"}
        first, second = [(await client.create(file, headers=key)).json()["id"] for _ in range(2)]
        assert first == second
        await client.ended(first)
        assert (await client.create(file, headers=key)).json()["status"] == "completed"
        reused = await client.create(file, headers=key, window="1h")
        assert reused.json()["error"]["code"] == "idempotency_key_reused"
        assert (await client.create(file, window="25x")).json()["error"]["code"] == "invalid_completion_window"
        assert len(gpu.requests) == 1


async def test_a_governed_tenant_has_no_files_in_a_store_that_a_forbidden_region_reads(tmp_path: Path) -> None:
    for successor, status in (("us-east", 451), ("eu-es", 200)):
        store = job_store(tmp_path / "store", successors=(successor,))
        async with (
            engine(embeds) as gpu,
            serving(tmp_path, gpu, job_store=store, anonymous="personal") as (agent, client),
        ):
            agent.location = Location("DE")
            uploaded = await client.upload(input_file(1))
            assert uploaded.status_code == status, uploaded.text
            listed = await client.http.get("/v1/files")
            assert listed.status_code == status


async def test_without_a_job_store_the_apis_are_not_offered(tmp_path: Path) -> None:
    other = job_store(tmp_path / "store", "us-east")
    async with engine(embeds) as gpu, serving(tmp_path, gpu, job_store=other) as (_, client):
        paths = (
            "/v1/files",
            "/v1/batches",
            "/v1/files/file-1/content",
            "/v1/jobs",
            "/v1/jobs/job_1/result",
            "/v1/webhooks/secret",
        )
        for path in paths:
            refused = await client.http.get(path)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], "JobStore" in error["message"]) == (501, "not_offered", True)
        assert (await client.upload(input_file(1000))).status_code == 501


async def test_a_store_that_cannot_be_reached_is_an_error_for_a_retry(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        refused = await client.upload(input_file(1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert str(tmp_path) not in refused.text
        assert "not a folder" in agent.jobs.status()["store_problem"].lower() or agent.jobs.status()["store_problem"]


async def test_a_batch_leaves_slots_to_requests_with_a_priority_and_is_in_ledger_and_metrics(tmp_path: Path) -> None:
    release, busiest = asyncio.Event(), 0

    async def waits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal busiest
        if b"text " in received.body:
            busiest = max(busiest, agent.held())
            await release.wait()
        await embeds(e, received, writer)

    async with (
        engine(waits) as gpu,
        serving(tmp_path, gpu, slots=4, queue=0, ledger=ledger_in(tmp_path)) as (agent, client),
    ):
        with_tenants(agent, "a")
        async with JobClient(agent.traffic, "key-of-a") as a:
            batch = await a.started(input_file(10))
            await until(lambda: agent.held() == 3 and agent.waiting() > 0)
            now = await client.http.post("/v1/embeddings", json={"model": MODEL, "input": "at once"})
            assert now.json()["text"] == "at once"
            assert agent.jobs.status()["batches"][batch]["total"] == 10
            release.set()
            await a.ended(batch)
        assert busiest == 3
        counted = agent.metrics.registry.get_sample_value
        assert counted("penstock_agent_batch_requests_total", {"event": "completed"}) == 10
        await until(lambda: counted("penstock_agent_batches_ended_total", {"state": "completed"}) == 1)
        assert counted("penstock_agent_queue_priority_requests_total", {"priority": "batch"}) > 0
    of_a = [record for record in records_in(tmp_path) if record.tenant == "a"]
    assert [record.outcome for record in of_a] == ["ok"] * 10
    assert len({record.request_id for record in of_a}) == 10
    (now_price,) = {record.price for record in records_in(tmp_path) if record.tenant == "open"}
    assert {round(record.price / now_price, 2) for record in of_a} == {0.5}


async def test_batch_work_without_an_idle_slot_is_no_failure_of_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_results, "RETRY_BASE_S", 0.02)
    release = asyncio.Event()

    async with engine(answers_after(release, embeds)) as gpu, serving(tmp_path, gpu, slots=1) as (agent, client):
        policy = agent.config.policy
        objective = ServiceObjective(None, 0.9, PATIENCE_S)
        queueing = Queueing(max_wait_s=0.05)
        model = replace(policy.models[MODEL], queueing=queueing, service_objective=objective)
        agent.config.policy = policy = replace(policy, models=policy.models | {MODEL: model})
        agent.tally.use_objectives(policy.models)
        counted = agent.metrics.registry.get_sample_value
        now = asyncio.create_task(client.http.post("/v1/embeddings", json={"model": MODEL, "input": "at once"}))
        await until(lambda: agent.held() == 1)
        batch = await client.started(input_file(2))
        await until(lambda: counted("penstock_agent_batch_requests_total", {"event": "waited"}) >= 4)
        release.set()
        assert (await client.ended(batch))["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert (await now).status_code == 200
        await until(lambda: agent.counted().get("ok") == 3)
        assert set(agent.counted()) == {"ok", "deferred"}
        assert agent.tally.report() == RequestCounts(ended=3)
        objective_report = agent.tally.report_objectives(asyncio.get_running_loop().time())[0]
        assert (objective_report.answers, objective_report.within) == (1, 1)


async def test_a_batch_waits_for_the_budget_of_its_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_results, "RETRY_BASE_S", 0.02)
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, _):
        with_tenants(agent, "a")
        policy = agent.config.policy
        limited = replace(policy.tenants["a"], quota=Quota(requests_per_s=20.0, burst_requests=2, concurrent=None))
        agent.config.policy = replace(policy, tenants=policy.tenants | {"a": limited})
        async with JobClient(agent.traffic, "key-of-a") as a:
            ended = await a.ended(await a.started(input_file(8)))
        assert ended["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        waited = agent.metrics.registry.get_sample_value("penstock_agent_batch_requests_total", {"event": "waited"})
        assert waited is not None
        assert waited > 0


async def test_a_revoked_key_ends_the_requests_of_its_batches(tmp_path: Path) -> None:
    release = asyncio.Event()

    async with (
        engine(answers_after(release, embeds)) as gpu,
        serving(tmp_path, gpu, job_store=job_store(tmp_path / "s", concurrency=1)) as (
            agent,
            _,
        ),
    ):
        keys = with_tenants(agent, "a")
        tenants = agent.config.policy.tenants
        async with JobClient(agent.traffic, keys["a"]) as a:
            batch = await a.started(input_file(3))
            await until(lambda: len(gpu.requests) == 1)
            other = sha256(b"another-key").hexdigest()
            changed = replace(tenants["a"], key_digests=(other,))
            agent.config.policy = replace(agent.config.policy, tenants=tenants | {"a": changed})
        # The engine answers nothing before the batch has ended: the open request ends by its key, too.
        async with JobClient(agent.traffic, "another-key") as a:
            ended = await a.ended(batch)
            errors = await a.lines(ended["error_file_id"])
            release.set()
        assert ended["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
        assert {each["response"]["body"]["error"]["code"] for each in errors} == {"invalid_api_key"}


async def test_large_results_of_many_requests_arrive_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.05)
    body = b'"%b"' % (b"x" * 400_000)
    permits = []

    async def large(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)

    def grant() -> None:
        given()
        permits.append(agent.jobs.memory._permits)

    store = job_store(tmp_path / "store", max_use_percent=100)
    async with engine(large) as gpu, serving(tmp_path, gpu, job_store=store, slots=8) as (agent, client):
        agent.jobs.memory._max_bytes = 800_000
        agent.jobs.memory._max_response_bytes = 400_002
        given, agent.jobs.memory._grant = agent.jobs.memory._grant, grant  # type: ignore[method-assign]
        ended = await client.ended(await client.started(input_file(12)))
        assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        results = await client.lines(ended["output_file_id"])
        assert {len(each["response"]["body"]) for each in results} == {400_000}
        assert max(permits) == 1
        assert (agent.jobs.memory.held_bytes, agent.jobs.memory._permits) == (0, 0)


async def test_slow_uploads_of_one_tenant_do_not_block_those_of_another(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        slow = []
        for number in range(4):
            raw = await RawClient.connect(agent.traffic)
            raw.send(
                f"POST /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {keys['a']}\r\n"
                "Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 900000\r\n\r\n".encode()
                + b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
                + b" " * 300_000
            )
            slow.append(raw)
            await until(lambda number=number: len(agent.jobs.routes._uploads) == number + 1)  # type: ignore[misc]
        async with JobClient(agent.traffic, keys["a"]) as a, JobClient(agent.traffic, keys["b"]) as b:
            refused = await a.upload(input_file(1))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "saturated")
            assert (await b.upload(input_file(1))).status_code == 200
            slow[0].close()
            await until(lambda: not all(upload.is_active for upload in agent.jobs.routes._uploads))
            assert (await a.upload(input_file(1))).status_code == 200
        for raw in slow:
            raw.close()
