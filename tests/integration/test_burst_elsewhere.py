"""Burst endpoints of another region serve what no region has a slot for: two agents with real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.region_health import RegionState
from penstock.ledger.ledger_record import RecordKind
from penstock.planning.plan import ArcReason
from penstock.policy.geography import Location
from penstock.routing.explain import ConsideredRegion, RegionVerdict
from penstock.routing.region_selection import RegionChoice
from regional_agent.routing.explain_service import ExplainService
from tests.integration.test_burst_endpoints import PRICE, full_region, use_price
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, NOBODY, ask, limit_queue
from tests.support.planet import MODEL
from tests.support.serverless import ServerlessEndpoint
from tests.support.sockets import RawClient, post
from tests.support.wait import until


@asynccontextmanager
async def two_full_regions(
    directory: Path, burst: Sequence[ServerlessEndpoint], name: str = "eu-es", **fields: Any
) -> AsyncIterator[tuple[Agent, Agent, asyncio.Event]]:
    """An agent without burst endpoints whose only slot is occupied, the agent of a full region that has the price and
    the endpoints of `burst`, and the event that frees the slot of the latter."""
    async with (
        full_region(directory / "server", burst, region=name, **fields) as (server, release, _),
        full_region(directory / "origin", (), None, peers={name: server.peer}) as (origin, _, _),
    ):
        use_price(origin, PRICE, name)
        origin.peers.burst_room[name], _ = server.router.burst.offer(MODEL, server.config.policy)
        yield origin, server, release


async def test_overflow_that_no_slot_is_free_for_uses_the_burst_endpoint_of_another_region(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, "eu-es")
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst], ledger=ledger) as (origin, server, _):
        assert origin.peers.burst_room == {"eu-es": 4}
        answer = await ask(origin)
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert burst.targets == ["/v1/chat/completions"]
        assert (origin.peers.spent, origin.peers.burst_room) == ([], {"eu-es": 3})
        assert (origin.counted(), server.router.burst.requests) == ({"ok": 1.0}, {MODEL: 1})
    (served,) = [each for each in records_in(tmp_path) if each.kind == RecordKind.SERVED]
    assert served.burst_cost > 0.0


async def test_a_region_without_an_endpoint_of_its_own_serves_the_overflow_of_another(tmp_path: Path) -> None:
    async with (
        ServerlessEndpoint() as burst,
        running_agent(tmp_path / "server", (), region="eu-es", burst=[{"url": burst.url, "slots": 4}]) as server,
        full_region(tmp_path / "origin", (), None, peers={"eu-es": server.peer}) as (origin, _, _),
    ):
        for agent in (origin, server):
            use_price(agent, PRICE, "eu-es")
        origin.peers.burst_room["eu-es"], _ = server.router.burst.offer(MODEL, server.config.policy)
        assert (await ask(origin)).headers["x-penstock-region"] == "eu-es"
        assert (burst.targets, server.router.burst.requests) == (["/v1/chat/completions"], {MODEL: 1})


async def test_a_region_whose_own_endpoints_have_failed_serves_the_overflow_of_another(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, server, _):
        for endpoint in server.endpoints.every():
            if not endpoint.spec.burst:
                for _ in range(3):
                    endpoint.probed(ProbeOutcome.UNREACHABLE)
        origin.peers.states["eu-es"] = RegionState.FAILED
        origin.peers.answering.add("eu-es")
        burst.release.clear()
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY))
        await until(lambda: burst.running == 1)
        # The region has lost its endpoints, not the agent that relays the response.
        origin.proxy.active.turn(origin.proxy.clock())
        burst.release.set()
        assert (await client.answer()).headers["x-penstock-region"] == "eu-es"
        client.close()
        assert (len(burst.targets), origin.peers.broke) == (1, [])
        chosen, regions = decided(origin)
        assert chosen is not None
        assert (chosen.region, regions["eu-es"].verdict) == ("eu-es", RegionVerdict.SERVES)
        # Without an answer of its agents, the region states no room.
        origin.peers.burst_room.clear()
        limit_queue(origin, max_wait_s=0.2)
        assert (await ask(origin)).status == 429
        assert (burst.targets, server.router.burst.requests) == (["/v1/chat/completions"], {MODEL: 1})


def decided(agent: Agent, query: str = "") -> tuple[RegionChoice | None, dict[str, ConsideredRegion]]:
    """The choice that an agent explains, and each region."""
    service = ExplainService(agent.router, agent.config, agent.locator)
    found = service.explain(f"/explain?model={MODEL}&tenant=open{query}".encode(), 0.0)
    return found.chosen, {each.region: each for each in found.regions}


async def test_the_burst_endpoint_that_serves_is_explained_here_and_elsewhere(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, server, release):
        chosen, regions = decided(origin)
        assert chosen is not None
        assert (chosen.region, chosen.why, chosen.uses_burst) == ("eu-es", ArcReason.SPILLOVER, True)
        assert regions["eu-es"].verdict is RegionVerdict.SERVES
        assert regions["eu-es"].uses_burst
        assert regions["eu-es"].view is not None
        assert regions["eu-es"].view.burst_room == 4
        assert regions["eu-de"].verdict is RegionVerdict.SPARE
        chosen, _ = decided(server)
        assert chosen is not None
        assert (chosen.region, chosen.why, chosen.uses_burst) == ("eu-es", ArcReason.HOME, True)
        use_price(origin, replace(PRICE, cost_per_second=1e9), "eu-es")
        chosen, _ = decided(origin)
        assert chosen is not None
        assert (chosen.region, chosen.uses_burst) == ("eu-de", False), "it waits"
        use_price(origin, PRICE, "eu-es")
        personal, _ = decided(origin, "&overflow=true")
        assert personal is not None
        assert personal.uses_burst
        release.set()
        await until(lambda: server.held() == 0)
        chosen, _ = decided(server)
        assert chosen is not None
        assert not chosen.uses_burst, "a slot is free"
        chosen, _ = decided(server, "&overflow=true")
        assert chosen is not None
        assert chosen.uses_burst
        assert burst.connections == 0, "an explanation reaches no server"


async def test_a_slot_that_became_free_there_precedes_its_burst_endpoint(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, server, release):
        release.set()
        await until(lambda: server.held() == 0)
        policy = server.config.policy
        server.config.policy = replace(policy, spillover=replace(policy.spillover, target_utilisation=1.0))
        assert (await ask(origin)).status == 200
        assert burst.targets == []


async def test_overflow_without_a_credit_takes_no_slot_that_credits_or_waiting_requests_need(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, server, release):
        release.set()
        await until(lambda: server.held() == 0)
        policy = server.config.policy
        server.config.policy = replace(policy, spillover=replace(policy.spillover, target_utilisation=1.0))
        server.queue.promised = lambda model: 1
        assert (await ask(origin)).status == 200
        assert len(burst.targets) == 1


async def test_a_burst_endpoint_of_another_region_without_room_queues_nothing_there(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, server, _):
        use_price(server, None)
        client = await RawClient.connect(origin.traffic)
        client.send(post(BODY))
        await until(lambda: server.counted() == {"refused": 1.0} and origin.waiting() == 1)
        assert (burst.targets, server.waiting()) == ([], 0)
        use_price(server, PRICE)
        origin.queue.credit_arrived()
        assert (await client.answer()).status == 200
        assert (len(burst.targets), server.waited()) == (1, {})
        client.close()


def give_key(agent: Agent, tenant: str, key: str) -> None:
    """Give a tenant of the policy an API key."""
    policy = agent.config.policy
    given = replace(policy.tenants[tenant], key_digests=frozenset({sha256(key.encode()).hexdigest()}))
    agent.config.policy = replace(policy, tenants={**policy.tenants, tenant: given})


async def test_residency_holds_for_burst_endpoints_of_other_regions(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst], "us-east") as (origin, _, _):
        limit_queue(origin, max_wait_s=0.2)
        origin.location = Location("DE")
        # By a key, since another anonymous tenant would end the request that occupies the slot.
        give_key(origin, "personal", "personal-key")
        assert (await ask(origin, "authorization: Bearer personal-key")).status == 429
        assert (burst.connections, origin.peers.burst_room) == (0, {"us-east": 4})
        assert (await ask(origin)).status == 200
        assert len(burst.targets) == 1


async def test_a_credit_of_any_region_precedes_it(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst]) as (origin, _, _):
        origin.peers.addresses["us-east"] = NOBODY
        origin.peers.states["us-east"] = RegionState.HEALTHY
        origin.peers.credits["us-east"] = 1
        assert (await ask(origin)).status == 200
        assert origin.peers.spent == ["us-east"], "tried first"
        assert len(burst.targets) == 1
