"""Batch requests of a full region run in another one while that has idle slots, and come back when it has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from tests.support.agent_processes import AgentProcess, agents_in, publish
from tests.support.chats import BODY
from tests.support.jobs import JobClient, embeds, input_file, job_store
from tests.support.planet import policy
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until, until_async

REQUESTS = 20
FAR_SLOTS = 16
FAR_ROOM = 10
"""Slots of eu-es up to its target utilisation, less the one that stays for spillover of requests with a priority, and
less the one of the credit that eu-de holds for its chats."""


class Gate:
    """The script of an engine that holds chats and embeddings until each is let through."""

    def __init__(self) -> None:
        self.chats, self.embeddings = asyncio.Event(), asyncio.Event()
        self.held_chats = self.embedded = 0

    async def __call__(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"text " in received.body:
            self.embedded += 1
            await self.embeddings.wait()
            await embeds(e, received, writer)
        elif received.body:
            self.held_chats += 1
            await self.chats.wait()
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')
        else:
            await embeds(e, received, writer)


async def test_a_batch_of_a_full_region_runs_where_slots_are_idle_and_ceases_when_that_region_fills(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    near, far = Gate(), Gate()
    store = job_store(tmp_path / "store")
    await publish(own_etcd, replace(policy(), anonymous_tenant="open", job_stores=(store,)))
    async with (
        engine(near) as near_gpu,
        engine(far) as far_gpu,
        agents_in(
            tmp_path,
            own_etcd,
            {"eu-de": [near_gpu.address], "eu-es": [far_gpu.address]},
            {"eu-de": 2, "eu-es": FAR_SLOTS},
        ) as agents,
    ):
        home, away = agents["eu-de"], agents["eu-es"]

        async def chat(agent: AgentProcess) -> Answer:
            client = await RawClient.connect(agent.faces()["traffic"])
            client.send(post(BODY))
            answer = await client.answer()
            client.close()
            return answer

        chats = [asyncio.create_task(chat(home)) for _ in range(2)]
        await until(lambda: near.held_chats == 2)
        async with JobClient(home.faces()["traffic"]) as client:
            batch = await client.started(input_file(REQUESTS))
            await until(lambda: far.embedded >= FAR_ROOM)
            assert near.embedded == 0

            # eu-es fills: the chats that find no slot there are before every batch request.
            chats += [asyncio.create_task(chat(away)) for _ in range(FAR_SLOTS)]
            await until(lambda: far.held_chats == FAR_SLOTS - far.embedded)
            await until_async(lambda: asyncio.to_thread(lambda: sum(away.status()["waiting"].values()) == far.embedded))
            # A request that was under way when the grant was renewed is one more.
            embedded = far.embedded
            assert embedded <= FAR_ROOM + 1
            far.embeddings.set()
            await until(lambda: far.held_chats == FAR_SLOTS)
            assert (far.embedded, near.embedded) == (embedded, 0)

            near.embeddings.set()
            near.chats.set()
            ended = await client.ended(batch)
            assert ended["request_counts"] == {"total": REQUESTS, "completed": REQUESTS, "failed": 0}
            assert (far.embedded, near.embedded) == (embedded, REQUESTS - embedded)
            results = await client.lines(ended["output_file_id"])
            assert sorted(each["custom_id"] for each in results) == sorted(f"r{n}" for n in range(REQUESTS))
        metrics = await asyncio.to_thread(home.ask, "/metrics")
        (counted,) = [line for line in metrics.text.splitlines() if 'requests_total{kind="batch"' in line]
        assert (counted.split()[-1], 'server="eu-es"' in counted) == (f"{embedded}.0", True)
        far.chats.set()
        assert {answer.status for answer in await asyncio.gather(*chats)} == {200}
