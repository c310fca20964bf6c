"""The memory of large bodies and the quotas of uploads: one tenant's uploads do not lock out the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.policy.kinds.tenants import Quota, Tenant
from regional_agent.http.limits import Limits
from regional_agent.http.waiting_request import WaitingRequest
from regional_agent.jobs.storage.job_storage import JobStorage
from regional_agent.shared_load import shared_entries
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, answers_after, code
from tests.support.jobs import job_store
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, engine
from tests.support.uploads import taker, upload_head
from tests.support.wait import PATIENCE_S, until

CHAT = "/v1/chat/completions"
MEMORY = Limits(max_kept_bytes=800_000, idle_linger_s=0.0)
PART = 200_000


@asynccontextmanager
async def shared_agent(
    directory: Path, engines: list[Address], quotas: Mapping[str, Quota] | None = None, **settings: Any
) -> AsyncIterator[Agent]:
    """Run an agent with the tenants `a` and `b`, whose keys are their names."""
    async with running_agent(directory, engines, **{"anonymous": None, "limits": MEMORY, **settings}) as agent:
        set_tenants(agent, quotas or {})
        yield agent


def set_tenants(agent: Agent, quotas: Mapping[str, Quota]) -> None:
    tenants = {
        name: Tenant(name, "open", (sha256(name.encode()).hexdigest(),), quota=quotas.get(name)) for name in ("a", "b")
    }
    agent.config.policy = msgspec.structs.replace(
        agent.config.policy, tenants={**agent.config.policy.tenants, **tenants}
    )


def large(tenant: str, size_bytes: int = PART, path: str = CHAT, **fields: str) -> tuple[bytes, bytes]:
    """Head and body of a large request."""
    body = json.dumps({"model": MODEL, "prompt": "x" * size_bytes, **fields}).encode()
    return upload_head(len(body), f"Authorization: Bearer {tenant}", path=path), body


async def unfinished(agent: Agent, tenant: str, size_bytes: int = PART) -> RawClient:
    """Send an upload without its last byte; returns when the agent holds the body or has refused the upload."""
    before = agent.listener.state.bodies.bytes_kept
    client = await RawClient.connect(agent.traffic)
    head, body = large(tenant, size_bytes)
    client.send(head + body[:-1])
    expected = before + len(body) - 70_000
    await until(lambda: agent.listener.state.bodies.bytes_kept > expected or is_answered(client))
    return client


async def fill(agent: Agent, tenant: str) -> list[RawClient]:
    """Start unfinished uploads until the agent refuses one for lack of memory."""
    clients = [await unfinished(agent, tenant)]
    while not is_answered(clients[-1]):
        clients.append(await unfinished(agent, tenant))
    status, headers, body = await clients.pop().answer()
    assert (status, code(body)) == (429, "saturated")
    assert int(headers["retry-after"]) >= 1
    return clients


def is_answered(client: RawClient) -> bool:
    return bool(client.reader._buffer)  # type: ignore[attr-defined]


async def whole(agent: Agent, tenant: str, size_bytes: int = PART) -> RawClient:
    client = await RawClient.connect(agent.traffic)
    client.send(b"".join(large(tenant, size_bytes)))
    return client


async def released(agent: Agent) -> None:
    await until(lambda: agent.held() == 0 and agent.listener.state.bodies.bytes_kept == 0)


async def test_unfinished_uploads_of_one_tenant_do_not_block_another(tmp_path: Path) -> None:
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address]) as agent:
        blocking = await fill(agent, "a")
        served = await whole(agent, "b", 3 * PART // 2)
        assert (await served.answer()).status == 200
        refused = [client for client in blocking if is_answered(client)]
        assert 1 <= len(refused) < len(blocking) - 1, "no more than it takes"
        for client in refused:
            assert code((await client.answer()).body) == "saturated"
            assert await client.closed()
        for client in blocking:
            client.close()
        await released(agent)


async def test_a_tenant_keeps_its_share_of_the_memory(tmp_path: Path) -> None:
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address]) as agent:
        kept = await unfinished(agent, "b", 3 * PART // 2)
        blocking = await fill(agent, "a")
        kept.send(b"}")
        assert (await kept.answer()).status == 200
        for client in blocking:
            client.close()
        await released(agent)


async def test_a_sent_body_releases_memory_and_its_request_continues(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, shared_agent(tmp_path, [gpu.address], slots=8) as agent:
        sent = [await whole(agent, "a", 3 * PART)]
        await until(lambda: len(gpu.requests) == 1)
        assert agent.listener.state.bodies.bytes_kept > 500_000
        other_client = await whole(agent, "b", 3 * PART // 2)
        await until(lambda: len(gpu.requests) == 2)
        release.set()
        for client in (*sent, other_client):
            assert (await client.answer()).status == 200
        await released(agent)


async def test_a_queued_body_is_displaced(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with (
        engine(answers_after(release)) as gpu,
        shared_agent(tmp_path, [gpu.address], slots=1, queue=0) as agent,
    ):
        running = await whole(agent, "b", 10)
        await until(lambda: len(gpu.requests) == 1)
        queued = await whole(agent, "a", 3 * PART)
        await until(lambda: agent.waiting() == 1)
        other_client = await whole(agent, "b", 3 * PART // 2)
        assert code((await queued.answer()).body) == "saturated"
        release.set()
        assert (await running.answer()).status == (await other_client.answer()).status == 200
        await released(agent)
        assert agent.waiting() == 0


async def test_a_body_is_displaced_while_its_objects_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_entries, "TIMEOUT_S", PATIENCE_S)
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    redis_url = f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], redis_url=redis_url) as agent:
        displaced = await RawClient.connect(agent.traffic)
        displaced.send(b"".join(large("a", 3 * PART, "/v1/responses", previous_response_id="resp_1")))
        await until(lambda: any(isinstance(each._handler, WaitingRequest) for each in agent.listener.connections))
        other_client = await whole(agent, "b", 3 * PART // 2)
        status, headers, body = await displaced.answer()
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        assert (await other_client.answer()).status == 200
        await released(agent)
    silent.close()


async def test_a_body_is_displaced_while_a_job_store_does_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def waits(storage: JobStorage, path: str, content: bytes) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(JobStorage, "put", waits)
    store = job_store(tmp_path / "store")
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], job_store=store) as agent:
        displaced = await RawClient.connect(agent.traffic)
        head, body = large("a", 3 * PART)
        displaced.send(head.replace(b"\r\n\r\n", b"\r\nPrefer: respond-async\r\n\r\n") + body)
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        other_client = await whole(agent, "b", 3 * PART // 2)
        status, _, body = await displaced.answer()
        assert (status, code(body)) == (429, "saturated")
        # What holds the body ends.
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        assert (await other_client.answer()).status == 200
        await released(agent)


@pytest.mark.parametrize("later", [b"", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", large("a")[0] + b"x" * 70_000])
async def test_a_pipelined_body_is_displaced_and_its_connection_closed_in_order(tmp_path: Path, later: bytes) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, shared_agent(tmp_path, [gpu.address], slots=8) as agent:
        client = await whole(agent, "a", 10)
        await until(lambda: len(gpu.requests) == 1)
        (connection,) = agent.listener.connections
        connection.data_received(b"".join(large("a", 3 * PART)) + later)
        assert agent.listener.state.bodies.bytes_kept > 500_000
        other_client = await whole(agent, "b", 3 * PART // 2)
        await until(lambda: len(gpu.requests) == 2)
        assert agent.listener.state.bodies.bytes_kept < 400_000
        refused = connection.sequencer._final_refusal
        assert refused is not None
        assert refused.request is not None
        assert refused.request.body == b"", "what is not counted is not held"
        release.set()
        assert (await other_client.answer()).status == 200
        assert (await client.answer()).status == 200
        assert code((await client.answer()).body) == "saturated"
        assert await client.closed()
        await released(agent)


async def test_several_bodies_of_one_connection_are_displaced_at_once(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, shared_agent(tmp_path, [gpu.address], slots=8) as agent:
        client = await whole(agent, "a", 10)
        await until(lambda: len(gpu.requests) == 1)
        (connection,) = agent.listener.connections
        connection.data_received(b"".join((*large("a", 2 * PART), *large("a", 3 * PART // 2))))
        other_client = await RawClient.connect(agent.traffic)
        await until(lambda: len(agent.listener.connections) == 2)
        (other,) = agent.listener.connections - {connection}
        other.data_received(b"".join(large("b", 3 * PART // 2)))
        await until(lambda: len(gpu.requests) == 2)
        release.set()
        assert (await other_client.answer()).status == 200
        assert (await client.answer()).status == 200
        assert code((await client.answer()).body) == "saturated"
        assert await client.closed()
        await released(agent)


async def test_an_upload_counts_towards_its_quota_from_its_head_on(tmp_path: Path) -> None:
    quotas = {"a": Quota(requests_per_s=None, burst_requests=1, concurrent=2)}
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], quotas) as agent:
        first, second = [await unfinished(agent, "a") for _ in range(2)]
        assert agent.budgets.running("a") == 2
        third = await RawClient.connect(agent.traffic)
        third.send(large("a")[0])
        assert code((await third.answer()).body) == "rate_limit_exceeded", "before any of its body"
        first.close()
        await until(lambda: agent.budgets.running("a") == 1)
        second.send(b"}")
        assert (await second.answer()).status == 200
        await until(lambda: agent.budgets.running("a") == 0)
        assert len(gpu.requests) == 1
        await released(agent)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{" + b" " * 100_000 + b"}", 400),
        (json.dumps({"model": "none", "prompt": "x" * 100_000}).encode(), 404),
    ],
    ids=["no-model", "unknown-model"],
)
async def test_a_quota_held_since_the_head_is_released_when_the_request_is_refused(
    tmp_path: Path, body: bytes, status: int
) -> None:
    quotas = {"a": Quota(requests_per_s=None, burst_requests=1, concurrent=1)}
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], quotas) as agent:
        for _ in range(3):
            client = await RawClient.connect(agent.traffic)
            client.send(upload_head(len(body), "Authorization: Bearer a", path=CHAT) + body)
            assert (await client.answer()).status == status
            assert agent.budgets.running("a") == 0
            client.close()
        await released(agent)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"f4240\r\n" + b"x" * 1_000_000])
async def test_a_quota_held_since_the_head_is_released_when_the_body_is_bad(tmp_path: Path, rest: bytes) -> None:
    quotas = {"a": Quota(requests_per_s=None, burst_requests=1, concurrent=1)}
    limits = msgspec.structs.replace(MEMORY, max_body_bytes=500_000)
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], quotas, limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(None, "Authorization: Bearer a", path=CHAT) + b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
        await until(lambda: agent.budgets.running("a") == 1)
        client.send(rest)
        assert (await client.answer()).status in (400, 413)
        assert agent.budgets.running("a") == 0
        await released(agent)


async def test_a_quota_goes_to_the_tenant_that_a_new_policy_gives_the_key(tmp_path: Path) -> None:
    quota = Quota(requests_per_s=None, burst_requests=1, concurrent=1)
    async with engine(answers) as gpu, shared_agent(tmp_path, [gpu.address], {"a": quota, "b": quota}) as agent:
        client = await unfinished(agent, "a")
        tenants = agent.config.policy.tenants
        swapped = {**tenants, "b": msgspec.structs.replace(tenants["b"], key_digests=tenants["a"].key_digests)}
        del swapped["a"]
        agent.config.policy = msgspec.structs.replace(agent.config.policy, tenants=swapped)
        client.send(b"}")
        assert (await client.answer()).status == 200
        assert (agent.budgets.running("a"), agent.budgets.running("b")) == (0, 0)
        await released(agent)


async def test_an_audio_upload_that_was_started_holds_the_quota_of_its_tenant(tmp_path: Path) -> None:
    quotas = {"a": Quota(requests_per_s=None, burst_requests=1, concurrent=1)}
    async with taker() as gpu, shared_agent(tmp_path, [gpu.address], quotas) as agent:
        client = await RawClient.connect(agent.traffic)
        head = upload_head(300_000, "Authorization: Bearer a", "Content-Type: audio/wav", f"X-Model: {MODEL}")
        client.send(head + b"x" * 200_000)
        await until(lambda: bool(gpu.head))
        assert agent.budgets.running("a") == 1
        second = await RawClient.connect(agent.traffic)
        second.send(head)
        assert code((await second.answer()).body) == "rate_limit_exceeded"
        gpu.read_on.set()
        client.send(b"x" * 100_000)
        assert (await client.answer()).status == 200
        assert agent.budgets.running("a") == 0
        await released(agent)


async def test_a_forwarded_body_counts_for_the_tenant_of_its_route_context(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        taker() as far,
        shared_agent(tmp_path / "es", [far.address], region="eu-es") as server,
        shared_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        head = upload_head(300_000, "Authorization: Bearer b", "Content-Type: audio/wav", f"X-Model: {MODEL}")
        client.send(head + b"x" * 200_000)
        await until(lambda: bool(far.head))
        (connection,) = server.peer_listener.connections
        assert connection.sequencer.serving is not None
        assert connection.sequencer.serving.accepted_head is not None
        assert connection.sequencer.serving.accepted_head.tenant == "b"
        far.read_on.set()
        client.send(b"x" * 100_000)
        assert (await client.answer()).status == 200
        await released(agent)
