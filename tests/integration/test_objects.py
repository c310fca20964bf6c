"""Requests for an object reach the endpoint that created it: through agents, in one region and in two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.answers.held_text import MAX_HELD_BYTES
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.routes.presets.preset_registry import preset_routes
from penstock.routing.weighted_sampler import samplers_of
from regional_agent.endpoints.endpoint import Endpoint
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, ask, chunk, code
from tests.support.planet import MODEL, plan
from tests.support.sockets import Answer, RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until

RESPONSES = "/v1/responses"


def keeps(name: str, *, split: bool = False, items: bool = False, usage: bool = True, long: int = 0) -> Script:
    """An engine with the Responses API: its objects are `<name>-1` and so on."""
    created: set[str] = set()

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        method, target = received.head.split(b" ", 2)[:2]
        if method == b"POST" and target in (RESPONSES.encode(), b"/prompt"):
            object_id = f"{name}-{len(created) + 1}"
            created.add(object_id)
            if json.loads(received.body).get("stream"):
                event = b'event: response.created\ndata: {"response": {"object": "response", "id": "%b"}}\n\n'
                data = event % object_id.encode()
                writer.write(SSE_HEAD)
                for part in (data[:40], data[40:]) if split else (data,):
                    writer.write(chunk(part))
                    await writer.drain()
                    await asyncio.sleep(0.05 if split else 0)
                output = _items(object_id, long) if items else []
                completed = {"id": object_id, "output": output, **({"usage": {"input_tokens": 1}} if usage else {})}
                last = json.dumps({"type": "response.completed", "response": completed}).encode()
                writer.write(chunk(b"data: %b\n\n" % last) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
                return
            output = _items(object_id, long) if items else []
            writer.write(_json(200, {"id": object_id, "prompt_id": object_id, "output": output}))
            return
        object_id = target.decode().split("/")[2 if target.startswith(b"/history") else 3]
        writer.write(_json(200 if object_id in created else 410, {"method": method.decode(), "at": name}))

    return script


def _items(object_id: str, long: int) -> list[dict[str, Any]]:
    """The items of a response, of which the last has too short an identifier."""
    return [
        {"type": "reasoning", "id": f"rs_of_the_response_{object_id}", "summary": [{"text": "x" * long}]},
        {"type": "message", "id": f"msg_of_the_response_{object_id}", "role": "assistant", "content": []},
        {"type": "message", "id": f"msg_{object_id}", "role": "assistant", "content": []},
    ]


def _json(status: int, value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


async def create(agent: Agent, *headers: str, path: str = RESPONSES, **fields: Any) -> str:
    """Create an object and return its identifier."""
    body = json.dumps({"model": MODEL, "input": "hello", **fields}).encode()
    answer = await ask(agent, *headers, body=body, path=path)
    assert answer.status == 200, answer
    if fields.get("stream"):
        line = next(line for line in answer.body.split(b"\n") if line.startswith(b"data: "))
        return str(json.loads(line[6:])["response"]["id"])
    return str(json.loads(answer.body)["id"])


async def request(agent: Agent, method: str, path: str, *headers: str) -> Answer:
    """Request an object and return the response."""
    client = await RawClient.connect(agent.traffic)
    if method == "POST":
        client.send(post(b"", *headers, path=path))
    else:
        lines = "".join(f"{header}\r\n" for header in headers)
        client.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())
    answer = await client.answer()
    client.close()
    return answer


async def proceed(agent: Agent, object_id: str, *headers: str, **fields: Any) -> Answer:
    """Create an object that continues from an earlier one."""
    body = json.dumps({"model": MODEL, "input": "hello", "previous_response_id": object_id, **fields}).encode()
    return await ask(agent, *headers, body=body, path=RESPONSES)


def holder_of(agent: Agent, object_id: str) -> Endpoint:
    """Return the endpoint of a pair that has an object."""
    pool = agent.endpoints.pools[MODEL]
    return next(each for each in pool.endpoints if (each.name == "gpu-0") == object_id.startswith("first"))


def escaped(text: str) -> str:
    """Return a JSON string of which each character is escaped."""
    return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'


def with_tenants(agent: Agent) -> tuple[str, str]:
    """Give the fleet two tenants; returns the header with the API key of each."""
    tenants = {
        name: msgspec.structs.replace(tenant, key_digests=(sha256(name.encode()).hexdigest(),))
        for name, tenant in agent.config.policy.tenants.items()
        if name == "open"
    }
    tenants["other"] = msgspec.structs.replace(
        tenants["open"], name="other", key_digests=(sha256(b"other").hexdigest(),)
    )
    agent.config.policy = msgspec.structs.replace(agent.config.policy, tenants=tenants, anonymous_tenant=None)
    return "Authorization: Bearer open", "Authorization: Bearer other"


@asynccontextmanager
async def pair(directory: Path, **fields: Any) -> AsyncIterator[Agent]:
    """Run an agent with two engines."""
    async with engines_behind_agent(directory, **fields) as (agent, _):
        yield agent


@asynccontextmanager
async def engines_behind_agent(directory: Path, **fields: Any) -> AsyncIterator[tuple[Agent, list[ScriptedEngine]]]:
    """Run an agent with two engines, and return the engines too."""
    own = {name: fields.pop(name) for name in ("split", "items", "usage", "long") if name in fields}
    async with (
        engine(keeps("first", **own)) as first,
        engine(keeps("second", **own)) as second,
        running_agent(directory, [first.address, second.address], **fields) as agent,
    ):
        yield agent, [first, second]
        await until(lambda: agent.held() == 0)


@pytest.mark.parametrize(
    ("fields", "split"),
    [({}, False), ({"stream": True}, False), ({"stream": True}, True)],
    ids=["whole", "sse", "split"],
)
async def test_every_request_reaches_the_endpoint_that_created_the_object(
    tmp_path: Path, fields: dict[str, Any], split: bool
) -> None:
    async with pair(tmp_path, split=split) as agent:
        created = [await create(agent, **fields) for _ in range(8)]
        assert len({object_id.partition("-")[0] for object_id in created}) == 2, "both engines have objects"
        for object_id in created * 2:
            for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                answer = await request(agent, method, f"{RESPONSES}/{object_id}{path}")
                value = json.loads(answer.body)
                assert (answer.status, value["at"]) == (200, object_id.partition("-")[0])
                assert value["method"] == method


async def test_unknown_objects_and_those_of_other_tenants_are_not_found(tmp_path: Path) -> None:
    async with pair(tmp_path) as agent:
        ours, theirs = with_tenants(agent)
        path = f"{RESPONSES}/{await create(agent, ours)}"
        assert (await request(agent, "GET", path, ours)).status == 200
        for method, target, key in (
            ("GET", path, theirs),
            ("DELETE", path, theirs),
            ("POST", f"{path}/cancel", theirs),
            ("GET", f"{RESPONSES}/resp_unknown", ours),
        ):
            answer = await request(agent, method, target, key)
            assert (answer.status, code(answer.body)) == (404, "not_found")
        assert (await request(agent, "GET", path)).status == 401


async def test_a_previous_response_is_continued_where_it_is(tmp_path: Path) -> None:
    async with pair(tmp_path) as agent:
        last = await create(agent)
        home = last.partition("-")[0]
        for _ in range(8):
            last = await create(agent, previous_response_id=last)
            assert last.partition("-")[0] == home
        assert await create(agent, previous_response_id=None)


async def test_unknown_responses_and_those_of_other_tenants_are_not_continued(tmp_path: Path) -> None:
    async with engines_behind_agent(tmp_path) as (agent, engines):
        ours, theirs = with_tenants(agent)
        last = await create(agent, ours)
        sent = sum(len(each.requests) for each in engines)
        for object_id in (last, "resp_unknown", "", "x" * 300):
            for written in (json.dumps(object_id), escaped(object_id)):
                body = b'{"model": "%b", "previous_response_id": %b}' % (MODEL.encode(), written.encode())
                answer = await ask(agent, theirs, body=body, path=RESPONSES)
                assert (answer.status, code(answer.body)) == (404, "not_found"), object_id
        for other in (b'["%b"]', b'{"id": "%b"}', b"1", b"true"):
            value = other.replace(b"%b", last.encode())
            body = b'{"model": "%b", "previous_response_id": %b}' % (MODEL.encode(), value)
            answer = await ask(agent, theirs, body=body, path=RESPONSES)
            assert (answer.status, code(answer.body)) == (400, "bad_request"), "an engine could convert the value"
        item = b'{"type": "item_reference", "id": "msg_1"}'
        for written in (
            item,
            b'{"id": "msg_1"}',
            b'{"\\u0069d": "x", "type": null}',
            b'"x", ' + item,
            b'{"id": 1e999}, ' + item,
        ):
            body = b'{"model": "%b", "input": [{"role": "user", "content": "a"}, %b]}' % (MODEL.encode(), written)
            answer = await ask(agent, theirs, body=body, path=RESPONSES)
            assert (answer.status, code(answer.body)) == (404, "not_found"), written
        assert sum(len(each.requests) for each in engines) == sent
        whole = {"type": "message", "role": "assistant", "id": "msg_1", "content": "item_reference"}
        assert (await proceed(agent, last, ours, input=[whole])).status == 200


def reference(object_id: str, kind: str = "msg_of_the_response") -> dict[str, str]:
    return {"type": "item_reference", "id": f"{kind}_{object_id}"}


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
@pytest.mark.parametrize(("usage", "long"), [(True, 1), (False, 1), (False, MAX_HELD_BYTES)])
async def test_items_of_earlier_responses_are_served_where_they_are(
    tmp_path: Path, fields: dict[str, Any], usage: bool, long: int
) -> None:
    async with engines_behind_agent(tmp_path, items=True, usage=usage, long=long) as (agent, engines):
        ours, theirs = with_tenants(agent)
        kept = [await create(agent, ours, **fields) for _ in range(6)]
        first = [each for each in kept if each.startswith("first")]
        second = [each for each in kept if each.startswith("second")]
        assert first
        assert second
        for of_one in (first, second):
            for each in of_one:
                bare = {"id": f"rs_of_the_response_{each}"}
                names = [reference(each), bare, {"role": "user", "content": "more"}, reference(of_one[0])]
                gpu = engines[of_one is second]
                before = len(gpu.requests)
                assert await create(agent, ours, input=names, **fields)
                answer = await proceed(agent, each, ours, input=names)
                assert (answer.status, len(gpu.requests)) == (200, before + 2)
        sent = sum(len(gpu.requests) for gpu in engines)
        last = first[0]
        for header, written in (
            (theirs, [reference(last)]),
            (ours, [reference(last), reference(second[0])]),
            (ours, [reference(last), reference("unknown")]),
            (ours, [reference(last, "msg")]),
            (ours, [reference(last), {"type": "item_reference"}]),
            (ours, [reference(last)] + [reference(f"{number}") for number in range(200)]),
        ):
            content = json.dumps({"model": MODEL, "input": written}).encode()
            answer = await ask(agent, header, body=content, path=RESPONSES)
            assert (answer.status, code(answer.body)) == (404, "not_found"), written
        assert (await proceed(agent, second[0], ours, input=[reference(last)])).status == 404
        assert sum(len(gpu.requests) for gpu in engines) == sent


async def test_the_items_of_a_client_that_leaves_at_the_last_event_are_known(tmp_path: Path) -> None:
    async def stays_open(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if not json.loads(received.body).get("stream"):
            writer.write(_json(200, {"id": "second", "output": []}))
            return
        completed = {"id": "first", "output": _items("first", 1)}
        last = json.dumps({"type": "response.completed", "response": completed}).encode()
        writer.write(SSE_HEAD + chunk(b'data: {"type": "response.created", "response": {"id": "first"}}\n\n'))
        writer.write(chunk(b"data: %b\n\n" % last))
        await asyncio.Event().wait()

    async with engine(stays_open) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(json.dumps({"model": MODEL, "input": "hello", "stream": True}).encode(), path=RESPONSES))
        await client.head()
        received = b""
        while b"response.completed" not in received:
            received += await client.chunk()
        client.close()
        await until(lambda: agent.counted() == {"ok": 1})
        named = json.dumps({"model": MODEL, "input": [reference("first")]}).encode()
        assert (await ask(agent, body=named, path=RESPONSES)).status == 200


async def test_conversations_are_unknown_since_the_fleet_creates_none(tmp_path: Path) -> None:
    async with engines_behind_agent(tmp_path) as (agent, engines):
        for written in (b'"conv_1"', b'""', b'{"id": "conv_1"}', b"{}", b"1", b'"conv_1", "conversation": null'):
            body = b'{"model": "%b", "input": "hello", "conversation": %b}' % (MODEL.encode(), written)
            answer = await ask(agent, body=body, path=RESPONSES)
            duplicate = written.endswith(b"null")
            expected = (400, "bad_request") if duplicate else (404, "not_found")
            assert (answer.status, code(answer.body)) == expected, written
        assert not any(each.requests for each in engines)
        assert await create(agent, conversation=None)


async def test_what_continues_a_response_waits_for_its_full_endpoint(tmp_path: Path) -> None:
    async with pair(tmp_path, slots=1, queue=0) as agent:
        last = await create(agent)
        holder = holder_of(agent, last)
        holder.take(0, 0)
        waiting = [asyncio.create_task(proceed(agent, last)) for _ in range(3)]
        await until(lambda: agent.waiting() == 3)
        # Requests without an object pass those that wait for the full endpoint.
        others = [await asyncio.wait_for(create(agent), 10) for _ in range(3)]
        assert not any(other.startswith(last[:4]) for other in others)
        assert agent.waiting() == 3
        holder.give_back(0, 0)
        agent.queue.room_appeared()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert {(answer.status, json.loads(answer.body)["id"].partition("-")[0]) for answer in answers} == {
            (200, last.partition("-")[0])
        }


async def test_what_continues_a_response_is_refused_after_its_wait(tmp_path: Path) -> None:
    async with pair(tmp_path, slots=1, queue=0) as agent:
        last = await create(agent)
        model = agent.config.policy.models[MODEL]
        queueing = msgspec.structs.replace(model.queueing, max_wait_s=0.2)
        models = {MODEL: msgspec.structs.replace(model, queueing=queueing)}
        agent.config.policy = msgspec.structs.replace(agent.config.policy, models=models)
        holder = holder_of(agent, last)
        holder.take(0, 0)
        answer = await asyncio.wait_for(proceed(agent, last), 10)
        assert (answer.status, code(answer.body)) == (429, "saturated")
        assert int(answer.headers["retry-after"]) >= 1
        holder.give_back(0, 0)
        assert (await proceed(agent, last)).status == 200


async def test_what_continues_a_response_waits_in_the_region_that_has_it(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        pair(tmp_path / "server", region="eu-es", slots=1, queue=0) as server,
        engine(keeps("near")) as near,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        last = await create(origin)
        # The plan gives the region no share any more, and the region grants no credit.
        here = plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
        origin.config.samplers, origin.config.plan = samplers_of(here), here
        assert (await create(origin)).startswith("near")
        holder = holder_of(server, last)
        holder.take(0, 0)
        waiting = asyncio.create_task(proceed(origin, last))
        await until(lambda: server.waiting() == 1)
        holder.give_back(0, 0)
        server.queue.room_appeared()
        answer = await asyncio.wait_for(waiting, 10)
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert json.loads(answer.body)["id"].partition("-")[0] == last.partition("-")[0]
        assert not origin.peers.spent
        server.objects.here._by_tenant.clear()
        answer = await proceed(origin, last)
        assert (answer.status, code(answer.body)) == (404, "not_found")
        origin.peers.states["eu-es"] = RegionState.FAILED
        answer = await proceed(origin, last)
        assert (answer.status, code(answer.body)) == (503, "none_ready")


@pytest.mark.parametrize("status", [404, 500])
async def test_an_error_of_the_endpoint_that_has_the_response_is_not_tried_elsewhere(
    tmp_path: Path, status: int
) -> None:
    async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(_json(status, {"error": {"message": "the engine failed"}}))

    async with engines_behind_agent(tmp_path) as (agent, engines):
        last = await create(agent)
        for each in engines:
            each.script = fails
        answer = await proceed(agent, last)
        assert (answer.status, b"the engine failed" in answer.body) == (status, True)
        assert sum(len(each.requests) for each in engines) == 2


@pytest.mark.parametrize("how", ["version", "fallback"])
async def test_a_response_is_continued_by_the_model_that_created_it(tmp_path: Path, how: str) -> None:
    async with pair(tmp_path, models=[MODEL, "lighter"]) as agent:
        policy = agent.config.policy
        models = {**policy.models, "lighter": msgspec.structs.replace(policy.models[MODEL], name="lighter")}
        if how == "fallback":
            models["asked"] = msgspec.structs.replace(policy.models[MODEL], name="asked", fallback="lighter")
        else:
            versions = ModelVersions("asked", (Version(MODEL, 50), Version("lighter", 50)))
            policy = msgspec.structs.replace(policy, versions={"asked": versions})
        agent.config.policy = msgspec.structs.replace(policy, models=models)
        for _ in range(4):
            last = await create(agent, model="asked")
            for _ in range(4):
                answer = await proceed(agent, last, model="asked")
                assert (answer.status, json.loads(answer.body)["id"].partition("-")[0]) == (200, last.partition("-")[0])
                last = json.loads(answer.body)["id"]


async def test_a_removed_or_unready_endpoint_is_an_error(tmp_path: Path) -> None:
    async with pair(tmp_path) as agent:
        object_id = await create(agent)
        path = f"{RESPONSES}/{object_id}"
        pool = agent.endpoints.pools[MODEL]
        holder = next(e for e in pool.endpoints if (e.name == "gpu-0") == object_id.startswith("first"))
        holder.view.ready = False
        answer = await request(agent, "GET", path)
        assert (answer.status, code(answer.body)) == (503, "none_ready")
        pool.fill([endpoint for endpoint in pool.endpoints if endpoint is not holder])
        answer = await request(agent, "GET", path)
        assert (answer.status, code(answer.body)) == (404, "not_found")
        answer = await proceed(agent, object_id)
        assert (answer.status, code(answer.body)) == (404, "not_found")


async def test_a_full_endpoint_still_serves_requests_for_its_objects(tmp_path: Path) -> None:
    async with pair(tmp_path, slots=1, queue=0) as agent:
        object_id = await create(agent)
        pool = agent.endpoints.pools[MODEL]
        for endpoint in pool.endpoints:
            endpoint.take(0, 0)
        assert not pool.has_room
        assert (await request(agent, "POST", f"{RESPONSES}/{object_id}/cancel")).status == 200
        for endpoint in pool.endpoints:
            endpoint.give_back(0, 0)


async def test_an_object_of_another_region_is_found_there(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        pair(tmp_path / "server", region="eu-es") as server,
        engine(keeps("near")) as near,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        created = [await create(origin, stream=stream) for stream in (False, True, False, True)]
        assert not near.requests
        for object_id in created * 2:
            answer = await request(origin, "GET", f"{RESPONSES}/{object_id}")
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
            assert json.loads(answer.body)["at"] == object_id.partition("-")[0]
        last = await create(origin, previous_response_id=created[0])
        assert last.partition("-")[0] == created[0].partition("-")[0]
        server.objects.here._by_tenant.clear()
        answer = await request(origin, "GET", f"{RESPONSES}/{created[0]}")
        assert (answer.status, code(answer.body)) == (404, "not_found")
        origin.peers.addresses.clear()
        answer = await request(origin, "GET", f"{RESPONSES}/{created[0]}")
        assert (answer.status, code(answer.body)) == (503, "none_ready")


async def test_a_region_without_a_share_serves_what_needs_its_objects(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with pair(tmp_path / "server", region="eu-es") as server, pair(tmp_path / "origin") as origin:
        here = await create(origin)
        origin.config.samplers = samplers_of(away)
        origin.config.plan = away
        origin.peers.addresses["eu-es"] = server.peer
        origin.peers.states["eu-es"] = RegionState.HEALTHY
        read = await request(origin, "GET", f"{RESPONSES}/{here}")
        assert (read.status, read.headers["x-penstock-region"]) == (200, "eu-de"), "the object itself is still read"
        continued = await proceed(origin, here)
        assert (continued.status, continued.headers["x-penstock-region"]) == (200, "eu-de")
        other = await ask(origin, body=json.dumps({"model": MODEL}).encode(), path=RESPONSES)
        assert (other.status, other.headers["x-penstock-region"]) == (200, "eu-es")


async def test_the_history_of_a_prompt_is_read_from_its_endpoint(tmp_path: Path) -> None:
    async with pair(tmp_path) as agent:
        agent.config.policy = msgspec.structs.replace(agent.config.policy, routes=preset_routes("comfyui", MODEL))
        created = [await create(agent, path="/prompt") for _ in range(8)]
        for prompt_id in created:
            answer = await request(agent, "GET", f"/history/{prompt_id}")
            assert (answer.status, json.loads(answer.body)["at"]) == (200, prompt_id.partition("-")[0])


def comfyui(name: str) -> Script:
    """The script of a server with ComfyUI's API: a WebSocket for each client id, prompts, and files."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        target = received.head.split(b" ", 2)[1]
        if target.startswith(b"/ws"):
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            writer.write(name.encode())
            await writer.drain()
            await asyncio.Event().wait()
        writer.write(_json(200, {"prompt_id": f"{name}-{len(e.requests)}", "at": name}))

    return script


async def open_websocket(agent: Agent, client_id: str) -> tuple[RawClient, str]:
    """Open a client's WebSocket, and return it with the name of the server that accepted it."""
    client = await RawClient.connect(agent.traffic)
    head = f"GET /ws?clientId={client_id} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    client.send(head.encode())
    status, _ = await client.head()
    assert status == 101
    return client, (await client.reader.readexactly(len("first"))).decode().strip()


async def test_prompts_files_and_the_websocket_of_a_client_are_at_one_comfyui(tmp_path: Path) -> None:
    async with (
        engine(comfyui("first")) as first,
        engine(comfyui("other")) as second,
        running_agent(tmp_path, [first.address, second.address], slots=1, queue=0) as agent,
    ):
        routes = preset_routes("comfyui", MODEL)
        agent.config.policy = msgspec.structs.replace(agent.config.policy, routes=routes)
        opened = []
        for number in range(6):
            client, at = await open_websocket(agent, f"before-{number}")
            opened.append(client)
            for _ in range(2):
                prompt = json.dumps({"prompt": {}, "client_id": f"before-{number}"}).encode()
                answer = json.loads((await ask(agent, body=prompt, path="/prompt")).body)
                assert answer["at"] == at
                history = await request(agent, "GET", f"/history/{answer['prompt_id']}")
                assert json.loads(history.body)["at"] == at
                # The response to the request for the file's history names no file.
                file = await request(agent, "GET", f"/view?filename=a.png&prompt_id={answer['prompt_id']}")
                assert file.status == 404
        assert agent.held() == 0, "a WebSocket that only notifies takes no slot"
        for number in range(6):
            prompt = json.dumps({"prompt": {}, "client_id": f"after-{number}"}).encode()
            at = json.loads((await ask(agent, body=prompt, path="/prompt")).body)["at"]
            client, connected_to = await open_websocket(agent, f"after-{number}")
            opened.append(client)
            assert connected_to == at
        assert (await request(agent, "GET", "/view?filename=a.png")).status == 404
        assert (await request(agent, "GET", "/view?filename=a.png&prompt_id=unknown")).status == 404
        for client in opened:
            client.close()
        await until(lambda: not list(agent.proxy.active))


def below_all_priorities(agent: Agent) -> None:
    """Let the requests of all tenants be batch requests."""
    tenants = {
        name: msgspec.structs.replace(tenant, priority=BATCH_PRIORITY)
        for name, tenant in agent.config.policy.tenants.items()
    }
    agent.config.policy = msgspec.structs.replace(agent.config.policy, tenants=tenants)


async def test_a_batch_request_that_needs_an_object_waits_for_an_idle_slot(tmp_path: Path) -> None:
    async with pair(tmp_path) as agent:
        created = await create(agent)
        below_all_priorities(agent)
        agent.queue.promised = lambda model: 10_000
        answer = asyncio.create_task(proceed(agent, created))
        await until(lambda: agent.queue.queues.batch_waiting_here(MODEL) == 1 or answer.done())
        assert not answer.done(), "its slot is promised to another region"
        agent.queue.promised = lambda model: 0
        assert (await answer).status == 200


async def test_a_batch_request_with_an_object_elsewhere_spends_batch_credits_alone(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(comfyui("first")) as far,
        engine(comfyui("other")) as near,
        running_agent(tmp_path / "server", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        for agent in (server, origin):
            routes = preset_routes("comfyui", MODEL)
            agent.config.policy = msgspec.structs.replace(agent.config.policy, routes=routes)
        prompt = json.dumps({"prompt": {}, "client_id": "c"}).encode()

        async def at() -> str:
            return str(json.loads((await ask(origin, body=prompt, path="/prompt")).body)["at"])

        assert await at() == "first"
        for agent in (server, origin):
            below_all_priorities(agent)
        origin.peers.credits["eu-es"], origin.peers.batch_credits["eu-es"] = 5, 1
        assert await at() == "first"
        assert (origin.peers.spent, origin.peers.batch_credits) == ([], {"eu-es": 0})
        assert await at() == "other", "spill credits are for requests with a priority"
