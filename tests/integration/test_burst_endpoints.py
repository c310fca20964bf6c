"""Burst endpoints: real serverless stand-ins that count every connection, beside an agent's own endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.failure_attribution import JUDGED_AFTER_S
from penstock.ledger.ledger_record import RecordKind
from penstock.policy.geography import Location
from penstock.policy.kinds.regions import BurstPool
from penstock.routing.reasons import Reason
from regional_agent.readiness import Readiness
from regional_agent.routing.burst_targets import IDLE_REGION_S
from regional_agent.routing.explain_service import ExplainService
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.integration.test_missing_models import MISSING, NO_PATH, not_found
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, NOBODY, answers, answers_after, ask, expect_service, limit_queue
from tests.support.jobs import EMBEDDINGS, JobClient, job_store
from tests.support.planet import MODEL, plan
from tests.support.serverless import ServerlessEndpoint
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until, until_async

PRICE = BurstPool((MODEL,), cost_per_second=0.5, cold_start_s=0.01, idle_s=60.0)
"""Cheap enough for any wait of a second at the rate of the policies below."""


def use_price(agent: Agent, price: BurstPool | None, region_name: str = "") -> None:
    """Put a price of burst endpoints into the policy of an agent: for its region, or another one."""
    policy, name = agent.config.policy, region_name or agent.router.region
    region = replace(policy.regions[name], burst=UNSET if price is None else (price,))
    agent.config.policy = replace(policy, regions={**policy.regions, name: region})


@asynccontextmanager
async def full_region(
    directory: Path,
    serverless: Sequence[ServerlessEndpoint],
    price: BurstPool | None = PRICE,
    *,
    entry: dict[str, Any] | None = None,
    latency_ms_per_cost: float = 1.0,
    **fields: Any,
) -> AsyncIterator[tuple[Agent, asyncio.Event, ScriptedEngine]]:
    """An agent whose only slot is occupied, and the event that frees it."""
    release = asyncio.Event()
    entries = [{"url": each.url, "slots": 4, **(entry or {})} for each in serverless]
    async with (
        engine(answers_after(release)) as own,
        running_agent(directory, [own.address], slots=1, queue=0, burst=entries, **fields) as agent,
    ):
        use_price(agent, price)
        policy = agent.config.policy
        objective = replace(policy.objective, latency_ms_per_cost=latency_ms_per_cost)
        agent.config.policy = replace(policy, objective=objective)
        first = await RawClient.connect(agent.traffic)
        first.send(post(BODY))
        await until(lambda: agent.held() == 1)
        yield agent, release, own
        release.set()
        await first.answer()
        first.close()
        await until(lambda: agent.held() == agent.waiting() == 0)


def explained(agent: Agent) -> dict[str, tuple[Reason | None, str]]:
    """The reason against each endpoint, and its details."""
    service = ExplainService(agent.router, agent.config, agent.locator)
    found = service.explain(f"/explain?model={MODEL}&tenant=open".encode(), 0.0).endpoints
    return {each.name: (each.reason, each.detail) for each in found}


async def test_nothing_reaches_an_idle_burst_endpoint_while_the_others_are_probed_and_serve(tmp_path: Path) -> None:
    release = asyncio.Event()
    release.set()
    async with ServerlessEndpoint() as burst, engine(answers_after(release)) as own:
        entry = {"url": burst.url, "slots": 4, "engine": "vllm"}
        async with running_agent(tmp_path, [own.address], burst=[entry]) as agent:
            use_price(agent, PRICE)
            agent.endpoints.start()
            for _ in range(5):
                assert (await ask(agent)).status == 200
            await until(lambda: sum(b"GET" in each.head for each in own.requests) >= 4)
            assert explained(agent)["burst-0"][0] is Reason.BURST_NOT_NEEDED
            (endpoint,) = [each for each in agent.endpoints.every() if each.spec.burst]
            assert endpoint.view.ready
            assert endpoint_report(endpoint).is_burst
            assert agent.endpoints.pools[MODEL].slots == 4, "its slots are no capacity"
            await agent.endpoints.stop()
        assert (burst.connections, burst.targets) == (0, [])


async def test_a_full_region_uses_it_and_its_seconds_and_cost_are_in_ledger_and_metrics(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    async with (
        ServerlessEndpoint(cold_start_s=0.1, service_s=0.05) as burst,
        full_region(tmp_path, [burst], ledger=ledger) as (agent, release, _own),
    ):
        reason, detail = explained(agent)["burst-0"]
        assert reason is None
        assert detail.startswith("burst: starts in 0.0 s and costs ")
        for _ in range(2):
            assert (await ask(agent)).status == 200
        assert burst.targets == ["/v1/chat/completions"] * 2
        assert burst.cold_starts == 1
        assert all(each.learner.learned is None for each in agent.endpoints.every() if each.spec.burst)
        (server,) = agent.router.burst._servers.values()
        assert 0.1 <= server.cold_start_s(PRICE) < 30.0, "learned from the first response"
        assert agent.counted() == {"ok": 2.0}
        assert agent.router.burst.requests == {MODEL: 2}
        shown = agent.metrics.render().decode()
        assert 'kind="burst"' in shown
        release.set()
        await until(lambda: agent.held() == 0)
        assert (await ask(agent)).status == 200
        assert len(burst.targets) == 2, "the slot is free again"
        used_s, cost = agent.router.burst.used_s[MODEL], agent.router.burst.cost[MODEL]
    ends = [each for each in records_in(tmp_path) if each.kind == RecordKind.REQUEST]
    by_burst = [each for each in ends if each.burst_s]
    assert len(by_burst) == 2
    assert sum(each.burst_s for each in by_burst) == pytest.approx(used_s, abs=0.05)
    assert sum(each.burst_cost for each in by_burst) == pytest.approx(cost, abs=0.05)
    assert all(each.burst_cost == pytest.approx(each.burst_s * 0.5) for each in by_burst)
    assert all((each.gpu_s, each.gpu_cost) == (0.0, 0.0) for each in by_burst)
    assert all(each.gpu_s > 0.0 for each in ends if not each.burst_s)


@pytest.mark.parametrize(
    ("price", "latency_ms_per_cost", "reason"),
    [
        (None, 1.0, Reason.BURST_WITHOUT_PRICE),
        (PRICE, 1e6, Reason.BURST_COSTS_MORE),
        (replace(PRICE, cold_start_s=60.0), 1.0, Reason.BURST_COSTS_MORE),
    ],
)
async def test_requests_wait_where_a_burst_endpoint_is_not_worth_its_price(
    tmp_path: Path, price: BurstPool | None, latency_ms_per_cost: float, reason: Reason
) -> None:
    async with (
        ServerlessEndpoint() as burst,
        full_region(tmp_path, [burst], price, latency_ms_per_cost=latency_ms_per_cost) as (agent, release, own),
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        assert explained(agent)["burst-0"][0] is reason
        release.set()
        assert (await client.answer()).status == 200
        assert burst.connections == 0
        assert len(own.requests) == 2


async def test_a_request_that_would_be_refused_uses_it_however_long_its_cold_start(tmp_path: Path) -> None:
    price = replace(PRICE, cold_start_s=300.0)
    async with ServerlessEndpoint() as burst, full_region(tmp_path, [burst], price) as (agent, _, _):
        limit_queue(agent, max_wait_s=0.5)
        assert (await ask(agent)).status == 200
        assert len(burst.targets) == 1
        late = await ask(agent, "x-request-timeout-ms: 100")
        assert late.status == 200, "it runs now"


async def test_an_idle_region_that_grants_credits_comes_first(tmp_path: Path) -> None:
    async with (
        ServerlessEndpoint() as burst,
        full_region(tmp_path, [burst], peers={"eu-es": NOBODY}, credits={"eu-es": 1}) as (agent, _, _),
    ):
        assert (await ask(agent)).status == 200
        assert agent.peers.spent == ["eu-es"], "tried before the burst endpoint"
        assert len(burst.targets) == 1


async def test_a_request_waits_a_moment_for_the_credit_of_an_idle_region(tmp_path: Path) -> None:
    async with (
        ServerlessEndpoint() as burst,
        full_region(tmp_path, [burst], peers={"eu-es": NOBODY}) as (agent, _, _),
    ):
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert (await ask(agent)).status == 200
        assert loop.time() - before >= IDLE_REGION_S
        assert len(burst.targets) == 1


async def test_egress_that_costs_more_than_the_seconds_comes_after(tmp_path: Path) -> None:
    async with (
        ServerlessEndpoint() as burst,
        full_region(tmp_path, [burst], peers={"eu-es": NOBODY}, credits={"eu-es": 1}) as (agent, _, _),
    ):
        policy = agent.config.policy
        dear = replace(policy.regions["eu-de"], egress_cost_per_gb=1e6, burst=(replace(PRICE, cold_start_s=0.0),))
        agent.config.policy = replace(policy, regions={**policy.regions, "eu-de": dear})
        assert (await ask(agent)).status == 200
        assert agent.peers.spent == []
        assert len(burst.targets) == 1


async def test_failures_of_its_requests_eject_it_and_one_request_tries_it_again(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, full_region(tmp_path, [burst]) as (agent, _release, _):
        limit_queue(agent, max_wait_s=0.2)
        burst.status = 502
        for _ in range(3):
            assert (await ask(agent)).status in (429, 502)
        (endpoint,) = [each for each in agent.endpoints.every() if each.spec.burst]
        # The failures of a request that might be their cause count after a second.
        agent.endpoints.failures.check(endpoint.now() + JUDGED_AFTER_S)
        assert endpoint.ejection.is_ejected
        seen = len(burst.targets)
        assert (await ask(agent)).status == 429
        assert len(burst.targets) == seen, "it is ejected"
        assert explained(agent)["burst-0"][0] is Reason.ENDPOINT_EJECTED


async def test_a_configured_status_path_alone_is_probed(tmp_path: Path) -> None:
    entry = {"health": {"path": "/status", "interval_s": 0.1}}
    async with ServerlessEndpoint() as burst, full_region(tmp_path, [burst], entry=entry) as (agent, _, _):
        agent.endpoints.start()
        await until(lambda: len(burst.targets) >= 3)
        assert set(burst.targets) == {"/status"}
        assert burst.cold_starts == 0
        (endpoint,) = [each for each in agent.endpoints.every() if each.spec.burst]
        burst.status = 500
        await until(lambda: not endpoint.view.ready)
        assert agent.endpoints.burst_pools[MODEL].ready == 0
        await agent.endpoints.stop()


async def test_it_serves_a_model_that_all_other_endpoints_lack(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, engine(not_found(MISSING)) as one, engine(not_found(MISSING)) as two:
        entry = {"url": burst.url, "slots": 4}
        async with running_agent(tmp_path, [one.address, two.address], burst=[entry]) as agent:
            use_price(agent, PRICE)
            assert (await ask(agent)).status == 200
            assert (len(one.requests), len(two.requests), burst.cold_starts) == (1, 1, 1)
            one.script = two.script = not_found(NO_PATH)
            assert (await ask(agent)).body == NO_PATH
            assert (agent.counted(), agent.held()) == ({"ok": 1, "client_error": 1}, 0)


async def test_a_region_without_a_ready_endpoint_uses_it(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst:
        entry = {"url": burst.url, "slots": 4}
        async with running_agent(tmp_path, [], burst=[entry]) as agent:
            use_price(agent, PRICE)
            answer = await ask(agent)
            assert (answer.status, json.loads(answer.body)) == (200, {"choices": [], "data": []})
            for other_region_serves in (True, False):
                readiness = Readiness(agent.config, agent.endpoints, lambda serves=other_region_serves: serves)
                assert readiness.not_ready_reason() is None


@pytest.mark.parametrize(("elsewhere", "reason"), [(True, "no endpoint is ready"), (False, None)])
async def test_clients_are_sent_to_another_region_before_a_dead_one_pays(
    tmp_path: Path, elsewhere: bool, reason: str | None
) -> None:
    async with ServerlessEndpoint() as burst, full_region(tmp_path, [burst]) as (agent, _, _):
        own = next(each for each in agent.endpoints.every() if not each.spec.burst)
        for _ in range(3):
            own.probed(ProbeOutcome.UNREADY)
        assert Readiness(agent.config, agent.endpoints, lambda: elsewhere).not_ready_reason() == reason


async def test_requests_that_another_region_sends_by_plan_use_it_and_count_as_forwarded(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    ledger = ledger_in(tmp_path, "eu-es")
    async with (
        ServerlessEndpoint() as burst,
        engine(answers) as near,
        full_region(tmp_path / "server", [burst], region="eu-es", ledger=ledger) as (server, _, _),
        running_agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        answer = await ask(origin)
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert len(burst.targets) == 1
        assert not near.requests
    (served,) = [each for each in records_in(tmp_path) if each.kind == RecordKind.SERVED]
    assert served.burst_cost > 0.0


async def test_residency_holds_for_it(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst:
        entry = {"url": burst.url, "slots": 4}
        async with running_agent(tmp_path, [], region="us-east", anonymous="personal", burst=[entry]) as agent:
            use_price(agent, PRICE)
            agent.location = Location("DE")
            assert (await ask(agent)).status == 421
            agent.config.policy = replace(agent.config.policy, anonymous_tenant="open")
            assert (await ask(agent)).status == 200
            assert len(burst.targets) == 1


@pytest.mark.parametrize(
    "failure",
    [
        b"",
        b'HTTP/1.1 500 X\r\nContent-Length: 13\r\n\r\n{"error":"a"}',
        b'HTTP/1.1 503 X\r\nContent-Length: 13\r\n\r\n{"error":"a"}',
        b"HTTP/1.1 429 X\r\nRetry-After: 600\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 X\r\nContent-Length: 13\r\n\r\n{"error":"a"}',
    ],
    ids=["closes", "500", "503", "quota", "200"],
)
async def test_it_serves_what_the_only_other_endpoint_of_the_region_fails(tmp_path: Path, failure: bytes) -> None:
    async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(failure)
        writer.close()

    async with ServerlessEndpoint() as burst, engine(fails) as own:
        entry = {"url": burst.url, "slots": 4}
        async with running_agent(tmp_path, [own.address], burst=[entry]) as agent:
            use_price(agent, PRICE)
            assert (await ask(agent)).status == 200
            assert len(own.requests) == 1
            burst.status = 500
            if failure.startswith(b"HTTP/1.1 50"):
                assert json.loads((await ask(agent)).body) == {"choices": [], "data": []}, "the last error is forwarded"
            use_price(agent, None)
            assert (await ask(agent)).status >= 429
            assert agent.held() == 0
        assert set(burst.targets) == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    ("price", "latency_ms_per_cost", "burst_requests"),
    [
        (replace(PRICE, for_batches=True), 1.0, 1),
        (PRICE, 1.0, 0),
        (replace(PRICE, for_batches=True), 1e6, 0),
    ],
    ids=["permitted", "not permitted", "costs more"],
)
async def test_requests_of_jobs_use_it_where_policy_permits_it_and_its_price_is_less_than_the_wait(
    tmp_path: Path, price: BurstPool, latency_ms_per_cost: float, burst_requests: int
) -> None:
    fields = {"job_store": job_store(tmp_path / "store"), "latency_ms_per_cost": latency_ms_per_cost}
    async with (
        ServerlessEndpoint() as burst,
        full_region(tmp_path, [burst], price, **fields) as (agent, release, _),
        JobClient(agent.traffic) as client,
    ):
        limit_queue(agent, max_wait_s=0.2)
        expect_service(agent, 5.5)
        accepted = await client.http.post(
            EMBEDDINGS, json={"model": MODEL, "input": "text"}, headers={"prefer": "respond-async"}
        )
        assert accepted.status_code == 202
        # A request that would wait for too long is refused, and its job repeats it.
        await until(lambda: bool(burst.targets) or agent.counted().get("deferred", 0.0) >= 1.0)
        assert len(burst.targets) == burst_requests
        if not burst_requests:
            release.set()

        async def has_ended() -> bool:
            return bool((await client.http.get(f"/v1/jobs/{accepted.json()['id']}")).json()["status"] == "completed")

        await until_async(has_ended)
        assert burst.targets == [EMBEDDINGS] * burst_requests
        assert agent.router.burst.requests == ({MODEL: 1} if burst_requests else {})
