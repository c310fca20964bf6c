"""Requests in the admission queue of an agent: each way to leave the queue, and the release of all reservations."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.region_health import RegionState
from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S
from penstock.policy.kinds.tenants import Batch, Tier
from penstock.retries.retry_rules import MAX_ATTEMPTS
from regional_agent.http.drain import drain_all
from tests.support.agents import Agent, running_agent
from tests.support.chats import (
    BODY,
    NOBODY,
    answers,
    ask,
    code,
    expect_service,
    full,
    is_busy,
    limit_queue,
    streams_forever,
)
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until


async def one_more(agent: Agent, *headers: str) -> RawClient:
    """Send one more request, which is queued."""
    before = agent.waiting()
    client = await RawClient.connect(agent.traffic)
    client.send(post(BODY, *headers))
    await until(lambda: agent.waiting() == before + 1)
    return client


def report_dead(agent: Agent) -> None:
    """Report that the only endpoint is dead."""
    for endpoint in agent.endpoints.every():
        endpoint.connection_failed()


async def test_a_request_without_a_free_slot_waits_and_gets_the_first(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as one_gpu,
        engine(streams_forever) as other_gpu,
        running_agent(tmp_path, [one_gpu.address, other_gpu.address], slots=1, queue=0) as agent,
    ):
        clients = [await RawClient.connect(agent.traffic) for _ in range(4)]
        for client in clients[:2]:
            client.send(post(BODY))
            await client.head()
        for number, client in enumerate(clients[2:], 1):
            client.send(post(BODY))
            await until(lambda number=number: agent.waiting() == number)
        assert (len(one_gpu.requests), len(other_gpu.requests)) == (1, 1)
        clients[2].close()
        await until(lambda: agent.waiting() == 1)
        clients[1].close()
        assert (await clients[3].head())[0] == 200
        assert (agent.waiting(), agent.held(), agent.counted()) == (0, 2, {"client_left": 2})
        for client in clients:
            client.close()
        await until(lambda: agent.held() == 0)


async def test_a_wait_beyond_the_deadline_is_429_at_once(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], slots=1, queue=0) as agent:
        expect_service(agent, 5.5)
        clients = [await RawClient.connect(agent.traffic) for _ in range(9)]
        for client in clients:
            client.send(post(BODY))
        await until(lambda: agent.counted().get("refused", 0) > 0)
        for _ in range(3):
            status, headers, body = await ask(agent)
            assert (status, code(body)) == (429, "saturated")
            assert int(headers["retry-after"]) >= 1
        assert len(gpu.requests) == 1
        for client in clients:
            client.close()
        await until(lambda: agent.held() == 0 and agent.waiting() == 0)


async def test_a_deadline_that_passes_while_waiting_is_504(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, "x-request-timeout-ms: 300"))
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (504, "deadline_passed")
        assert (agent.waiting(), agent.held(), agent.counted()) == (0, 1, {"expired": 1})
        assert agent.waited() == {"abandoned": 1}


async def test_a_client_that_leaves_the_queue_releases_everything(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, first):
        clients = [await one_more(agent) for _ in range(3)]
        for client in clients[:2]:
            client.close()
        await until(lambda: agent.waiting() == 1)
        first.close()
        assert (await clients[2].head())[0] == 200
        assert (len(gpu.requests), agent.held()) == (2, 1)
        clients[2].close()
        await until(lambda: agent.counted() == {"client_left": 4})
        assert agent.waited() == {"abandoned": 2, "dispatched": 1}


async def test_when_the_last_endpoint_fails_queued_requests_fail_over(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as near,
        engine(answers) as far,
        running_agent(tmp_path / "far", [far.address], region="us-east") as server,
        full(tmp_path / "near", near.address, peers={"us-east": server.peer}) as (agent, _),
    ):
        clients = [await one_more(agent) for _ in range(3)]
        assert not far.requests, "nobody was invited there"
        report_dead(agent)
        for client in clients:
            answer = await client.answer()
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "us-east")


async def test_when_the_last_endpoint_of_the_fleet_fails_queued_requests_get_503(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, _):
        clients = [await one_more(agent) for _ in range(3)]
        report_dead(agent)
        for client in clients:
            answer = await client.answer()
            assert (answer.status, code(answer.body)) == (503, "none_ready")
            assert int(answer.headers["retry-after"]) >= 1
        assert agent.waited() == {"abandoned": 3}


async def test_a_request_whose_slot_failed_keeps_its_place(tmp_path: Path) -> None:
    async def breaks_the_second(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(e.requests) == 2:
            for _ in range(2):
                agent.endpoints.pools[MODEL].endpoints[0].probed(ProbeOutcome.UNREADY)
            writer.close()
        else:
            await streams_forever(e, received, writer)

    async with (
        engine(breaks_the_second) as gpu,
        engine(streams_forever) as other,
        running_agent(tmp_path, [gpu.address, other.address], slots=1, queue=0) as agent,
    ):
        for endpoint in agent.endpoints.every():
            endpoint.service_s = 0.1
        agent.endpoints.pools[MODEL].recount()
        running = [await RawClient.connect(agent.traffic) for _ in range(2)]
        runs_on = {}
        for client in running:
            client.send(post(BODY))
            _, headers = await client.head()
            runs_on[headers["x-penstock-endpoint"]] = client
        clients = [await one_more(agent, f"x-request-id: r{n}") for n in range(2)]
        runs_on["gpu-0"].close()
        await until(lambda: len(gpu.requests) >= 2)
        assert gpu.requests[1].header("x-request-id") == "r0"
        await until(lambda: agent.waiting() == 2)
        runs_on["gpu-1"].close()
        assert (await clients[0].head())[0] == 200
        assert other.requests[1].header("x-request-id") == "r0", "not r1"
        for client in (*running, *clients):
            client.close()
        await until(lambda: agent.held() == agent.waiting() == 0)


async def test_a_stopping_agent_serves_queued_requests_within_its_grace(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, first):
        client = await one_more(agent)
        leaving = asyncio.create_task(drain_all([agent.listener], PATIENCE_S, agent.proxy.shut_down))
        await until(lambda: agent.listener.state.draining)
        first.close()
        assert (await client.head())[0] == 200
        client.close()
        assert await leaving == 0


async def test_an_agent_whose_grace_is_over_refuses_queued_requests(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, _):
        clients = [await one_more(agent) for _ in range(2)]
        assert await drain_all([agent.listener], 0.0, agent.proxy.shut_down) == 3
        await until(lambda: agent.held() == agent.waiting() == 0)
        for client in clients:
            answer = await client.answer()
            assert (answer.status, code(answer.body)) == (503, "shutting_down")
            assert (answer.headers["x-should-retry"], answer.headers["connection"]) == ("true", "close")
            assert await client.closed()
        assert agent.counted() == {"shutdown": 3}


async def test_higher_priority_is_served_first_and_metrics_show_the_queue(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, first):
        low = await one_more(agent, "x-request-id: low")
        config = agent.config
        tenants = {name: replace(tenant, priority=7) for name, tenant in config.policy.tenants.items()}
        config.policy = replace(config.policy, tenants=tenants)
        high = await one_more(agent, "x-request-id: high")
        first.close()
        assert (await high.head())[0] == 200
        assert [received.header("x-request-id") for received in gpu.requests[1:]] == ["high"]
        for client in (low, high):
            client.close()


def use_tier(agent: Agent, **fields: Any) -> None:
    """Give all tenants a tier."""
    config = agent.config
    tenants = {
        name: tenant.under(Tier("t", tenant.data_class, **fields)) for name, tenant in config.policy.tenants.items()
    }
    config.policy = replace(config.policy, tenants=tenants)


async def test_batch_requests_leave_slots_free_and_wait_behind_all_others(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], slots=4, queue=0) as agent:
        use_tier(agent, batch=Batch(max_use_percent=50.0))
        running = [await RawClient.connect(agent.traffic) for _ in range(2)]
        for client in running:
            client.send(post(BODY))
            assert (await client.head())[0] == 200
        batch = await one_more(agent, "x-request-id: batch")
        assert agent.queue.queues.waiting(MODEL) == 0, "a region that has only batch requests to do is not busy"
        use_tier(agent, priority=-5)
        for _ in range(2):
            running.append(await RawClient.connect(agent.traffic))
            running[-1].send(post(BODY))
            assert (await running[-1].head())[0] == 200
        last = await one_more(agent, "x-request-id: last")
        running.pop().close()
        assert (await last.head())[0] == 200
        for _ in range(2):
            running.pop().close()
        last.close()
        assert (await batch.head())[0] == 200
        assert [received.header("x-request-id") for received in gpu.requests[-2:]] == ["last", "batch"]
        for client in (*running, batch):
            client.close()
        await until(lambda: agent.held() == agent.waiting() == 0)


async def test_a_forwarded_request_of_a_high_priority_displaces_lower_ones_where_it_is_served(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as far,
        full(tmp_path / "far", far.address, region="us-east") as (server, first),
        running_agent(tmp_path / "near", [NOBODY], peers={"us-east": server.peer}) as origin,
    ):
        report_dead(origin)
        limit_queue(server, max_length=1)
        low = await one_more(server)
        config = origin.config
        tenants = {
            name: replace(tenant, priority=7, rules=Tier("gold", tenant.data_class, weight=2.0))
            for name, tenant in config.policy.tenants.items()
        }
        config.policy = replace(config.policy, tenants=tenants)
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY))
        status, _, body = await low.answer()
        assert (status, code(body)) == (429, "saturated")
        (waiting,) = server.queue.queues.here[MODEL].in_order()
        assert (waiting.priority, waiting.weight) == (7, 2.0), "as the origin signed them; here the tenant has none"
        first.close()
        assert (await client.head())[0] == 200
        client.close()
        await until(lambda: server.held() == origin.held() == 0)


async def test_a_forwarded_request_waits_within_its_remaining_deadline(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as far,
        engine(streams_forever) as near,
        full(tmp_path / "far", far.address, region="us-east") as (server, _),
        full(tmp_path / "near", near.address, peers={"us-east": server.peer}) as (origin, _),
    ):
        client = await one_more(origin)
        (waiting,) = origin.queue.queues.here[MODEL].in_order()
        waiting.item.context.received_at -= 12.0
        report_dead(origin)
        await until(lambda: server.waiting() == 1)
        (forwarded,) = server.queue.queues.here[MODEL].in_order()
        assert 0.0 < forwarded.leave_at - time.monotonic() <= DEFAULT_MAX_WAIT_S - 12.0
        client.close()


async def test_an_engine_that_rejects_one_request_still_receives_others(tmp_path: Path) -> None:
    async def picky(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (is_busy if received.header("x-request-id") == "unwelcome" else answers)(e, received, writer)

    async with engine(picky) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limit_queue(agent, max_wait_s=1.5)
        unwelcome = asyncio.create_task(ask(agent, "x-request-id: unwelcome"))
        await until(lambda: bool(gpu.requests))
        for _ in range(5):
            assert (await ask(agent))[0] == 200
        status, headers, body = await unwelcome
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        assert sum(received.header("x-request-id") == "unwelcome" for received in gpu.requests) > 1, (
            "it was tried again"
        )
        assert agent.held() == agent.waiting() == 0


async def test_a_request_that_engines_reject_as_busy_waits_as_long_as_policy_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.retries.busy_rest.BUSY_REST_S", 0.01)
    monkeypatch.setattr("penstock.retries.busy_rest.MAX_BUSY_REST_S", 0.01)

    async def busy_at_first(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (is_busy if len(e.requests) <= MAX_ATTEMPTS + 2 else answers)(e, received, writer)

    async with engine(busy_at_first) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        assert (await ask(agent))[0] == 200


async def test_requests_wait_for_an_endpoint_that_restarts(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [gpu.address], cold_start_s=300.0) as agent,
    ):
        (endpoint,) = agent.endpoints.every()
        report_dead(agent)
        clients = [await one_more(agent) for _ in range(3)]
        await asyncio.sleep(0.3)  # several polls of the queue
        assert agent.waiting() == 3
        assert not gpu.requests
        endpoint.probed(ProbeOutcome.GOOD)
        assert [(await client.answer()).status for client in clients] == [200] * 3
        assert (agent.waiting(), agent.held()) == (0, 0)


async def test_a_request_waits_for_a_region_that_has_not_answered_yet(tmp_path: Path) -> None:
    async with (
        engine(answers) as far,
        running_agent(tmp_path / "server", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "origin", [NOBODY], models=["another"]) as agent,
    ):
        agent.peers.awaited = {"eu-es"}
        clients = [await one_more(agent) for _ in range(2)]
        agent.peers.states["eu-es"] = RegionState.HEALTHY
        agent.peers.addresses["eu-es"] = server.peer
        assert [(await client.answer()).status for client in clients] == [200, 200]


async def test_a_region_that_has_failed_before_its_first_answer_is_not_awaited(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [NOBODY], models=["another"]) as agent:
        agent.peers.awaited = {"eu-es"}
        client = await one_more(agent)
        agent.peers.awaited.clear()
        agent.peers.states["eu-es"] = RegionState.FAILED
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (503, "none_ready")
        assert (agent.waiting(), agent.held()) == (0, 0)


async def test_a_request_that_finds_its_endpoint_restarting_waits_too(tmp_path: Path) -> None:
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path, [NOBODY], cold_start_s=300.0) as agent,
    ):
        (endpoint,) = agent.endpoints.every()
        client = await one_more(agent)
        assert not endpoint.health.ready
        endpoint.address = gpu.address
        endpoint.probed(ProbeOutcome.GOOD)
        assert (await client.answer()).status == 200


async def test_the_wait_for_an_endpoint_is_bounded_by_policy(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [NOBODY], cold_start_s=300.0) as agent:
        limit_queue(agent, max_wait_s=0.5)
        client = await one_more(agent)
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (503, "none_ready")
        assert "became ready" in answer.body.decode()
        limit_queue(agent, max_wait_s=0.0)
        assert (await ask(agent))[0] == 503
        assert agent.waited() == {"abandoned": 1}


async def test_an_endpoint_that_has_been_down_for_longer_than_a_cold_start_is_not_awaited(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [NOBODY], cold_start_s=300.0) as agent:
        (endpoint,) = agent.endpoints.every()
        report_dead(agent)
        endpoint.out_since -= 300.0
        status, _, body = await ask(agent)
        assert (status, code(body)) == (503, "none_ready")


@pytest.mark.parametrize(("cold_start_s", "waits"), [(15.0, True), (300.0, False)])
async def test_a_model_that_was_scaled_to_zero_is_awaited_if_it_starts_in_time(
    tmp_path: Path, cold_start_s: float, waits: bool
) -> None:
    async with running_agent(tmp_path, [NOBODY], models=["another"], cold_start_s=cold_start_s) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        if waits:
            await until(lambda: agent.waiting() == 1)
        else:
            assert (await client.answer()).status == 503
        client.close()
        await until(lambda: agent.waiting() == 0)


async def test_the_length_of_a_queue_is_policy(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, full(tmp_path, gpu.address) as (agent, _):
        limit_queue(agent, max_length=2)
        clients = [await one_more(agent) for _ in range(2)]
        status, _, body = await ask(agent)
        assert (status, code(body)) == (429, "saturated")
        assert "the queue is full" in body.decode()
        for client in clients:
            client.close()
