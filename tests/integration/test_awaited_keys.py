"""Requests whose token has a key that the agent does not know yet wait for it, by whichever way they arrive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from control_plane.auth import bounded_fetch
from penstock.policy.kinds.coalescing import Coalescing
from penstock.routes.object_locations import ObjectLocations
from regional_agent.http.limits import Limits
from regional_agent.picker.processing_request import BUFFERED, HEALTH_SERVICE, SERVICE
from regional_agent.shared_load import shared_entries
from regional_agent.tenants import issuer_registry
from tests.integration.test_objects import RESPONSES, create, keeps, request
from tests.support.chats import BODY, answers_after, ask
from tests.support.envoys import running_picker
from tests.support.ext_proc_messages import HealthCheckRequest, ProcessingResponse
from tests.support.grpc_client import grpc_client
from tests.support.jobs import EMBEDDINGS, embeds, job_store
from tests.support.picker_streams import CHAT, PickerStream, body, head, parts_of, trailers
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, post
from tests.support.token_fleet import Fleet, fleet
from tests.support.wait import PATIENCE_S, until

LARGE = json.dumps({"model": MODEL, "messages": [], "padding": "x" * 200_000}).encode()
LIMITS = Limits(idle_linger_s=0.0)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_fetch, "FETCH_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(shared_entries, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(issuer_registry, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(issuer_registry, "ASK_APART_S", 2 * PATIENCE_S)


async def answers_after_body(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await embeds(e, received._replace(body=b'{"input": "text"}'), writer)


@asynccontextmanager
async def with_new_key(
    directory: Path, script: Script = answers_after_body, **agent_fields: Any
) -> AsyncIterator[tuple[Fleet, str, asyncio.Event]]:
    """A fleet, a token whose key only the provider has, and what lets the leader fetch it once an agent asks."""
    release = asyncio.Event()
    async with fleet(directory, script, {"limits": LIMITS, **agent_fields}) as running:
        running.new_key()
        running.answer_questions(release)
        try:
            yield running, f"Bearer {running.issuer.token('two', 'EdDSA')}", release
        finally:
            release.set()
            await asyncio.gather(*running.asked)


FORM = {"purpose": "batch"}
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "%b", "input": ""}}\n'
AUDIO = {"model": (None, MODEL), "file": ("a.wav", b"x" * 500_000)}

WAYS: dict[str, tuple[int, Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]]] = {
    "chat": (200, lambda http: http.post("/v1/chat/completions", content=BODY)),
    "large chat": (200, lambda http: http.post("/v1/chat/completions", content=LARGE)),
    "large form": (200, lambda http: http.post("/v1/audio/transcriptions", files=AUDIO)),
    "list of models": (200, lambda http: http.get("/v1/models")),
    "list of batches": (200, lambda http: http.get("/v1/batches")),
    "file": (200, lambda http: http.post("/v1/files", data=FORM, files={"file": ("a", LINE % MODEL.encode())})),
    "large file": (
        200,
        lambda http: http.post("/v1/files", data=FORM, files={"file": ("a", LINE % MODEL.encode() + b"\n" * 500_000)}),
    ),
    "asynchronous request": (
        202,
        lambda http: http.post(EMBEDDINGS, json={"model": MODEL, "input": "text"}, headers={"prefer": "respond-async"}),
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_waits_for_its_key(tmp_path: Path, way: str) -> None:
    status, send = WAYS[way]
    async with with_new_key(tmp_path, job_store=job_store(tmp_path / "store")) as (running, bearer, release):
        url = f"http://{running.agent.traffic}"
        async with httpx.AsyncClient(
            base_url=url, headers={"authorization": bearer}, timeout=PATIENCE_S, trust_env=False
        ) as http:
            answer = asyncio.create_task(wait_for(send(http)))
            await until(lambda: len(running.asked) == 1)
            release.set()
            found = await answer
            assert found.status_code == status, found.text
        assert len(running.asked) == 1


async def wait_for(answer: Awaitable[httpx.Response]) -> httpx.Response:
    return await answer


async def test_no_body_is_read_before_the_key_is_known(tmp_path: Path) -> None:
    async with with_new_key(tmp_path) as (running, bearer, release):
        client = await RawClient.connect(running.agent.traffic)
        lines = f"Authorization: {bearer}", "Expect: 100-continue"
        client.send(post(LARGE, *lines)[: -len(LARGE)])
        await until(lambda: len(running.asked) == 1)
        (connection,) = running.agent.listener.connections
        assert not connection.transport.reading
        release.set()
        assert (await client.reader.readline(), await client.reader.readline()) == (
            b"HTTP/1.1 100 Continue\r\n",
            b"\r\n",
        )
        client.send(LARGE)
        assert (await client.answer()).status == 200
        client.send(post(LARGE, f"Authorization: {bearer}"))
        assert (await client.answer()).status == 200
        client.close()


async def test_a_client_may_leave_while_its_head_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_registry, "ANSWER_S", 10 * PATIENCE_S)
    async with with_new_key(tmp_path) as (running, bearer, _):
        client = await RawClient.connect(running.agent.traffic)
        client.send(post(LARGE, f"Authorization: {bearer}"))
        await until(lambda: len(running.asked) == 1)
        client.close()
        await until(lambda: not running.agent.listener.connections)
        await until(lambda: all(task.get_name() != "check of a head" for task in asyncio.all_tasks()))
        assert running.agent.counted() == {}


async def test_a_large_request_whose_key_never_comes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_registry, "ANSWER_S", 0.2)
    async with with_new_key(tmp_path) as (running, bearer, _):
        client = await RawClient.connect(running.agent.traffic)
        client.send(post(LARGE, f"Authorization: {bearer}"))
        assert (await client.answer()).status == 401
        client.close()


async def test_objects_are_looked_up_after_the_wait(tmp_path: Path, redis_server: RedisServer) -> None:
    script = keeps(tmp_path.name)
    async with with_new_key(tmp_path, script, redis_url=redis_server.url) as (running, bearer, release):
        agent = running.agent
        created = await create(agent, f"Authorization: Bearer {running.issuer.token('one')}")
        # As at another agent of the region.
        agent.objects.here = ObjectLocations()
        answer = asyncio.create_task(request(agent, "GET", f"{RESPONSES}/{created}", f"Authorization: {bearer}"))
        await until(lambda: len(running.asked) == 1)
        release.set()
        assert (await answer).status == 200


async def test_requests_share_a_run_after_the_wait(tmp_path: Path) -> None:
    answered = asyncio.Event()

    async with with_new_key(tmp_path, answers_after(answered, embeds)) as (running, bearer, release):
        config = running.agent.config
        config.policy = replace(config.policy, coalescing=Coalescing(("openai-*",)))
        content = json.dumps({"model": MODEL, "input": "same"}).encode()
        sent = [
            asyncio.create_task(ask(running.agent, f"Authorization: {bearer}", body=content, path=EMBEDDINGS))
            for _ in range(3)
        ]
        await until(lambda: len(running.asked) == 1)
        release.set()
        shared = "penstock_agent_coalesced_requests_total"
        await until(lambda: running.agent.metrics.registry.get_sample_value(shared) == 2.0)
        answered.set()
        assert [answer.status for answer in await asyncio.gather(*sent)] == [200] * 3
        assert len(running.engine.requests) == 1


PICKED: dict[str, tuple[list[Any], str]] = {
    "small body": ([head((b"content-length", b"%d" % len(CHAT))), body(CHAT)], "request_headers"),
    "body in parts": (
        [head((b"content-length", b"%d" % len(CHAT))), body(CHAT[:5], ends=False), body(CHAT[5:])],
        "request_headers",
    ),
    "large body": ([head(), body(LARGE[:1000], ends=False), body(LARGE[1000:])], "request_headers"),
    "trailers": ([head(), body(CHAT, ends=False), trailers("request_trailers")], "request_headers"),
    "buffered": ([head(request_mode=BUFFERED), body(CHAT)], "request_headers"),
    "list of models": ([head(path="/v1/models", method="GET", ends=True)], "immediate_response"),
}


@pytest.mark.parametrize("way", PICKED)
async def test_a_request_of_envoy_waits_for_its_key(tmp_path: Path, way: str) -> None:
    messages, answered = PICKED[way]
    async with with_new_key(tmp_path) as (running, bearer, release):
        stream = PickerStream(parts_of(running.agent))
        first = type(messages[0])()
        first.CopyFrom(messages[0])
        first.request_headers.headers.headers.add(key="authorization", raw_value=bearer.encode())
        stream.receive(first, *messages[1:])
        await until(lambda: len(running.asked) == 1)
        assert stream.kinds() == []
        release.set()
        await until(lambda: bool(stream.kinds()))
        assert stream.kinds()[0] == answered
        if answered == "immediate_response":
            assert stream.sent[0].immediate_response.status.code == 200
        elif way != "buffered":
            await until(lambda: running.agent.held() == 1)
        stream.stream.close()


async def test_envoy_may_not_send_more_while_a_request_waits_for_its_key(tmp_path: Path) -> None:
    async with with_new_key(tmp_path) as (running, bearer, release), running_picker(running.agent) as picker:
        async with grpc_client(picker) as client:
            call = client.call(f"/{SERVICE}/Process")
            call.write(head((b"authorization", bearer.encode())))
            for at in range(0, len(LARGE), 10_000):
                part = LARGE[at : at + 10_000]
                call.write(body(part, ends=at + len(part) == len(LARGE)))
            await until(lambda: len(running.asked) == 1)
            await until(lambda: client.http.local_flow_control_window(1) == 0)
            rest = list(client.pending)
            client.pending.clear()
            check = client.call(f"/{HEALTH_SERVICE}/Check")
            check.write(HealthCheckRequest(service=SERVICE))
            assert await check.read()
            assert client.http.local_flow_control_window(1) == 0, "the answer follows what the picker has permitted"
            client.pending.extend(rest)
            release.set()
            answer = await call.read()
            assert answer is not None
            assert ProcessingResponse.FromString(answer).WhichOneof("response") == "request_headers"
            assert running.agent.held() == 1
        await until(lambda: running.agent.held() == 0)
