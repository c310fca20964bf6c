"""Two workers behind one port, as real processes: a crash loses only the worker's requests; an upgrade loses none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.servers.etcd import EtcdServer
from adapters.servers.redis import RedisServer
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.identities import agent_id, write_identity
from tests.support.planet import policy
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until, until_async

REGION = "eu-de"
WORKERS = ("a-1", "a-2")
MAX_STREAMS = 400
"""Connections after which each worker must have accepted one: a kernel that prefers one worker prefers an idle one."""


class Supervisor(AgentProcess):
    """A supervisor, `penstock-agent` with two workers, as a process."""

    def __init__(
        self, directory: Path, etcd: EtcdServer, redis: RedisServer, gpu: Address, traffic: Address | None = None
    ) -> None:
        for name in WORKERS:
            write_identity(directory / "workers" / name, agent_id(REGION, name))
        super().__init__(
            "a",
            directory,
            region=REGION,
            etcd_endpoint=etcd.endpoint,
            redis_url=redis.url,
            endpoints_file=write_endpoints(directory / "endpoints.yaml", [gpu], slots=1000),
            listens={"traffic": traffic} if traffic is not None else {},
            settings={
                "WORKERS": "2",
                "IDENTITY_DIR": str(directory / "workers"),
                "LIMITS": '{"idle_linger_s": 0.5}',
            },
        )

    def lines(self, event: str) -> Iterator[dict[str, Any]]:
        """The log lines of one event."""
        for line in self.log_path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                said = msgspec.json.decode(line)
                if said.get("event") == event:
                    yield said

    def faces(self) -> dict[str, Address]:
        """Listen addresses of the first worker; empty before all workers listen."""
        workers = self.workers()
        return {face: Address.parse(workers[0][face]) for face in ("traffic", "peer", "admin")} if workers else {}

    def workers(self) -> list[dict[str, str]]:
        """The supervisor's report when all workers serve."""
        for line in self.log_path.read_bytes().splitlines():
            if line.startswith(b'{"supervisor"'):
                found: list[dict[str, str]] = json.loads(line)["workers"]
                return found
        return []

    def pids_of(self, number: int) -> list[int]:
        """Process ids of a worker, the newest last."""
        return [line["pid"] for line in self.lines("worker started") if line["worker"] == number]


class Streams:
    """Streams that an engine begins, with the worker's name in the first event, and ends when a test permits it."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.open: dict[str, list[RawClient]] = {name: [] for name in WORKERS}

    async def engine(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        worker = (received.header("via") or "probe.").split()[-1].split(".")[0]
        writer.write(SSE_HEAD + chunk(f"data: {worker}\n\n".encode()))
        if received.header("x-request-id") == "long":
            await self.may_end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def begin(self, address: Address) -> str:
        """Open one more stream; returns the worker that accepted it."""
        client = await RawClient.connect(address)
        client.send(post(BODY, "X-Request-Id: long"))
        assert (await client.head())[0] == 200
        worker = (await client.chunk()).split()[1].decode()
        self.open[worker].append(client)
        return worker

    async def begin_at_each(self, address: Address) -> None:
        """Open streams until each worker has accepted one."""
        for _ in range(MAX_STREAMS):
            await self.begin(address)
            if all(self.open.values()):
                return
        raise AssertionError(f"one worker accepted all: { {name: len(each) for name, each in self.open.items()} }")

    def renew(self) -> None:
        """Remove the streams that have ended."""
        self.may_end = asyncio.Event()
        self.open = {name: [] for name in WORKERS}

    async def end_well(self, name: str) -> None:
        """Let the engine end the streams, and check that each stream of a worker ends with [DONE]."""
        self.may_end.set()
        for client in self.open[name]:
            assert [await client.chunk() for _ in range(2)] == [b"data: [DONE]\n\n", b""]


async def ask(address: Address) -> str:
    """Send a request on a new connection; returns the worker that served it."""
    client = await RawClient.connect(address)
    client.send(post(BODY))
    answer = await client.answer()
    assert answer.status == 200, answer
    client.close()
    return answer.body.split()[1].decode()


async def keep_asking(address: Address, enough: asyncio.Event) -> int:
    """Send requests in sequence, which all succeed; returns their number."""
    count = 0
    while not enough.is_set():
        await ask(address)
        count += 1
    return count


async def test_a_worker_fails_alone_and_an_upgrade_of_all_loses_nothing(
    tmp_path: Path, own_etcd: EtcdServer, redis_server: RedisServer
) -> None:
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    streams = Streams()
    async with engine(streams.engine) as gpu:
        process = Supervisor(tmp_path / "old", own_etcd, redis_server, gpu.address)
        successor: Supervisor | None = None
        try:
            await asyncio.to_thread(process.start)
            await asyncio.to_thread(process.wait_ready, PATIENCE_S)
            address = process.faces()["traffic"]
            assert [worker["agent"] for worker in process.workers()] == list(WORKERS)
            await streams.begin_at_each(address)

            os.kill(process.pids_of(1)[-1], signal.SIGKILL)
            for client in streams.open["a-1"]:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await client.chunk()
            assert await asyncio.gather(*(ask(address) for _ in range(20)))
            await until(lambda: len(process.pids_of(1)) == 2)

            async def serves_again() -> bool:
                return await ask(address) == "a-1"

            await until_async(serves_again)
            await streams.end_well("a-2")

            streams.renew()
            await streams.begin_at_each(address)
            successor = Supervisor(tmp_path / "new", own_etcd, redis_server, gpu.address, traffic=address)
            await asyncio.to_thread(successor.start)
            await asyncio.to_thread(successor.wait_ready, PATIENCE_S)
            enough = asyncio.Event()
            clients = [asyncio.create_task(keep_asking(address, enough)) for _ in range(4)]
            leaving = asyncio.create_task(asyncio.to_thread(process.stop, PATIENCE_S))
            await until(lambda: len(list(process.lines("draining"))) == 2)
            for name in WORKERS:
                await streams.end_well(name)
            await leaving
            await ask(address)
            enough.set()
            assert sum(await asyncio.gather(*clients)) > 0
            assert process.returncode == 0
            cut = {line["agent"]: line["cut"] for line in process.lines("stopped") if "agent" in line}
            assert cut == dict.fromkeys(WORKERS, 0)
        finally:
            await asyncio.to_thread(process.kill)
            if successor is not None:
                await asyncio.to_thread(successor.kill)
