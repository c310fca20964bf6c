"""Identical deterministic requests in flight share one engine run, where policy permits it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.coalescing import Coalescing
from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.kinds.tenants import Quota
from penstock.routes.deterministic_requests import deterministic_request
from penstock.routes.presets.openai import OPENAI_ROUTES
from regional_agent.coalescing import run_memory, shared_run
from regional_agent.http.client_transport import ClientTransport
from regional_agent.services import traffic_service
from tests.integration.test_batches import with_tenants
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, answers_after, ask, chunk
from tests.support.jobs import EMBEDDINGS, embeds
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

BODY = json.dumps({"model": MODEL, "input": "same"}).encode()


@asynccontextmanager
async def sharing(tmp_path: Path, script: Script, *routes: str) -> AsyncIterator[tuple[Agent, ScriptedEngine]]:
    """An agent whose policy shares runs of some routes, and its engine."""
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], queue=0, slots=8) as agent:
        agent.config.policy = replace(agent.config.policy, coalescing=Coalescing(routes or ("openai-*",)))
        yield agent, gpu


async def sent(agent: Agent, body: bytes = BODY, *headers: str, path: str = EMBEDDINGS) -> RawClient:
    client = await RawClient.connect(agent.traffic)
    client.send(post(body, *headers, path=path))
    return client


async def test_a_thousand_identical_embeddings_are_one_engine_run(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        first = await sent(agent)
        await until(lambda: len(gpu.requests) == 1)
        # The order of fields and spaces make no difference.
        others = [await sent(agent, b'{"input": "same",\n"model":"%b"}' % MODEL.encode()) for _ in range(999)]
        await until(lambda: shared(agent) == 999)
        assert agent.held() == 1
        release.set()
        answers = [await client.answer() for client in (first, *others)]
        assert {(each.status, json.loads(each.body)["text"]) for each in answers} == {(200, "same")}
        assert answers[500].headers["x-penstock-region"] == "eu-de"
        assert len(gpu.requests) == 1
        assert agent.metrics.registry.get_sample_value("penstock_agent_coalesced_saved_gpu_seconds_total") > 0.0
        assert agent.counted() == {"ok": 1.0}
        again = await ask(agent, body=BODY, path=EMBEDDINGS)
        assert (again.status, len(gpu.requests)) == (200, 2)
        for client in (first, *others):
            client.close()


def shared(agent: Agent) -> float:
    return agent.metrics.registry.get_sample_value("penstock_agent_coalesced_requests_total") or 0.0


async def test_a_client_that_leaves_does_not_end_the_run_and_the_last_one_does(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        first, second = await sent(agent), await sent(agent)
        await until(lambda: shared(agent) == 1 and len(gpu.requests) == 1)
        first.close()
        third = await sent(agent)
        await until(lambda: shared(agent) == 2)
        assert not gpu.closed_by_client.is_set()
        second.close()
        third.close()
        await asyncio.wait_for(gpu.closed_by_client.wait(), PATIENCE_S)
        await until(lambda: agent.held() == 0)
        release.set()
        assert (await ask(agent, body=BODY, path=EMBEDDINGS)).status == 200


CHAT = json.dumps({"model": MODEL, "messages": [], "temperature": 0, "stream": True}).encode()
CHATS = "/v1/chat/completions"


def event(content: str) -> bytes:
    choice = {"index": 0, "delta": {"content": content}}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


async def until_holds(client: RawClient, content: bytes) -> bytes:
    """Read chunks of a stream until they contain something; return them."""
    received = b""
    while content not in received:
        received += await client.chunk()
    return received


def two_events() -> tuple[asyncio.Event, Script]:
    """An engine's script of a stream of two events, and what releases the second one."""
    release = asyncio.Event()

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event("one")))
        await release.wait()
        writer.write(chunk(event("two")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    return release, streams


async def test_a_stream_has_all_clients_that_join_and_ends_with_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, streams = two_events()
    async with sharing(tmp_path, streams) as (agent, gpu):
        first = await sent(agent, CHAT, path=CHATS)
        assert (await first.head())[0] == 200
        assert await until_holds(first, b"one") == event("one"), "as it arrives"
        late, leaves = [await sent(agent, CHAT, path=CHATS) for _ in range(2)]
        for client in (late, leaves):
            status, headers = await client.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert await until_holds(client, b"one") == event("one"), "the beginning comes first"
        leaves.close()
        release.set()
        rest = [await until_holds(client, b"[DONE]") + await client.chunk() for client in (first, late)]
        assert rest == [event("two") + b"data: [DONE]\n\n"] * 2
        assert (len(gpu.requests), shared(agent), agent.counted()) == (1, 2, {"ok": 1.0})
        release.clear()
        first.send(post(CHAT, path=CHATS))  # the connection is open
        assert (await first.head())[0] == 200
        await until_holds(first, b"one")
        monkeypatch.setattr(shared_run, "MAX_COPIED_BYTES", len(event("one")))
        late.send(post(CHAT, path=CHATS))
        await until(lambda: shared(agent) == 3)
        further = await sent(agent, CHAT, path=CHATS)
        await until(lambda: len(gpu.requests) == 3)  # the copies for one more client would be too large
        for client in (first, late, further):
            client.close()
        await asyncio.wait_for(gpu.closed_by_client.wait(), PATIENCE_S)


async def stalled(agent: Agent, body: bytes = CHAT, path: str = CHATS) -> RawClient:
    """A client that sends a request and does not read the response yet."""
    client = await RawClient.connect(agent.traffic)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(post(body, path=path))
    return client


async def test_a_client_that_reads_slower_than_others_is_told_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_run, "MAX_BEHIND_BYTES", 10**9)
    monkeypatch.setattr(shared_run, "MAX_COPIED_BYTES", 200_000)
    size_bytes = 8_000_000

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(size_bytes // 64_000):
            writer.write(chunk(event("x" * 64_000)))
            await writer.drain()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with sharing(tmp_path, streams) as (agent, gpu):
        slow, fast = await stalled(agent), await sent(agent, CHAT, path=CHATS)
        assert len((await fast.answer()).body) > size_bytes
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = (await slow.answer()).body
        assert b"reads the stream slower" in received[-500:]
        assert len(received) < size_bytes
        assert len(gpu.requests) == 1
        alone = await stalled(agent)
        # The engine waits for the only client.
        await until(lambda: any(not each.transport.is_reading() for each in agent.upstreams()))
        alone.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await alone.answer()).body) > size_bytes
        for client in (slow, fast, alone):
            client.close()


async def test_clients_that_do_not_read_hold_pieces_of_large_responses_and_the_runs_a_bounded_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = json.dumps({"choices": [], "data": [], "text": "x" * 12_000_000}).encode()
    monkeypatch.setattr(run_memory, "MAX_TENANT_BYTES", 3 * len(large))
    largest, write = 0, ClientTransport.write

    def measured(transport: ClientTransport, data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(data))
        write(transport, data)

    monkeypatch.setattr(ClientTransport, "write", measured)

    async def embeds_large(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(large), large))

    bodies = [json.dumps({"model": MODEL, "input": str(number)}).encode() for number in range(2)]
    release = asyncio.Event()
    release.set()
    async with sharing(tmp_path, answers_after(release, embeds_large)) as (agent, gpu):
        held = agent.service._shared_runs._memory.by_tenant
        slow = [await stalled(agent, bodies[0], EMBEDDINGS) for _ in range(2)]
        slow.append(await stalled(agent, bodies[1], EMBEDDINGS))
        # Two runs, each held once.
        await until(lambda: held.total() > 2 * (len(large) - run_memory.PIECE_BYTES) - 1)
        await until(lambda: agent.held() == 0)
        assert (largest < 2 * run_memory.PIECE_BYTES, len(gpu.requests)) == (True, 2)
        monkeypatch.setattr(run_memory, "MAX_TENANT_BYTES", 2 * len(large))
        # There is no room for a third one: its only client receives it as it arrives.
        third = json.dumps({"model": MODEL, "input": "2"}).encode()
        assert (await ask(agent, body=third, path=EMBEDDINGS)).body == large
        assert len(gpu.requests) == 3
        # Of several clients, each has a run of its own.
        release.clear()
        several = [await sent(agent, third, path=EMBEDDINGS) for _ in range(2)]
        await until(lambda: len(gpu.requests) == 4 and shared(agent) == 2)
        release.set()
        for client in several:
            assert (await client.answer()).body == large
            client.close()
        assert len(gpu.requests) == 6
        slow.pop().close()
        for client in slow:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await client.answer()).body == large
            client.close()
        await until(lambda: not held)


async def test_the_failure_of_the_first_run_does_not_fail_all(tmp_path: Path) -> None:
    release, runs = asyncio.Event(), list[ReceivedRequest]()

    async def fails_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        # Agents of other tests may probe an engine that had the same port before.
        if received.body != BODY:
            return
        runs.append(received)
        await release.wait()
        if len(runs) == 1:
            writer.write(b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n{}")
        else:
            await embeds(e, received, writer)

    async with sharing(tmp_path, fails_once) as (agent, _):
        clients = [await sent(agent) for _ in range(3)]
        await until(lambda: shared(agent) == 2)
        release.set()
        assert [(await client.answer()).status for client in clients] == [200] * 3
        assert len(runs) == 2


async def test_a_change_of_policy_ends_runs_of_revoked_keys_alone(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        keys = with_tenants(agent, "a", "b")
        kept, revoked = [await sent(agent, BODY, f"Authorization: Bearer {keys[name]}") for name in "ab"]
        await until(lambda: len(gpu.requests) == 2)
        policy = agent.config.policy
        tenants = {name: tenant for name, tenant in policy.tenants.items() if name != "b"}
        agent.config.policy = replace(policy, tenants=tenants)
        assert (await revoked.answer()).status == 401
        release.set()
        assert (await kept.answer()).status == 200
        kept.close()
        revoked.close()


async def test_a_request_after_a_change_of_versions_does_not_share_an_earlier_run(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with (
        engine(answers_after(release, embeds)) as gpu,
        running_agent(tmp_path, [gpu.address], models=(MODEL, "v2"), slots=8) as agent,
    ):
        policy = agent.config.policy
        models = policy.models | {"v2": replace(policy.models[MODEL], name="v2")}
        agent.metrics.use_names(models, policy.regions)
        clients = []
        for version in (MODEL, "v2", "v2"):
            versions = {"embed": ModelVersions("embed", (Version(version, 100.0),))}
            agent.config.policy = replace(
                policy, models=models, versions=versions, coalescing=Coalescing(("openai-*",))
            )
            clients.append(await sent(agent, BODY.replace(MODEL.encode(), b"embed")))
            await until(lambda: len(gpu.requests) + shared(agent) == len(clients))
        assert [json.loads(each.body)["model"] for each in gpu.requests] == [MODEL, "v2"]
        release.set()
        assert [(await client.answer()).status for client in clients] == [200] * 3
        for client in clients:
            client.close()


async def test_a_change_of_policy_does_not_widen_the_data_class_of_a_run(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        keys, policy = with_tenants(agent, "a"), agent.config.policy
        of_class = {name: replace(policy.tenants["a"], data_class=name) for name in ("personal", "open")}
        agent.config.policy = replace(agent.config.policy, tenants={"a": of_class["personal"]})
        client = await sent(agent, BODY, f"Authorization: Bearer {keys['a']}")
        await until(lambda: len(gpu.requests) == 1)
        # The class of the tenant is not that of the sender, which a token may have narrowed.
        agent.config.policy = replace(agent.config.policy, tenants={"a": of_class["open"]})
        (run,) = agent.proxy.active
        await until(lambda: run.context.policy is agent.config.policy)
        assert run.context.facts.data_class == "personal"
        release.set()
        assert (await client.answer()).status == 200
        client.close()


async def test_tenants_share_runs_only_if_the_policy_names_both(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        keys = with_tenants(agent, "a", "b", "other")
        coalescing = Coalescing(("openai-*",), shared_by=("a", "b"))
        agent.config.policy = replace(agent.config.policy, coalescing=coalescing)
        clients = {}
        for name in ("a", "b", "other"):
            clients[name] = await sent(agent, BODY, f"Authorization: Bearer {keys[name]}")
            await until(lambda: shared(agent) + len(gpu.requests) == len(clients))
        assert (shared(agent), len(gpu.requests)) == (1, 2)
        policy = agent.config.policy
        tenants = {name: tenant for name, tenant in policy.tenants.items() if name != "a"}
        agent.config.policy = replace(policy, tenants=tenants)
        assert (await clients["a"].answer()).status == 401
        await until(lambda: len(gpu.requests) == 3)  # b is not refused with the first client
        release.set()
        assert [(await clients[name].answer()).status for name in ("b", "other")] == [200, 200]
        for client in clients.values():
            client.close()


async def test_a_cookie_of_the_engine_is_for_the_sender_of_the_run_alone(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def sets_cookie(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nSet-Cookie: of=sender\r\nContent-Length: 11\r\n\r\n{"data":[]}')

    async with sharing(tmp_path, answers_after(release, sets_cookie)) as (agent, gpu):
        keys = with_tenants(agent, "a", "b")
        coalescing = Coalescing(("openai-*",), shared_by=("a", "b"))
        agent.config.policy = replace(agent.config.policy, coalescing=coalescing)
        clients = []
        for name in "ab":
            clients.append(await sent(agent, BODY, f"Authorization: Bearer {keys[name]}"))
            await until(lambda: len(gpu.requests) + shared(agent) == len(clients))
        release.set()
        answers = [await client.answer() for client in clients]
        assert [each.headers.get("set-cookie") for each in answers] == ["of=sender", None]
        for client in clients:
            client.close()


async def test_a_shared_stream_has_no_limits_of_its_sender_and_ends_with_a_clients_own_key(tmp_path: Path) -> None:
    release, streams = two_events()
    async with sharing(tmp_path, streams) as (agent, gpu):
        keys = with_tenants(agent, "a", "b")
        policy = agent.config.policy
        limited = replace(policy.tenants["a"], quota=Quota(100.0, None, None))
        policy = replace(policy, tenants={**policy.tenants, "a": limited})
        agent.config.policy = replace(policy, coalescing=Coalescing(("openai-*",), shared_by=("a", "b")))
        first, joined = [await sent(agent, CHAT, f"Authorization: Bearer {keys[name]}", path=CHATS) for name in "ab"]
        (_, own), (_, others) = await first.head(), await joined.head()
        assert any(name.startswith("x-ratelimit-") for name in own)
        assert not any(name.startswith("x-ratelimit-") for name in others)
        assert await until_holds(joined, b"one") == event("one")
        policy = agent.config.policy
        agent.config.policy = replace(policy, tenants={"a": policy.tenants["a"]})
        release.set()
        assert await until_holds(first, b"[DONE]")
        received = await until_holds(joined, b"invalid_api_key")
        assert b"two" not in received
        assert len(gpu.requests) == 1
        for client in (first, joined):
            client.close()


async def test_other_tenants_texts_and_routes_run_by_themselves(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds), "openai-embeddings") as (agent, gpu):
        keys = with_tenants(agent, "a", "b")
        of_tenants = [await sent(agent, BODY, f"Authorization: Bearer {key}") for key in keys.values()]
        other = await sent(agent, BODY.replace(b"same", b"other"))
        await until(lambda: len(gpu.requests) == 3)
        chats = [await sent(agent, BODY, path="/v1/completions")]
        beta = await sent(agent, BODY, "OpenAI-Beta: x")
        await until(lambda: len(gpu.requests) == 5)
        assert gpu.requests[-1].header("openai-beta") == "x"
        versions = {"embed": ModelVersions("embed", (Version(MODEL, 100.0),))}
        agent.config.policy = replace(agent.config.policy, versions=versions)
        body = BODY.replace(MODEL.encode(), b"embed")
        sessions = [await sent(agent, body, f"X-Session-Id: {session}") for session in "ab"]
        await until(lambda: len(gpu.requests) == 7)
        routes = tuple(replace(each, methods=frozenset({"GET", "POST"})) for each in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=routes)
        got = await RawClient.connect(agent.traffic)
        got.send(post(BODY.replace(b"same", b"other"), path=EMBEDDINGS).replace(b"POST", b"GET", 1))
        await until(lambda: len(gpu.requests) == 8)
        assert shared(agent) == 0
        release.set()
        for client in (*of_tenants, other, beta, got, *chats, *sessions):
            assert (await client.answer()).status == 200
            client.close()


@pytest.mark.parametrize(
    ("route", "fields", "is_deterministic"),
    [
        ("openai-embeddings", {"input": "a"}, True),
        ("openai-chat-completions", {"messages": []}, False),
        ("openai-chat-completions", {"messages": [], "temperature": 0}, True),
        ("openai-chat-completions", {"messages": [], "temperature": 0.0}, True),
        ("openai-chat-completions", {"messages": [], "temperature": False}, False),
        ("openai-chat-completions", {"messages": [], "temperature": 0, "stream": True}, True),
        ("openai-chat-completions", {"messages": [], "temperature": 0, "x": "y" * 70_000}, False),
        ("openai-images-generations", {"prompt": "a", "seed": 1}, True),
        ("openai-images-generations", {"prompt": "a", "seed": -1}, False),
        ("openai-images-generations", {"prompt": "a", "seed": 0xFFFFFFFF}, False),
        ("openai-images-generations", {"prompt": "a", "seed": True}, False),
        ("openai-responses", {"input": "a", "temperature": 0}, False),
        ("openai-audio-transcriptions", {"temperature": 0}, False),
    ],
)
def test_which_requests_are_deterministic(route: str, fields: dict[str, Any], is_deterministic: bool) -> None:
    (found,) = [each for each in OPENAI_ROUTES if each.name == route]
    request = deterministic_request(found, json.dumps(fields).encode())
    assert (request is not None) is is_deterministic
    assert request is None or request.is_stream is fields.get("stream", False)
    assert deterministic_request(found, b"{") is deterministic_request(found, b"[]") is None


def test_requests_are_equal_whatever_the_order_of_fields_but_not_of_what_is_in_them() -> None:
    (chat,) = [each for each in OPENAI_ROUTES if each.name == "openai-chat-completions"]

    def canonical(*fields: str) -> bytes:
        found = deterministic_request(chat, f"{{{', '.join(fields)}}}".encode())
        assert found is not None
        return found.body

    zero, tools = '"temperature": 0', '"tools": [{"name": "f", "parameters": {"a": 1, "b": 2}}]'
    assert canonical(zero, tools) == canonical(tools, zero)
    # An engine renders them into other prompts, and its grammar produces fields in another order.
    assert canonical(zero, tools) != canonical(zero, '"tools": [{"name": "f", "parameters": {"b": 2, "a": 1}}]')
    assert canonical(zero, tools) != canonical(zero, '"tools": [{"parameters": {"a": 1, "b": 2}, "name": "f"}]')
    assert canonical(zero, '"x": 1') != canonical(zero, '"x": 1.0')
    assert canonical(zero, r'"x": "\u00e9"') == canonical(zero, '"x": "é"')


@pytest.mark.parametrize(
    ("module", "name", "limit_bytes", "runs"),
    [(traffic_service, "MAX_RESPONSE_BYTES", 20, 3), (shared_run, "MAX_COPIED_BYTES", 60, 2)],
)
async def test_requests_for_a_large_response_run_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, limit_bytes: int, runs: int
) -> None:
    monkeypatch.setattr(module, name, limit_bytes)
    release = asyncio.Event()
    async with sharing(tmp_path, answers_after(release, embeds)) as (agent, gpu):
        clients = [await sent(agent) for _ in range(2)]
        await until(lambda: shared(agent) == 1 and len(gpu.requests) == 1)
        release.set()
        answers = [await client.answer() for client in clients]
        assert [(each.status, json.loads(each.body)["text"]) for each in answers] == [(200, "same")] * 2
        assert len(gpu.requests) == runs
        await until(lambda: agent.held() == 0)
        for client in clients:
            client.close()
