"""Two regions of whole agents: queued requests of a full region are forwarded with a credit, later ones stay home;
where both are full, a burst endpoint of the other one serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from tests.integration.test_burst_endpoints import PRICE
from tests.support.agent_processes import AgentProcess, agents_in, publish
from tests.support.chats import BODY
from tests.support.planet import MODEL, policy
from tests.support.serverless import ServerlessEndpoint
from tests.support.sockets import Answer, RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until_async

OVERFLOW = 3
"""Each expects to wait less than the maximum at home. A fourth would be refused after a second without a credit."""


def answers_after(hold: asyncio.Event) -> Script:
    """Answer health checks at once, and chats after an event."""

    async def answer(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if received.head.startswith(b"POST"):
            await hold.wait()
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')

    return answer


async def test_queued_requests_of_a_full_region_are_forwarded_with_a_credit(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    hold = asyncio.Event()

    async def answers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')

    await publish(own_etcd, replace(policy(), anonymous_tenant="open"))
    async with (
        engine(answers_after(hold)) as home_gpu,
        engine(answers) as gpu,
        agents_in(
            tmp_path,
            own_etcd,
            {"eu-de": [home_gpu.address], "eu-es": [gpu.address]},
            {"eu-de": 1, "eu-es": 16},
        ) as agents,
    ):
        home = agents["eu-de"]
        await until_seen(lambda: home.status()["peers"]["eu-es"]["state"] == "healthy")

        async def ask() -> Answer:
            client = await RawClient.connect(home.faces()["traffic"])
            client.send(post(BODY))
            answer = await client.answer()
            client.close()
            return answer

        first = asyncio.create_task(ask())
        await until_seen(lambda: home.status()["endpoints"][0]["in_flight"] == 1)
        others = await asyncio.gather(*(ask() for _ in range(OVERFLOW)))
        assert [(response.status, response.headers["x-penstock-region"]) for response in others] == [
            (200, "eu-es")
        ] * OVERFLOW
        assert not first.done()
        hold.set()
        answer = await first
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-de")
        await until_seen(lambda: home.status()["waiting"] == {MODEL: 0} and not home.status()["in_flight"])
        assert (await ask()).headers["x-penstock-region"] == "eu-de", "home has room again"


async def test_overflow_of_full_regions_uses_the_burst_endpoint_of_the_other_one(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    hold = asyncio.Event()

    fleet = replace(policy(), anonymous_tenant="open", objective=replace(policy().objective, latency_ms_per_cost=1.0))
    near = replace(fleet.regions["eu-es"], burst=(PRICE,))
    await publish(own_etcd, replace(fleet, regions={**fleet.regions, "eu-es": near}))
    async with (
        engine(answers_after(hold)) as home_gpu,
        engine(answers_after(hold)) as gpu,
        ServerlessEndpoint() as burst,
        agents_in(
            tmp_path,
            own_etcd,
            {"eu-de": [home_gpu.address], "eu-es": [gpu.address]},
            {"eu-de": 1, "eu-es": 1},
        ) as agents,
    ):
        home, other = agents["eu-de"], agents["eu-es"]
        file = tmp_path / "eu-es" / "endpoints.yaml"
        entries = msgspec.yaml.decode(file.read_bytes())
        entries.append({"name": "provider", "url": burst.url, "models": [MODEL], "slots": 4, "burst": True})
        file.write_bytes(msgspec.yaml.encode(entries))
        await until_seen(lambda: len(other.status()["endpoints"]) == 2)
        await until_seen(lambda: home.status()["peers"]["eu-es"]["state"] == "healthy")

        async def ask(agent: AgentProcess) -> Answer:
            client = await RawClient.connect(agent.faces()["traffic"])
            client.send(post(BODY))
            answer = await client.answer()
            client.close()
            return answer

        async def occupy(agent: AgentProcess) -> asyncio.Task[Answer]:
            answer = asyncio.create_task(ask(agent))
            await until_seen(lambda: agent.status()["endpoints"][0]["in_flight"] == 1)
            return answer

        held = [await occupy(agent) for agent in (other, home)]
        answer = await ask(home)
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert burst.targets == ["/v1/chat/completions"]
        hold.set()
        assert [(await each).status for each in held] == [200, 200]


async def until_seen(holds: Callable[[], bool]) -> None:
    """Wait until `holds`, outside the event loop of the engines, since it queries processes."""
    await until_async(lambda: asyncio.to_thread(holds))
