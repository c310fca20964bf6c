"""Requests of other APIs than OpenAI's pass through an agent to a fake engine, and errors have their formats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec.structs import replace

from lab.witness import Witness
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import SSE_HEAD, answers, ask, chunk
from tests.support.engines import Connect, EngineProcess, running_engines
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until

KEY = "a-client-key"
ROUTES = tuple(route for name in PRESETS if name != "sglang" for route in preset_routes(name))
MESSAGE = {"model": MODEL, "max_tokens": 5, "ignore_eos": True, "messages": [{"role": "user", "content": "hello"}]}
OLLAMA = {"model": MODEL, "options": {"num_predict": 5}, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with running_engines(tmp_path_factory.mktemp("engines"), {"name": "whole"}, {"name": "dies"}) as process:
        yield process


@asynccontextmanager
async def serving(
    directory: Path, target: Address | str, *, key: str = "", cost: Cost | None = None, log: AccessLog | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Run an agent with all presets in front of one engine, and yield a client.

    Args:
        key: only this key is accepted; empty for none.
        cost: of the model.
        log: the agent's access log.
    """
    if isinstance(target, str):
        url = urlsplit(target)
        target = Address(url.hostname or "", url.port or 0)
    async with running_agent(directory, [target], access_log=log) as agent:
        policy = replace(agent.config.policy, routes=ROUTES)
        if cost is not None:
            policy = replace(policy, models={**policy.models, MODEL: replace(policy.models[MODEL], cost=cost)})
        if key:
            tenants = {"t": replace(next(iter(policy.tenants.values())), name="t", key_digests=(_digest(key),))}
            policy = replace(policy, tenants=tenants, anonymous_tenant=None)
        agent.config.policy = policy
        async with httpx.AsyncClient(base_url=f"http://{agent.traffic}", timeout=30) as client:
            yield client


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The named events of an event stream."""
    parsed = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.strip().split("\n"))
        parsed.append((lines["event"], json.loads(lines["data"])))
    return parsed


async def test_messages_are_served_whole_and_streamed(tmp_path: Path, engines: EngineProcess) -> None:
    async with serving(tmp_path, engines.urls["whole"]) as client:
        whole = await client.post("/v1/messages", json=MESSAGE)
        assert whole.status_code == 200
        message = whole.json()
        assert (message["type"], message["stop_reason"]) == ("message", "max_tokens")
        assert message["usage"]["output_tokens"] == 5
        assert whole.headers["request-id"] == whole.headers["x-request-id"]
        streamed = await client.post("/v1/messages", json={**MESSAGE, "stream": True})
        kinds = [kind for kind, _ in events(streamed.text)]
        assert kinds == [
            *("message_start", "content_block_start"),
            *["content_block_delta"] * 5,
            *("content_block_stop", "message_delta", "message_stop"),
        ]


async def test_refused_messages_have_anthropics_format(tmp_path: Path, engines: EngineProcess) -> None:
    async with serving(tmp_path, engines.urls["whole"], key=KEY) as client:
        missing = await client.post("/v1/messages", json=MESSAGE)
        assert missing.status_code == 401
        error = missing.json()
        assert error["type"] == "error"
        assert error["error"]["type"] == "authentication_error"
        assert error["error"]["details"] == {"error_code": "invalid_api_key"}
        headers = {"x-api-key": KEY}
        assert (await client.post("/v1/messages", json=MESSAGE, headers=headers)).status_code == 200
        both = {**headers, "authorization": "Bearer another"}
        assert (await client.post("/v1/messages", json=MESSAGE, headers=both)).status_code == 401
        unknown = await client.post("/v1/messages", json={**MESSAGE, "model": "nothing"}, headers=headers)
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        batches = await client.get("/v1/messages/batches/b1", headers=headers)
        assert (batches.status_code, batches.json()["error"]["type"]) == (501, "api_error")
        # The header is that of Anthropic's routes alone.
        chat = await client.post("/v1/chat/completions", json=MESSAGE, headers=headers)
        assert (chat.status_code, chat.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_the_engine_receives_no_key_of_a_client(tmp_path: Path) -> None:
    async with engine(answers) as gpu, serving(tmp_path, gpu.address, key=KEY) as client:
        headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}
        assert (await client.post("/v1/messages", json=MESSAGE, headers=headers)).status_code == 200
        assert KEY.encode() not in gpu.requests[0].head


async def test_a_message_that_breaks_off_ends_with_an_error_event(
    tmp_path: Path, engines: EngineProcess, connect: Connect
) -> None:
    await connect("dies").post("/lab/faults", json={"die_mid_stream": 3})
    async with serving(tmp_path, engines.urls["dies"]) as client:
        body = {**MESSAGE, "max_tokens": 40, "stream": True}
        answer = await client.post("/v1/messages", json=body, headers={"x-request-id": "r-1"})
        *before, (kind, error) = events(answer.text)
        assert "message_stop" not in dict(before)
        assert kind == "error"
        assert error["type"] == "error"
        assert error["error"]["type"] == "api_error"
        assert error["request_id"] == "r-1"


async def test_ollama_streams_lines_unless_stream_is_false(tmp_path: Path, engines: EngineProcess) -> None:
    async with serving(tmp_path, engines.urls["whole"]) as client:
        streamed = await client.post("/api/chat", json=OLLAMA)
        assert streamed.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert [line["done"] for line in lines] == [False] * 5 + [True]
        assert lines[-1]["eval_count"] == 5
        whole = await client.post("/api/chat", json={**OLLAMA, "stream": False})
        assert whole.json()["message"]["content"].split() == [line["message"]["content"].strip() for line in lines[:-1]]
        unknown = await client.post("/api/chat", json={**OLLAMA, "model": "nothing"})
        assert unknown.status_code == 404
        assert list(unknown.json()) == ["error"]
        assert isinstance(unknown.json()["error"], str)


async def test_a_broken_stream_of_lines_ends_with_an_error_line(
    tmp_path: Path, engines: EngineProcess, connect: Connect
) -> None:
    await connect("dies").post("/lab/faults", json={"die_mid_stream": 3})
    async with serving(tmp_path, engines.urls["dies"]) as client:
        answer = await client.post("/api/chat", json={**OLLAMA, "options": {"num_predict": 40}})
        *lines, last = (json.loads(line) for line in answer.text.splitlines() if line)
        assert not any(line["done"] for line in lines)
        assert list(last) == ["error"]


async def test_requests_without_generated_text_are_served(tmp_path: Path, engines: EngineProcess) -> None:
    async with serving(tmp_path, engines.urls["whole"]) as client:
        documents = {"model": MODEL, "query": "q", "documents": ["a", "bbb"]}
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            ranked = await client.post(path, json=documents)
            assert [result["index"] for result in ranked.json()["results"]] == [1, 0]
        tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2.5]}
        inferred = await client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]})
        assert inferred.json()["outputs"][0]["data"] == [4.0]
        predicted = await client.post("/predict", content=b'{"x": 1}', headers={"x-model": MODEL})
        assert predicted.json() == {"prediction": 8}


async def test_errors_have_the_format_of_their_api(tmp_path: Path, engines: EngineProcess) -> None:
    async with serving(tmp_path, engines.urls["whole"]) as client:
        unknown = await client.post("/v2/models/nothing/infer", json={"inputs": []})
        assert unknown.status_code == 404
        assert unknown.headers["x-penstock-refusal"] == "model_not_found"
        assert unknown.json() == {"error": "no model named 'nothing' is served here"}
        nameless = await client.post("/predict", json={"x": 1})
        assert nameless.status_code == 400
        assert nameless.headers["content-type"] == "application/problem+json"
        problem = nameless.json()
        assert (problem["status"], problem["title"], problem["code"]) == (400, "Bad Request", "bad_request")
        assert len(problem["request_id"]) == 32
        assert problem["request_id"] == nameless.headers["x-request-id"]
        named = await client.post("/predict", json={"x": 1}, headers={"x-request-id": "r-1"})
        assert named.json()["request_id"] == named.headers["x-request-id"] == "r-1"
        unsafe = await client.post("/predict", json={"x": 1}, headers={"x-request-id": 'r"1'})
        assert len(unsafe.json()["request_id"]) == 32
        method = await client.get("/predict")
        assert (method.status_code, method.headers["allow"], method.json()["code"]) == (
            405,
            "POST",
            "method_not_allowed",
        )
        files = await client.get("/v1/files/f-1/content")
        assert (files.status_code, files.json()["error"]["code"]) == (501, "not_offered")


async def test_a_model_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    async with engine(answers) as gpu, serving(tmp_path, gpu.address) as client:
        body = b'{"model": "%b", "Model": "other", "messages": []}' % MODEL.encode()
        refused = await client.post("/api/chat", content=body)
        assert refused.status_code == 400
        assert "ambiguous" in refused.json()["error"]
        assert not gpu.requests


async def test_an_image_job_takes_a_slot_and_is_accounted_by_its_size(tmp_path: Path, engines: EngineProcess) -> None:
    file = tmp_path / "access.jsonl"
    log = AccessLog(file, 1.0, Random(1))
    cost = Cost(CostUnit.MEGAPIXEL_STEP, 0.0, 0.05)
    job = {"width": 512, "height": 1000, "steps": 3, "override_settings": {"sd_model_checkpoint": MODEL}}
    headers = {"x-request-id": "image-1", "x-lab-residency": "eu-de"}
    async with serving(tmp_path, engines.urls["whole"], cost=cost, log=log) as client:
        image = await client.post("/sdapi/v1/txt2img", json=job, headers=headers)
        assert image.status_code == 200
        assert image.json()["images"]
        too_many = await client.post("/sdapi/v1/txt2img", json={**job, "batch_size": 2})
        assert (too_many.status_code, "batch_size" in too_many.json()["detail"]) == (422, True)
    log.close()
    line = json.loads(file.read_text().splitlines()[0])
    assert line["work_s"] == pytest.approx(512 * 1000 / 1e6 * 3 * 0.05)
    findings, _ = Witness(engines.witness_dir).read()
    assert (findings.started["image-1"], findings.finished["image-1"]) == (1, 1)


async def test_an_embedding_is_computed_in_the_batch(tmp_path: Path, engines: EngineProcess) -> None:
    headers = {"x-request-id": "embedding-1", "x-lab-residency": "eu-de"}
    async with serving(tmp_path, engines.urls["whole"]) as client:
        embedding = await client.post("/v1/embeddings", json={"model": MODEL, "input": "four" * 9}, headers=headers)
        assert embedding.status_code == 200
        assert embedding.json()["data"][0]["embedding"]
        assert embedding.json()["usage"]["prompt_tokens"] >= 9
        several = await client.post("/v1/embeddings", json={"model": MODEL, "input": ["a", "b"]})
        assert (several.status_code, several.json()["error"]["type"]) == (400, "BadRequestError")
    findings, _ = Witness(engines.witness_dir).read()
    assert (findings.started["embedding-1"], findings.finished["embedding-1"]) == (1, 1)


async def test_usage_at_both_ends_of_a_long_stream_is_read(tmp_path: Path) -> None:
    def event(kind: str, **fields: Any) -> bytes:
        return chunk(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()))

    async def streams_long(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + event("message_start", message={"usage": {"input_tokens": 77, "output_tokens": 1}}))
        for _ in range(100):
            writer.write(event("content_block_delta", delta={"type": "text_delta", "text": "word " * 20}))
            await writer.drain()
        writer.write(event("message_delta", delta={}, usage={"output_tokens": 2000}) + b"0\r\n\r\n")

    async with engine(streams_long) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        policy = agent.config.policy
        by_token = replace(policy.models[MODEL], cost=Cost(CostUnit.TOKEN, 0.001, 0.01))
        agent.config.policy = replace(policy, routes=preset_routes("anthropic"), models={MODEL: by_token})
        messages = [{"role": "user", "content": "hello " * 100}]
        body = json.dumps({"model": MODEL, "stream": True, "messages": messages}).encode()
        assert (await ask(agent, body=body, path="/v1/messages")).status == 200
        expectations = agent.router.local.chooser.expectations
        await until(lambda: agent.held() == 0)
        assert round(expectations.prompt_tokens(MODEL, len(body))) == 77
        assert expectations.answer_tokens("open", MODEL, None) == 2000
