"""The ledger equals what the engine received, request by request, whichever process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from control_plane.usage.usage_query import answer
from control_plane.usage.usage_request import StoreToRead, UsageRequest
from penstock.ledger.ledger_record import RecordKind
from penstock.policy.kinds.billing import UsageStore
from penstock.policy.policy import Policy
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.planet import policy
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until_async

SERVED, OPEN = 20, 3


async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    if (received.header("x-request-id") or "").startswith("open"):
        await asyncio.Event().wait()
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def ask(agent: AgentProcess, *names: str) -> list[RawClient]:
    """Send requests and read the beginning of each response, or all of it if it ends."""
    clients = []
    for name in names:
        client = await RawClient.connect(agent.faces()["traffic"])
        client.send(post(BODY, f"X-Request-Id: {name}"))
        assert (await client.head())[0] == 200
        await client.chunk()
        if not name.startswith("open"):
            while await client.chunk():
                pass
        clients.append(client)
    return clients


async def uploader_pid(agent: AgentProcess, besides: int = 0) -> int:
    """The process that stores segments, once another one than `besides` runs."""
    found: list[int] = []

    async def runs() -> bool:
        pid = (await asyncio.to_thread(agent.status))["ledger"]["uploader_pid"]
        found.append(pid or 0)
        return pid not in (None, besides)

    await until_async(runs)
    return found[-1]


def stored(store: Path) -> Counter[tuple[str, int]]:
    """How often the store has each request, with the kind of its record."""
    rows = [row for path in store.rglob("*.parquet") for row in pq.read_table(path, partitioning=None).to_pylist()]
    # Each minute adds a record of the capacity, which is no request.
    return Counter((row["request_id"], row["kind"]) for row in rows if row["kind"] != RecordKind.CAPACITY)


async def stores_all(store: Path, names: list[str]) -> bool:
    return {name for name, _ in await asyncio.to_thread(stored, store)} >= set(names)


def in_store(store: Path) -> Policy:
    """The policy of the tests with a usage store, which is unavailable at first: its path is a file."""
    store.write_text("")
    stores = (UsageStore("all", f"file://{store}", covers=frozenset(policy().regions)),)
    return replace(policy(), anonymous_tenant="open", usage_stores=stores)


def agent_in(directory: Path, etcd: EtcdServer, gpu: ScriptedEngine, **settings: str) -> AgentProcess:
    return AgentProcess(
        "a",
        directory / "a",
        region="eu-de",
        etcd_endpoint=etcd.endpoint,
        redis_url=None,
        endpoints_file=write_endpoints(directory / "endpoints.yaml", [gpu.address], slots=64),
        settings=settings,
    )


async def serves_later(agent: AgentProcess) -> list[str]:
    """Start an agent again; returns the requests that it has served since."""
    await asyncio.to_thread(agent.start)
    await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
    names = ["later-0", "later-1"]
    for client in await ask(agent, *names):
        client.close()
    return names


def received_by(gpu: ScriptedEngine) -> Counter[str | None]:
    """How often the engine received each request."""
    return Counter(each.header("x-request-id") for each in gpu.requests if each.head.startswith(b"POST"))


async def test_the_ledger_has_each_request_of_the_engine_once(tmp_path: Path, own_etcd: EtcdServer) -> None:
    store = tmp_path / "store"
    await publish(own_etcd, in_store(store))
    async with engine(streams) as gpu, AsyncExitStack() as stack:
        agent = agent_in(tmp_path, own_etcd, gpu)
        stack.push_async_callback(asyncio.to_thread, agent.kill)
        await asyncio.to_thread(agent.start)
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        finished = [f"served-{number}" for number in range(SERVED)]
        running = [f"open-{number}" for number in range(OPEN)]
        clients = await ask(agent, *finished, *running)
        first = await uploader_pid(agent)
        os.kill(first, signal.SIGKILL)
        await uploader_pid(agent, besides=first)
        await asyncio.to_thread(agent.kill)
        for client in clients:
            client.close()

        store.unlink()
        finished += await serves_later(agent)
        # The uploader, whose start takes long on a busy machine, works before the agent must wait for it.
        await until_async(lambda: stores_all(store, finished[:SERVED] + running))
        # The agent seals what it has, and the uploader puts it before it ends.
        await asyncio.to_thread(agent.stop, PATIENCE_S)
        received = received_by(gpu)

    found = stored(store)
    assert set(found.values()) == {1}
    assert {name for name, kind in found if kind == RecordKind.REQUEST} == set(finished)
    assert {name for name, kind in found if kind == RecordKind.UNKNOWN_END} == set(running)
    assert Counter(name for name, _ in found.elements()) == received
    assert list((tmp_path / "a" / "state" / "ledger").iterdir()) == []

    today = datetime.now(UTC).date()
    question = UsageRequest((StoreToRead("all", f"file://{store}"),), today - timedelta(days=1), today)
    (row,) = answer(question, tmp_path / "cache").rows
    assert (row.group, row.requests, row.unknown_requests) == ({"tenant": "open"}, len(finished), OPEN)


@pytest.mark.long
async def test_the_ledger_is_exact_after_a_full_disk_an_unavailable_store_and_kills(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    """All in one run: the store is unavailable, the disk becomes full until requests are refused, the agent and its
    uploader are killed with open requests, and once more while the uploader catches up."""
    store = tmp_path / "store"
    await publish(own_etcd, in_store(store))
    async with engine(streams) as gpu, AsyncExitStack() as stack:
        agent = agent_in(tmp_path, own_etcd, gpu, LEDGER_WHEN_FULL="refuse")
        stack.push_async_callback(asyncio.to_thread, agent.kill)
        await asyncio.to_thread(agent.start)
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        finished, refused = list[str](), list[str]()
        numbers = iter(range(1_000_000))

        async def fill(until_refused: int) -> None:
            client = await RawClient.connect(agent.faces()["traffic"])
            while len(refused) < until_refused and len(finished) < 50_000:
                # Long identifiers fill the files sooner.
                name = f"served-{next(numbers)}-".ljust(128, "x")
                client.send(post(BODY, f"X-Request-Id: {name}"))
                status = (await client.answer()).status
                (refused if status == 503 else finished).append(name)
                assert status in (200, 503)
            client.close()

        running = [f"open-{number}" for number in range(OPEN)]
        clients = await ask(agent, *running)
        uploader = await uploader_pid(agent)
        # No file can be made or extended, as on a full disk.
        prlimit(agent.pid, RLIMIT_FSIZE, (0, RLIM_INFINITY))
        await asyncio.gather(*(fill(20) for _ in range(16)))
        os.kill(uploader, signal.SIGKILL)
        await asyncio.to_thread(agent.kill)
        for client in clients:
            client.close()

        store.unlink()
        finished += await serves_later(agent)
        await asyncio.to_thread(agent.kill)
        await asyncio.to_thread(agent.start)
        await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
        await until_async(lambda: stores_all(store, [*finished, *running]))
        await asyncio.to_thread(agent.stop, PATIENCE_S)
        received = received_by(gpu)

    found = stored(store)
    print(f"{len(finished)} served, {len(refused)} refused, {OPEN} open")
    assert refused
    assert set(found.values()) == {1}
    assert {name for name, kind in found if kind == RecordKind.REQUEST} == set(finished)
    assert {name for name, kind in found if kind == RecordKind.UNKNOWN_END} == set(running)
    assert Counter(name for name, _ in found.elements()) == received
    assert not received.keys() & set(refused)
