"""A client that continues in another region than the one in which it began reaches the region that has its object."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.health.region_health import RegionState
from penstock.policy.geography import Location
from penstock.wire.object_query import HEADER, PATH, ObjectAnswer, ObjectQuery, open_answer, seal_query
from regional_agent.objects.region_objects import MAX_ASKED_BY_TENANT
from tests.integration.test_async_requests import ended
from tests.integration.test_objects import RESPONSES, create, keeps, proceed, reference, request, with_tenants
from tests.support.agents import Agent, running_agent
from tests.support.chats import ask, code
from tests.support.identities import keys_between
from tests.support.jobs import JobClient, job_store
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, engine
from tests.support.wait import until


@asynccontextmanager
async def two_regions(directory: Path, other: str = "eu-es") -> AsyncIterator[tuple[Agent, Agent]]:
    """Run an agent of eu-de and one of another region, each before an engine of its own, that know each other."""
    async with (
        engine(keeps("first", items=True)) as here,
        engine(keeps("other", items=True)) as there,
        running_agent(directory / "here", [here.address]) as one,
        running_agent(directory / "there", [there.address], region=other) as two,
    ):
        for agent, peer, region in ((one, two, other), (two, one, "eu-de")):
            agent.peers.addresses[region] = peer.peer
            agent.peers.states[region] = RegionState.HEALTHY
        yield one, two


async def test_a_response_is_found_in_the_region_that_has_it(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, two):
        object_id = await create(one)
        for _ in range(2):
            answer = await request(two, "GET", f"{RESPONSES}/{object_id}")
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-de")
            assert json.loads(answer.body)["at"] == "first"
            items = [reference(object_id), reference(object_id, "rs_of_the_response")]
            body = json.dumps({"model": MODEL, "input": items}).encode()
            named = await ask(two, body=body, path=RESPONSES)
            assert (named.status, named.headers["x-penstock-region"]) == (200, "eu-de"), "the region with the items"
            continued = await proceed(two, object_id, input=items)
            assert (continued.status, continued.headers["x-penstock-region"]) == (200, "eu-de")
            object_id = json.loads(continued.body)["id"]
        one.objects.here._by_tenant.clear()
        answer = await request(two, "GET", f"{RESPONSES}/{object_id}")
        assert (answer.status, code(answer.body)) == (404, "not_found"), "the region no longer knows the object"


async def test_a_request_that_is_answered_later_finds_its_response_too(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, two):
        for agent in (one, two):
            agent.config.policy = msgspec.structs.replace(
                agent.config.policy, job_stores=(job_store(tmp_path / "jobs", "eu-de", "eu-es"),)
            )
        object_id = await create(one)
        accepted = await proceed(two, object_id, "Prefer: respond-async")
        assert accepted.status == 202
        async with JobClient(two.traffic) as client:
            done = await ended(client, json.loads(accepted.body)["id"])
        assert (done["status"], done["result"]["status_code"]) == ("completed", 200)


async def test_a_response_of_another_tenant_is_found_nowhere(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, two):
        ours, theirs = with_tenants(one)
        with_tenants(two)
        object_id = await create(one, ours)
        for path, method in ((f"{RESPONSES}/{object_id}", "GET"), (f"{RESPONSES}/{object_id}", "DELETE")):
            answer = await request(two, method, path, theirs)
            assert (answer.status, code(answer.body)) == (404, "not_found")
        answer = await proceed(two, object_id, theirs)
        assert (answer.status, code(answer.body)) == (404, "not_found")
        assert (await proceed(two, object_id, ours)).status == 200


@pytest.mark.parametrize("state", [RegionState.FAILED, RegionState.UNKNOWN])
async def test_an_unreachable_region_is_not_asked(tmp_path: Path, state: RegionState) -> None:
    async with two_regions(tmp_path) as (one, two):
        object_id = await create(one)
        two.peers.states["eu-de"] = state
        asked: list[str] = []
        two.peers.address = lambda region: asked.append(region)  # type: ignore[assignment,func-returns-value]
        answer = await request(two, "GET", f"{RESPONSES}/{object_id}")
        assert (answer.status, code(answer.body), asked) == (404, "not_found", [])


async def test_a_region_that_residency_forbids_is_not_asked(tmp_path: Path) -> None:
    async with two_regions(tmp_path, "us-east") as (one, two):
        object_id = await create(two)
        for agent in (one, two):
            agent.location = Location("DE")
        asked: list[str] = []
        address = one.peers.address
        one.peers.address = lambda region: asked.append(region) or address(region)  # type: ignore[assignment,func-returns-value]
        assert (await request(one, "GET", f"{RESPONSES}/{object_id}")).status == 200
        assert "us-east" in asked
        asked.clear()
        policy = one.config.policy
        one.config.policy = msgspec.structs.replace(policy, anonymous_tenant="personal")
        answer = await request(one, "GET", f"{RESPONSES}/{object_id}")
        assert (answer.status, code(answer.body), asked) == (404, "not_found", [])


async def test_a_tenant_asks_for_a_bounded_number_of_objects_at_once(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (_, two):
        waiting: list[asyncio.Future[None]] = []

        async def silent(region: str, tenant: str, object_id: str) -> None:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]

        finder = two.objects._elsewhere
        assert finder is not None
        finder._ask = silent  # type: ignore[method-assign]
        asked = [asyncio.create_task(finder.find("open", f"id-{n}", ["eu-de"])) for n in range(MAX_ASKED_BY_TENANT)]
        await asyncio.sleep(0)
        assert await finder.find("open", "one-more", ["eu-de"]) is None
        other = asyncio.create_task(finder.find("other", "id", ["eu-de"]))
        await until(lambda: len(waiting) == MAX_ASKED_BY_TENANT + 1)
        for future in waiting:
            future.set_result(None)
        assert await asyncio.gather(*asked, other) == [None] * (MAX_ASKED_BY_TENANT + 1)
        assert finder._asked == {}


async def ask_peer(agent: Agent, token: str) -> tuple[int, bytes]:
    client = await RawClient.connect(agent.peer)
    client.send(f"GET {PATH} HTTP/1.1\r\nHost: a\r\n{HEADER}: {token}\r\n\r\n".encode())
    answer = await client.answer()
    client.close()
    return answer.status, answer.body


async def test_only_agents_of_other_regions_are_answered(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (one, _):
        object_id = await create(one)
        peer_keys = keys_between("eu-es", "eu-de")
        now = time.time()
        query = ObjectQuery("eu-es", "agent-1", "eu-de", "nonce", now, "open", object_id)
        status, body = await ask_peer(one, seal_query(query, peer_keys))
        assert (status, open_answer(body, query, peer_keys)) == (200, ObjectAnswer("eu-de", "llama-3.1-8b"))
        unknown = msgspec.structs.replace(query, object_id="resp_unknown")
        status, body = await ask_peer(one, seal_query(unknown, peer_keys))
        assert (status, open_answer(body, unknown, peer_keys).model) == (200, "")
        for changed, expected in (
            (msgspec.structs.replace(query, server="us-east"), 403),
            (msgspec.structs.replace(query, origin="us-east"), 403),
            (msgspec.structs.replace(query, agent="agent-9"), 403),
            (msgspec.structs.replace(query, sent_at=now - 3600), 403),
            (msgspec.structs.replace(query, object_id=""), 403),
        ):
            status, body = await ask_peer(one, seal_query(changed, peer_keys))
            assert (status, object_id.encode() in body) == (expected, False), changed
        for token in ("", "forged", seal_query(query, peer_keys).replace(".", ".A", 1)):
            assert (await ask_peer(one, token))[0] == 401
