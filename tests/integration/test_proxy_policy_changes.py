"""A new policy ends every open request that it does not permit, at the origin and at the serving region."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from regional_agent.http.limits import Limits
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.websocket.websocket_frames import BINARY, CLOSE, POLICY_VIOLATION
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, answers, answers_after, ask, code, full, never_responds, streams_forever
from tests.support.planet import EU_ONLY, MODEL, plan, policy
from tests.support.sockets import RawClient, engine, post
from tests.support.tunnels import UPGRADE, echoing
from tests.support.uploads import LIMITS, TRANSCRIPTIONS, taker, upload_head
from tests.support.wait import until
from tests.support.websockets import frame, read_frame

KEY = "Authorization: Bearer red"
NOT_HERE = ResidencyRule("not here", deny=frozenset({"eu-de"}))
NOT_IN_MADRID = ResidencyRule("not in Madrid", deny=frozenset({"eu-es"}))


def with_key(*rules: ResidencyRule, key: str = "red", data_class: str = "open") -> Policy:
    """The test fleet's policy, in which the tenant `open` has one key."""
    base = policy(*rules)
    tenant = replace(base.tenants["open"], key_digests=(sha256(key.encode()).hexdigest(),), data_class=data_class)
    return replace(base, tenants=base.tenants | {"open": tenant})


CHANGES = pytest.mark.parametrize(
    ("change", "reason"),
    [(with_key(key="blue"), "invalid_api_key"), (with_key(NOT_HERE), "misdirected")],
    ids=["key revoked", "region forbidden"],
)


def revocations(agent: Agent) -> dict[tuple[str, str], float]:
    """`revocations_total` by state and reason."""
    return {
        (sample.labels["state"], sample.labels["reason"]): sample.value
        for family in agent.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "penstock_agent_revocations_total"
    }


async def ended(agent: Agent, state: str, reason: str) -> None:
    """Wait until the new policy has ended the only request and all reservations are released."""
    await until(lambda: agent.held() == agent.waiting() == 0)
    assert revocations(agent) == {(state, reason): 1.0}
    assert agent.counted() == {"revoked": 1.0}


@CHANGES
async def test_a_stream_ends_with_the_reason(tmp_path: Path, change: Policy, reason: str) -> None:
    log = AccessLog(tmp_path / "access.log", 0.0, Random(1))
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        agent.config.policy = with_key()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        agent.config.policy = change
        assert code((await client.chunk()).removeprefix(b"data: ")) == reason
        await gpu.closed_by_client.wait()
        await ended(agent, "streaming", reason)
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["outcome"], line["reason"], line["tenant"]) == ("revoked", reason, "open")


@CHANGES
async def test_a_tunnel_is_closed_on_both_sides(tmp_path: Path, change: Policy, reason: str) -> None:
    async with echoing() as (address, _), running_agent(tmp_path, [address]) as agent:
        agent.config.policy = with_key()
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + KEY.encode() + b"\r\n\r\n")
        await client.head()
        assert await read_frame(client.reader) == (BINARY, b"hello")
        agent.config.policy = change
        opcode, payload = await read_frame(client.reader)
        assert (opcode, payload[:2]) == (CLOSE, POLICY_VIOLATION.to_bytes(2, "big"))
        assert await client.closed()
        await ended(agent, "tunnel", reason)


@CHANGES
async def test_a_queued_request_is_refused(tmp_path: Path, change: Policy, reason: str) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address, KEY, policy=with_key()) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await until(lambda: agent.waiting() == 1)
        agent.config.policy = change
        assert code((await client.answer()).body) == reason
        # The new policy also ends the request that occupies the slot; if first, the queued one may have left the queue.
        assert revocations(agent).keys() & {(state, reason) for state in ("queued", "selecting", "awaiting")}


@CHANGES
async def test_a_request_without_a_response_yet_is_refused(tmp_path: Path, change: Policy, reason: str) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = with_key()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await until(lambda: bool(gpu.requests))
        agent.config.policy = change
        assert code((await client.answer()).body) == reason
        await gpu.closed_by_client.wait()
        await ended(agent, "awaiting", reason)


@CHANGES
async def test_an_upload_that_an_engine_reads_ends(tmp_path: Path, change: Policy, reason: str) -> None:
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        agent.config.policy = with_key()
        gpu.read_on.set()
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(64 << 20, KEY, f"x-model: {MODEL}", "content-type: audio/wav") + b"x" * (1 << 20))
        await until(lambda: gpu.body_bytes == 1 << 20)
        agent.config.policy = change
        assert code((await client.answer()).body) == reason
        await ended(agent, "awaiting", reason)
        assert agent.listener.state.bodies.bytes_kept == 0


@CHANGES
@pytest.mark.parametrize("path", ["/v1/chat/completions", TRANSCRIPTIONS])
async def test_an_incomplete_body_is_not_read_to_its_end(
    tmp_path: Path, change: Policy, reason: str, path: str
) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        agent.config.policy = with_key()
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(200_000, KEY, path=path) + b"x" * 100_000)
        await until(lambda: agent.listener.state.bodies.bytes_kept > 0)
        agent.config.policy = change
        assert code((await client.answer()).body) == reason
        assert not gpu.requests
        assert agent.listener.state.bodies.bytes_kept == 0


async def test_a_request_in_a_region_that_is_now_forbidden_ends_at_its_origin(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(streams_forever) as far,
        running_agent(tmp_path / "es", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY))
        await client.head()
        await client.chunk()
        origin.config.policy = replace(policy(NOT_IN_MADRID), anonymous_tenant="open")
        assert code((await client.chunk()).removeprefix(b"data: ")) == "residency_denied"
        await until(lambda: server.held() == 0)
        await ended(origin, "streaming", "residency_denied")
        assert server.counted() == {"client_left": 1.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [(with_key(key="blue"), "invalid_api_key"), (with_key(NOT_IN_MADRID), "residency_denied")],
    ids=["key revoked", "region forbidden"],
)
async def test_the_serving_region_ends_forwarded_requests_under_its_own_policy(
    tmp_path: Path, change: Policy, reason: str
) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(streams_forever) as far,
        engine(answers) as near,
        running_agent(tmp_path / "es", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "de", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        server.config.policy = origin.config.policy = with_key()
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY, KEY))
        await client.head()
        await client.chunk()
        server.config.policy = change
        assert code((await client.chunk()).removeprefix(b"data: ")) == reason
        await ended(server, "streaming", reason)
        await until(lambda: origin.counted() == {"revoked": 1.0})
        status, headers, _ = await ask(origin, KEY)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de"), "the serving region refuses later ones"
        assert len(far.requests) == 1


async def test_requests_that_a_new_policy_permits_continue(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, running_agent(tmp_path, [gpu.address], slots=1, queue=0) as agent:
        agent.endpoints.pools[MODEL].prior_s = 0.1
        agent.endpoints.pools[MODEL].recount()
        agent.config.policy = with_key()
        running, waiting = [asyncio.create_task(ask(agent, KEY)) for _ in range(2)]
        await until(lambda: agent.waiting() == 1)
        agent.config.policy = with_key(NOT_IN_MADRID)
        await until(lambda: all(entry.context.policy is agent.config.policy for entry in contexts(agent)))
        release.set()
        assert {(await running).status, (await waiting).status} == {200}
        assert revocations(agent) == {}


async def test_a_started_request_outlives_its_model(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = with_key()
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await client.head()
        agent.config.policy = replace(with_key(), models={})
        await until(lambda: all(entry.context.policy is agent.config.policy for entry in contexts(agent)))
        assert agent.held() == 1
        client.close()


CHAT_ROUTE = "openai-chat-completions"
WITHDRAWALS = pytest.mark.parametrize(
    ("without", "reason"),
    [
        (lambda policy: replace(policy, models={}), "model_not_found"),
        (lambda policy: replace(policy, routes=tuple(r for r in policy.routes if r.name != CHAT_ROUTE)), "not_found"),
    ],
    ids=["model", "route"],
)


@WITHDRAWALS
async def test_a_queued_request_does_not_start_once_its_model_or_route_is_removed(
    tmp_path: Path, without: Callable[[Policy], Policy], reason: str
) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, first):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        agent.config.policy = without(agent.config.policy)
        first.close()
        assert code((await client.answer()).body) == reason
        assert len(gpu.requests) == 1


@WITHDRAWALS
async def test_a_forwarded_request_does_not_start_once_its_model_or_route_is_removed(
    tmp_path: Path, without: Callable[[Policy], Policy], reason: str
) -> None:
    async with (
        engine(streams_forever) as far,
        full(tmp_path / "far", far.address, region="us-east") as (server, first),
        running_agent(tmp_path / "near", [], peers={"us-east": server.peer}) as origin,
    ):
        before = origin.config.policy
        queued = await RawClient.connect(origin.traffic)
        queued.send(post(BODY))
        await until(lambda: server.waiting() == 1)
        withdrawn = without(before)
        server.config.policy = withdrawn
        first.close()
        assert (await queued.head())[0] >= 400
        queued.close()
        await until(lambda: server.held() == 0)
        assert (await ask(origin)).status >= 400, "the origin has the earlier policy, and forwards the request"
        assert len(far.requests) == 1
        origin.config.policy = withdrawn
        assert code((await ask(origin)).body) == reason
        server.config.policy = origin.config.policy = before
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY))
        assert (await client.head())[0] == 200, "the model and the route are offered again"
        client.close()


async def test_a_new_data_class_of_a_tenant_applies_at_once(tmp_path: Path) -> None:
    """A cached evaluation of an earlier request must not admit new ones under the earlier data class."""
    async with (
        engine(streams_forever) as gpu,
        full(tmp_path, gpu.address, KEY, policy=with_key(EU_ONLY), region="us-east") as (agent, _),
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, KEY))
        await until(lambda: agent.waiting() == 1)
        agent.config.policy = with_key(EU_ONLY, data_class="personal")
        agent.queue.room_appeared()
        assert code((await client.answer()).body) == "misdirected"
        assert code((await ask(agent, KEY)).body) == "misdirected"


async def test_the_serving_region_applies_its_own_data_class(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", us_east=1.0)
    async with (
        engine(answers) as far,
        engine(answers) as near,
        running_agent(tmp_path / "us", [far.address], region="us-east") as server,
        running_agent(tmp_path / "de", [near.address], plan=away, peers={"us-east": server.peer}) as origin,
    ):
        origin.config.policy = with_key()
        origin.location = Location("DE")
        server.config.policy = with_key(EU_ONLY, data_class="personal")
        assert (await ask(origin, KEY)).headers["x-penstock-region"] == "eu-de"
        assert not far.requests


async def test_a_tunnel_ends_at_its_maximum_age(tmp_path: Path) -> None:
    limits = Limits(max_tunnel_s=0.5, idle_linger_s=0.0)
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with echoing() as (address, _), running_agent(tmp_path, [address], limits=limits, access_log=log) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        await client.head()

        async def talk() -> None:
            while True:
                client.send(frame(b"x", BINARY))
                await read_frame(client.reader)

        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            async with asyncio.timeout(30.0):
                await talk()
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"ok": 1.0}
    log.close()
    assert json.loads((tmp_path / "access.log").read_text())["reason"] == "deadline_passed"


def contexts(agent: Agent) -> list[Any]:
    return list(agent.proxy.active)
