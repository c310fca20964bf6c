"""Anthropic's Message Batches at one agent, on the machinery of OpenAI's batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from penstock.jobs.batches.batch_state import BatchState
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.jobs.api import message_batches_api
from regional_agent.jobs.batches import batch_run
from tests.integration import test_batches
from tests.integration.test_batches import with_tenants
from tests.support.agents import Agent
from tests.support.chats import answers_after
from tests.support.jobs import JobClient, job_store, stored_files
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until

PATH = "/v1/messages/batches"


@asynccontextmanager
async def serving(tmp_path: Path, gpu: ScriptedEngine, **more: Any) -> AsyncIterator[tuple[Agent, JobClient]]:
    """An agent with a job store and Anthropic's API in front of one engine, and a client."""
    async with test_batches.serving(tmp_path, gpu, **more) as (agent, client):
        routes = (*preset_routes("openai"), *preset_routes("anthropic"))
        agent.config.policy = replace(agent.config.policy, routes=routes)
        yield agent, client


async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """The script of an engine: the message has the text of the request; the text `bad` is an error."""
    text = json.loads(received.body)["messages"][0]["content"] if received.body else ""
    body = json.dumps({"type": "message", "content": [{"type": "text", "text": text}]}).encode()
    status = b"200 OK"
    if text == "bad":
        status = b"400 Bad Request"
        body = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}'
    elif text == "other":
        status, body = b"422 No", b'["a list"]'
    writer.write(
        b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    )


def requests(*texts: str) -> dict[str, Any]:
    """The body of a batch: a request for each text, with the text as its identifier."""
    return {
        "requests": [
            {
                "custom_id": text[:9],
                "params": {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": text}]},
            }
            for text in texts
        ]
    }


async def created(client: JobClient, *texts: str, **headers: str) -> dict[str, Any]:
    """Create a batch."""
    response = await client.http.post(PATH, json=requests(*texts), headers=headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def ended(client: JobClient, batch: str) -> dict[str, Any]:
    """Wait for the end of a batch, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: dict[str, Any] = (await client.http.get(f"{PATH}/{batch}")).json()
            if found["processing_status"] == "ended":
                return found
            await asyncio.sleep(0.05)


def results(response: httpx.Response) -> dict[str, Any]:
    """Results by identifier."""
    assert response.status_code == 200, response.text
    lines = [json.loads(line) for line in response.content.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["result"] for line in lines}


async def test_a_batch_of_messages_has_a_result_for_each_request(tmp_path: Path) -> None:
    async def with_page(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"page" not in received.body:
            await answers(e, received, writer)
            return
        while agent.proxy.retry_budget.withdraw(agent.proxy.clock()):
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")

    async with engine(with_page) as gpu, serving(tmp_path, gpu) as (agent, client):
        batch = await created(client, "a", "two\nlines", "bad", "other", "page")
        assert (batch["type"], batch["processing_status"]) == ("message_batch", "in_progress")
        assert batch["results_url"] is None
        assert (await client.http.get(f"{PATH}/{batch['id']}/results")).status_code in (200, 404)
        done = await ended(client, batch["id"])
        assert done["request_counts"] == {"processing": 0, "succeeded": 2, "errored": 3, "canceled": 0, "expired": 0}
        found = results(await client.http.get(done["results_url"]))
        assert found["a"] == {"type": "succeeded", "message": {"type": "message", "content": [_text("a")]}}
        assert found["two\nlines"]["message"]["content"] == [_text("two\nlines")]
        assert found["bad"]["error"]["error"] == {"type": "invalid_request_error", "message": "no"}
        assert found["other"]["error"]["error"]["type"] == "invalid_request_error"
        assert found["page"]["error"]["error"]["type"] == "api_error"
        assert "response_not_json: the response with status 200 is not JSON" in str(found["page"])
        assert {each.header("anthropic-version") for each in gpu.requests} == {"2023-06-01"}
        assert (await client.http.get("/v1/batches")).json()["data"] == []
        assert (await client.http.get(f"/v1/batches/{batch['id']}")).status_code == 404
        deleted = await client.http.delete(f"{PATH}/{batch['id']}")
        assert deleted.json() == {"id": batch["id"], "type": "message_batch_deleted"}
        (end,) = stored_files(tmp_path / "store/tenants")
        assert end.name == "end.json", "requests and results are deleted"


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


async def test_bad_requests_are_named_by_their_index_in_anthropics_format(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_requests=3)
    async with engine(answers) as gpu, serving(tmp_path, gpu, job_store=store) as (_, client):
        body = requests("a", "a", "b")
        cases: list[tuple[Any, str]] = [
            ({}, "missing required field `requests`"),
            ({"requests": []}, "no request"),
            ({"requests": [{"custom_id": "a"}]}, "missing required field `params`"),
            (requests(*"abcd"), "more than 3 requests"),
            (body, "requests.1: the `custom_id` is also that of requests.0"),
            ({"requests": [body["requests"][0] | {"params": {"model": "none"}}]}, "requests.0: no model named 'none'"),
            (
                {"requests": [body["requests"][0] | {"params": {"max_tokens": 1}}]},
                "`params` has no `model`",
            ),
        ]
        for sent, message in cases:
            refused = await client.http.post(PATH, json=sent)
            assert (refused.status_code, refused.json()["type"]) == (400, "error"), refused.text
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert message in refused.json()["error"]["message"], refused.text
        assert (await client.http.get(f"{PATH}/nothing")).json()["error"]["type"] == "not_found_error"
        assert not stored_files(tmp_path / "store/tenants")


async def test_a_cancelled_batch_of_messages_names_what_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "RENEW_S", 0.05)
    monkeypatch.setattr(batch_run, "FLUSH_S", 0.05)
    release = asyncio.Event()

    async with engine(answers_after(release, answers)) as gpu, serving(tmp_path, gpu, slots=4) as (agent, client):
        texts = [f"m{number}" for number in range(100)]
        batch = (await created(client, *texts))["id"]
        await until(lambda: len(gpu.requests) > 0)
        assert (await client.http.delete(f"{PATH}/{batch}")).json()["error"]["details"] == {
            "error_code": "batch_in_progress"
        }
        cancelling = await client.http.post(f"{PATH}/{batch}/cancel")
        assert cancelling.json()["processing_status"] == "canceling"
        initiated_at = cancelling.json()["cancel_initiated_at"]
        assert initiated_at >= cancelling.json()["created_at"]
        await until(lambda: agent.jobs.worker._batches[batch]._ends_as is BatchState.CANCELLED)
        release.set()
        done = await ended(client, batch)
        counts = done["request_counts"]
        assert counts["succeeded"] == len(gpu.requests)
        assert counts["canceled"] == 100 - len(gpu.requests) > 0
        found = results(await client.http.get(done["results_url"]))
        assert sorted(found) == sorted(texts)
        assert sum(each == {"type": "canceled"} for each in found.values()) == counts["canceled"]
        assert (await client.http.post(f"{PATH}/{batch}/cancel")).json()["processing_status"] == "ended"
        assert (await client.http.get(f"{PATH}/{batch}")).json()["cancel_initiated_at"] == initiated_at


async def test_an_expired_batch_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batches_api, "LIFETIME_S", -1)
    async with engine(answers) as gpu, serving(tmp_path, gpu) as (_, client):
        done = await ended(client, (await created(client, "a", "b"))["id"])
        assert done["request_counts"]["expired"] == 2
        assert results(await client.http.get(done["results_url"])) == {key: {"type": "expired"} for key in "ab"}
        assert not gpu.requests


async def test_batches_of_messages_by_key_page_and_idempotency_key(tmp_path: Path) -> None:
    store = job_store(tmp_path / "store", max_open_batches=3)
    async with engine(answers) as gpu, serving(tmp_path, gpu, job_store=store, slots=8) as (agent, _):
        keys = with_tenants(agent, "a", "b")
        async with JobClient(agent.traffic) as client:
            by = [{"x-api-key": keys[name], "anthropic-version": "2023-06-01"} for name in ("a", "b")]
            again = {"idempotency-key": "k"}
            first = [(await created(client, "a", **by[0], **again))["id"] for _ in range(2)]
            assert first[0] == first[1]
            path = f"{PATH}/{first[0]}"
            for method in ("GET", "DELETE"):
                assert (await client.http.request(method, path, headers=by[1])).status_code == 404
            assert (await client.http.post(f"{path}/cancel", headers=by[1])).status_code == 404
            assert (await client.http.get(f"{path}/results", headers=by[1])).status_code == 404
            assert (await client.http.get(PATH, headers=by[1])).json()["data"] == []
            wrong = await client.http.post(PATH, json=requests("a" * 200_000), headers={"x-api-key": "wrong"})
            assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
        async with JobClient(agent.traffic, keys["b"]) as b:
            ids = [(await created(b, text))["id"] for text in ("x", "y")]
            await ended(b, ids[0])
            await ended(b, ids[1])
            ids.append((await created(b, "z" * 100_000, **again))["id"])
            page = (await b.http.get(f"{PATH}?limit=2")).json()
            rest = (await b.http.get(f"{PATH}?limit=2&after_id={page['last_id']}")).json()
            assert (page["has_more"], rest["has_more"]) == (True, False)
            assert sorted(each["id"] for each in page["data"] + rest["data"]) == sorted(ids)
            back = (await b.http.get(f"{PATH}?limit=2&before_id={rest['first_id']}")).json()
            assert [each["id"] for each in back["data"]] == [each["id"] for each in page["data"]]
            await ended(b, ids[2])
