"""Requests of other routes than OpenAI's pass through a real agent to an engine and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routes.route import BodyKind, ModelLocation, ModelSource, Route, StreamKind
from regional_agent.http.limits import Limits
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, ask, chunk, code
from tests.support.planet import MODEL
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine

BY_PATH = (ModelLocation(ModelSource.PATH, "model"),)
ROUTES = (
    *OPENAI_ROUTES,
    Route("infer", "/v2/models/{model}/infer", model=BY_PATH),
    Route("ready", "/v2/models/{model}/ready", frozenset({"GET"}), model=BY_PATH, body=BodyKind.NONE),
    Route(
        "generate",
        "/api/generate",
        model=(ModelLocation(ModelSource.JSON, "/options/model"),),
        stream=StreamKind.NDJSON,
        streams_by_default=True,
        stream_field="/stream",
    ),
    Route("predict", "/predict", model=(ModelLocation(ModelSource.QUERY, "model"),), body=BodyKind.OPAQUE),
    Route("files", "/v1/files", frozenset({"GET", "POST"}), offered=False),
)


def serve(agent: Agent) -> None:
    agent.config.policy = replace(agent.config.policy, routes=ROUTES)


async def get(agent: Agent, path: str, method: str = "GET") -> Answer:
    client = await RawClient.connect(agent.traffic)
    client.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    if method == "HEAD":
        return Answer(*await client.head(), b"")
    answer = await client.answer()
    client.close()
    return answer


async def test_a_model_is_read_from_the_path(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        serve(agent)
        body = b'{"inputs": []}'
        answer = await ask(agent, body=body, path=f"/v2/models/{MODEL}/infer")
        assert answer.status == 200
        assert gpu.requests[0].head.startswith(f"POST /v2/models/{MODEL}/infer HTTP/1.1".encode())
        assert gpu.requests[0].body == body
        assert (await get(agent, f"/v2/models/{MODEL}/ready")).status == 200
        assert len(gpu.requests) == 2
        unknown = await ask(agent, body=body, path="/v2/models/nothing/infer")
        assert (unknown.status, code(unknown.body)) == (404, "model_not_found")
        assert (await ask(agent, body=body, path="/v2/models/..%2Fx/infer")).status == 404


async def test_an_opaque_body_is_streamed_as_it_arrives(tmp_path: Path) -> None:
    body = bytes(range(256)) * 1024
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=Limits()) as agent:
        serve(agent)
        answer = await ask(agent, "Content-Type: application/json", body=body, path=f"/predict?model={MODEL}")
        assert answer.status == 200
        assert gpu.requests[0].body == body
        missing = await ask(agent, body=b"x", path="/predict")
        assert (missing.status, code(missing.body)) == (400, "bad_request")
        assert "query parameter `model`" in json.loads(missing.body)["error"]["message"]


async def test_json_lines_are_relayed_line_by_line(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def lines(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + chunk(b'{"a": 1}\n'))
        await go_on.wait()
        writer.write(chunk(b'{"done": true}\n') + chunk(b""))

    async with engine(lines) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        serve(agent)
        client = await RawClient.connect(agent.traffic)
        body = json.dumps({"options": {"model": MODEL}}).encode()
        client.send(b"POST /api/generate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await client.head())[0] == 200
        assert await client.chunk() == b'{"a": 1}\n'
        go_on.set()
        assert await client.chunk() == b'{"done": true}\n'
        assert await client.chunk() == b""


@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked", b"x-framing: none"])
async def test_the_response_to_head_ends_with_its_head(tmp_path: Path, framing: bytes) -> None:
    async def responds(_: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head_only = received.head.startswith(b"HEAD")
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % (framing if head_only else b"content-length: 5"))
        if not head_only:
            writer.write(b"ready")

    async with engine(responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        serve(agent)
        path = f"/v2/models/{MODEL}/ready"
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            # The first GET leaves a connection to the engine that has a cached head with a length.
            client.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert (await client.answer()).body == b"ready"
            client.send(f"HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            status, headers = await client.head()
            assert (status, headers.get("transfer-encoding")) == (200, None)
            assert headers.get("content-length") == ("5" if framing.startswith(b"content-length") else None)
        assert len(gpu.requests) == 4


async def test_a_request_without_a_route_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        serve(agent)
        wrong = await get(agent, "/api/generate")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        files = await get(agent, "/v1/files")
        assert (files.status, code(files.body)) == (501, "not_offered")
        tunnel = await get(agent, "/v1/realtime")
        assert (tunnel.status, tunnel.headers["upgrade"]) == (426, "websocket")
        assert (await get(agent, "/v2/models/x/ready", "HEAD")).status == 404
        assert not gpu.requests


async def test_a_route_that_a_new_policy_removes_is_refused(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        serve(agent)
        assert (await ask(agent, body=b"{}", path=f"/v2/models/{MODEL}/infer")).status == 200
        agent.config.policy = replace(agent.config.policy, routes=OPENAI_ROUTES)
        assert (await ask(agent, body=b"{}", path=f"/v2/models/{MODEL}/infer")).status == 404
        assert len(gpu.requests) == 1


async def test_a_single_model_is_described(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        described = await get(agent, f"/v1/models/{MODEL}")
        assert described.status == 200
        assert json.loads(described.body)["id"] == MODEL
        assert (await get(agent, f"/v1/models/{MODEL}", "HEAD")).status == 200
        missing = await get(agent, "/v1/models/nothing%2Felse")
        assert (missing.status, code(missing.body)) == (404, "model_not_found")
        assert not gpu.requests
