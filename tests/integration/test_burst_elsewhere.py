"""Burst endpoints of another region serve what no region has a slot for: two agents with real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.health.region_health import RegionState
from penstock.ledger.ledger_record import RecordKind
from penstock.policy.geography import Location
from tests.integration.test_burst_endpoints import PRICE, full_region, use_price
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent
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


async def test_residency_holds_for_burst_endpoints_of_other_regions(tmp_path: Path) -> None:
    async with ServerlessEndpoint() as burst, two_full_regions(tmp_path, [burst], "us-east") as (origin, _, _):
        policy = origin.config.policy
        limit_queue(origin, max_wait_s=0.2)
        origin.location = Location("DE")
        origin.config.policy = replace(origin.config.policy, anonymous_tenant="personal")
        assert (await ask(origin)).status == 429
        assert (burst.connections, origin.peers.burst_room) == (0, {"us-east": 4})
        origin.config.policy = policy
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
