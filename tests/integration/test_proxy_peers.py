"""Requests that another region serves: forwarded by plan or credit, authenticated by signature, retried at home."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.health.region_health import RegionState
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.routing.prefixes.prefix_sketch import Held
from regional_agent.http.limits import Limits
from tests.support.agents import running_agent
from tests.support.chats import BODY, NOBODY, SSE_HEAD, answers, ask, chunk, code, never_responds, streams_forever
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until


async def test_a_request_is_forwarded_by_the_plan_and_checked_by_the_server(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with (
        engine(answers) as far,
        engine(answers) as near,
        running_agent(tmp_path / "server", [far.address], region="eu-es", anonymous=None) as server,
        running_agent(
            tmp_path / "origin", [near.address], anonymous="personal", plan=away, peers={"eu-es": server.peer}
        ) as origin,
    ):
        origin.location = Location("DE")
        status, headers, _ = await ask(origin, "X-Request-Id: far-1")
        assert (status, headers["x-penstock-region"]) == (200, "eu-es")
        assert (len(far.requests), len(near.requests)) == (1, 0)
        assert far.requests[0].header("x-request-id") == "far-1"
        assert far.requests[0].header("x-penstock-route") is None, "an engine never sees the route context"
        assert server.offered == [], "demand is counted where it lands"
        assert server.counted() == origin.counted() == {"ok": 1}


async def test_a_plan_with_a_forbidden_region_sends_nothing_there(tmp_path: Path) -> None:
    wrong = plan("eu-de", "eu-de+eu-es", us_east=1.0)
    async with (
        engine(answers) as near,
        engine(answers) as forbidden,
        running_agent(
            tmp_path, [near.address], anonymous="personal", plan=wrong, peers={"us-east": forbidden.address}
        ) as agent,
    ):
        agent.location = Location("DE")
        status, headers, _ = await ask(agent)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")
        assert not forbidden.requests


async def test_a_request_stays_home_if_the_peer_refuses_or_fails(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(answers) as near,
        running_agent(tmp_path / "server", [NOBODY], region="eu-es") as server,
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de"
        assert server.counted() == {"refused": 1}
        origin.peers.addresses["eu-es"] = NOBODY
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de"
        assert origin.peers.broke == ["eu-es"]


async def test_requests_at_a_silently_failed_peer_are_retried(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(never_responds) as black_hole,
        engine(answers) as near,
        running_agent(tmp_path, [near.address], plan=away, peers={"eu-es": black_hole.address}) as origin,
    ):
        asked = asyncio.create_task(ask(origin))
        await until(lambda: bool(black_hole.requests))
        origin.peers.states["eu-es"] = RegionState.FAILED
        status, headers, _ = await asked
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")


async def test_a_peer_whose_engine_may_have_started_is_the_last_to_be_tried(tmp_path: Path) -> None:
    slow = Limits(first_byte_timeout_s=0.2, idle_linger_s=0.0)
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(never_responds) as far,
        engine(answers) as near,
        running_agent(tmp_path / "es", [far.address], region="eu-es", limits=slow) as server,
        running_agent(tmp_path / "de", [near.address], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        status, _, body = await ask(agent)
        assert (status, code(body)) == (504, "engine_timeout")
        assert not near.requests


async def breaks_off(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("script", "why", "outcome"),
    [(streams_forever, "stream_stalled", "stalled"), (breaks_off, "engine_failed", "engine_cut")],
    ids=["stalls", "breaks"],
)
async def test_a_stream_cut_by_its_server_counts_as_failed_in_both_regions(
    tmp_path: Path, script: Script, why: str, outcome: str
) -> None:
    impatient = Limits(stall_timeout_s=0.3, idle_linger_s=0.0)
    async with (
        engine(script) as far,
        running_agent(tmp_path / "server", [far.address], region="eu-es", limits=impatient) as server,
        running_agent(tmp_path / "origin", [], peers={"eu-es": server.peer}) as origin,
    ):
        answer = await ask(origin)
        events = answer.body.strip().split(b"\n\n")
        assert (answer.status, events[0], len(events)) == (200, b"data: 1", 2), "the client receives one error event"
        assert code(events[1].removeprefix(b"data: ")) == why
        assert server.counted() == origin.counted() == {outcome: 1}
        assert origin.tally.report().failed == 1


async def test_a_full_home_spends_a_credit_or_waits_for_one(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as near,
        engine(answers) as far,
        running_agent(tmp_path / "server", [far.address], region="us-east") as server,
        running_agent(tmp_path / "origin", [near.address], slots=1, queue=0, peers={"us-east": server.peer}) as origin,
    ):
        first = await RawClient.connect(origin.traffic)
        first.send(post(BODY))
        await first.head()
        second = asyncio.create_task(ask(origin))
        await until(lambda: origin.waiting() == 1)
        assert not far.requests, "not invited"
        origin.peers.credits["us-east"] = 1
        status, headers, _ = await second
        assert (status, headers["x-penstock-region"]) == (200, "us-east")
        assert origin.peers.spent == ["us-east"]
        first.close()


async def test_a_spilled_session_stays_while_its_region_grants_credits(tmp_path: Path) -> None:
    def session(name: str) -> tuple[str]:
        return (f"X-Session-Id: {name}",)

    async with (
        engine(answers) as near,
        engine(answers) as far,
        engine(answers) as third,
        running_agent(tmp_path / "far", [far.address], region="us-east") as server,
        running_agent(tmp_path / "third", [third.address], region="eu-es") as other,
        running_agent(
            tmp_path / "origin",
            [near.address],
            slots=1,
            queue=0,
            peers={"us-east": server.peer, "eu-es": other.peer},
            credits={"us-east": 1},
        ) as origin,
    ):
        (endpoint,) = origin.endpoints.every()
        endpoint.take(0, 0)
        assert (await ask(origin, *session("spilled"))).headers["x-penstock-region"] == "us-east"
        endpoint.give_back(0, 0)
        origin.peers.credits = {"us-east": 1, "eu-es": 1}
        for _ in range(3):
            assert (await ask(origin, *session("spilled"))).headers["x-penstock-region"] == "us-east"
            assert (await ask(origin, *session("new"))).headers["x-penstock-region"] == "eu-de"
        assert origin.peers.spent == ["us-east"] * 4
        origin.peers.credits = {"eu-es": 1}
        assert (await ask(origin, *session("spilled"))).headers["x-penstock-region"] == "eu-de"


@pytest.mark.parametrize("size_bytes", [300, 8_000, 65_536])
async def test_a_session_name_of_any_size_has_one_home_or_is_refused(tmp_path: Path, size_bytes: int) -> None:
    shared = plan("eu-de", "eu-de+eu-es+us-east", eu_de=0.5, eu_es=0.5)
    async with (
        engine(answers) as near,
        engine(answers) as far,
        running_agent(tmp_path / "far", [far.address], region="eu-es") as server,
        running_agent(tmp_path / "origin", [near.address], plan=shared, peers={"eu-es": server.peer}) as origin,
    ):
        name = "s" * size_bytes
        in_body = json.dumps({"model": MODEL, "messages": [], "prompt_cache_key": name}).encode()[: 2**16 - 1]
        in_body = in_body if in_body.endswith(b"}") else in_body[: 2**16 - 4] + b'"}'
        answered = [await ask(origin, body=in_body) for _ in range(6)]
        assert {(each.status, each.headers["x-penstock-region"]) for each in answered} == {
            (200, answered[0].headers["x-penstock-region"])
        }
        in_header = [await ask(origin, f"X-Session-Id: {name}") for _ in range(6)]
        assert {each.status for each in in_header} == {200 if size_bytes < 16_000 else 431}
        assert len({each.headers.get("x-penstock-region") for each in in_header}) == 1


async def test_a_session_with_a_cached_prompt_waits_at_home_if_it_can(tmp_path: Path) -> None:
    prompt = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * 32_000}]}).encode()
    async with (
        engine(answers) as near,
        engine(answers) as far,
        running_agent(tmp_path / "far", [far.address], region="us-east") as server,
        running_agent(tmp_path / "origin", [near.address], slots=1, queue=0, peers={"us-east": server.peer}) as origin,
    ):
        known = origin.config.policy.models[MODEL]
        costly = replace(known, cost=Cost(CostUnit.TOKEN, 0.001, 0.005))
        origin.config.policy = replace(origin.config.policy, models={MODEL: costly})
        assert (await ask(origin, body=prompt)).headers["x-penstock-region"] == "eu-de"
        (endpoint,) = origin.endpoints.every()
        endpoint.pools[0].service_s = 1.0
        endpoint.take(0, 0)
        origin.peers.credits["us-east"] = 1
        waiting = asyncio.create_task(ask(origin, body=prompt))
        await until(lambda: origin.waiting() == 1)
        assert (await ask(origin)).headers["x-penstock-region"] == "us-east", "another session has nothing cached"
        endpoint.give_back(0, 0)
        origin.queue.room_appeared()
        assert (await waiting).headers["x-penstock-region"] == "eu-de"
        endpoint.take(0, 0)
        endpoint.pools[0].service_s = 1.0
        sharing = replace(origin.config.policy.spillover, shares_prefixes=True)
        origin.config.policy = replace(origin.config.policy, spillover=sharing)
        origin.peers.holdings["us-east"] = Held(31, 0.0)
        async with asyncio.timeout(15.0):  # at home it would wait longer
            there = (await ask(origin, body=prompt)).headers["x-penstock-region"]
        assert there == "us-east", "the caches there hold the prompt too"
        hurried = replace(costly, queueing=replace(costly.queueing, max_wait_s=0.0))
        origin.config.policy = replace(origin.config.policy, models={MODEL: hurried})
        assert (await ask(origin, body=prompt)).headers["x-penstock-region"] == "us-east"
        endpoint.give_back(0, 0)
        origin.config.policy = replace(origin.config.policy, models={MODEL: costly})
        origin.peers.credits["us-east"] = 0
        hot = origin.router.local.hot_prefixes
        for _ in range(2):
            assert (await ask(origin, body=prompt)).headers["x-penstock-region"] == "eu-de"
        assert hot.hottest("us-east", 9, time.monotonic())
        at_home = ResidencyRule("at-home", allow=frozenset({"eu-de"}))
        origin.config.policy = replace(origin.config.policy, residency=(at_home,))
        assert (await ask(origin, body=prompt)).headers["x-penstock-region"] == "eu-de"
        assert not hot.hottest("us-east", 9, time.monotonic()), "one request with it may not be processed there"


async def test_the_peer_listener_rejects_requests_without_a_signature(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for route in ("forged", "e30.00", ""):
            client = await RawClient.connect(agent.peer)
            client.send(post(BODY, f"X-Penstock-Route: {route}"))
            assert (await client.answer()).status == 403
            client.close()
        client = await RawClient.connect(agent.peer)
        client.send(post(BODY))
        assert (await client.answer()).status == 404, "clients have no business there"
        assert not gpu.requests


async def test_a_batch_request_runs_in_the_cheapest_region_that_accepts_it(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as far,
        engine(answers) as near,
        running_agent(tmp_path / "server", [far.address], region="us-east", slots=1, queue=0) as server,
        running_agent(tmp_path / "origin", [near.address], peers={"us-east": server.peer}) as origin,
    ):
        for agent in (server, origin):
            below_all = replace(agent.config.policy.tenants["open"], priority=BATCH_PRIORITY)
            agent.config.policy = replace(agent.config.policy, tenants={"open": below_all})
        origin.peers.batch_credits["us-east"] = 3
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de", "at the same price"
        cheaper = replace(origin.config.policy.regions["us-east"], cost_per_gpu_hour=0.5)
        regions = origin.config.policy.regions | {"us-east": cheaper}
        origin.config.policy = replace(origin.config.policy, regions=regions)
        running = await RawClient.connect(origin.traffic)
        running.send(post(BODY))
        assert (await running.head())[1]["x-penstock-region"] == "us-east"
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de", "us-east is full by now, and queues nothing"
        assert (origin.peers.batch_credits, origin.peers.spent) == ({"us-east": 1}, [])
        queued = server.metrics.registry.get_sample_value
        assert not queued("penstock_agent_queue_priority_requests_total", {"priority": "batch"})
        origin.peers.states["us-east"] = RegionState.FAILED
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de"
        assert origin.peers.batch_credits == {"us-east": 1}
        running.close()
        await until(lambda: server.held() == 0)
        assert server.offered == []
