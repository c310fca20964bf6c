"""Whole agents that are restarted one after the other: streams that end within the grace are complete."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from adapters.servers.etcd import EtcdServer
from regional_agent.daemon import MIN_DEFAULT_GRACE_S
from tests.support.agent_processes import AgentProcess, publish, write_endpoints
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.planet import policy
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

REGION = "eu-de"
STREAMS = 4


class Streams:
    """An engine whose streams end when a test permits it."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def engine(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        if received.header("x-request-id") == "long":
            await self.may_end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def begin(self, process: AgentProcess) -> list[RawClient]:
        """Begin streams at an agent."""
        self.may_end.clear()
        clients = [await RawClient.connect(process.faces()["traffic"]) for _ in range(STREAMS)]
        for client in clients:
            client.send(post(BODY, "X-Request-Id: long"))
            assert (await client.head())[0] == 200
            assert await client.chunk() == b"data: 1\n\n"
        return clients


def has_logged(process: AgentProcess, event: str) -> bool:
    return f'"event": "{event}"' in process.log_tail(30)


async def is_served(process: AgentProcess) -> bool:
    client = await RawClient.connect(process.faces()["traffic"])
    client.send(post(BODY))
    answer = await client.answer()
    client.close()
    return answer.body == b"data: 1\n\ndata: [DONE]\n\n"


async def started(process: AgentProcess, stack: AsyncExitStack) -> AgentProcess:
    stack.push_async_callback(asyncio.to_thread, process.kill)
    await asyncio.to_thread(process.start)
    await asyncio.to_thread(process.wait_ready, PATIENCE_S)
    return process


def agent_process(directory: Path, name: str, etcd: EtcdServer, endpoints: Path, **settings: str) -> AgentProcess:
    return AgentProcess(
        name,
        directory / name,
        region=REGION,
        etcd_endpoint=etcd.endpoint,
        redis_url=None,
        endpoints_file=endpoints,
        settings={"LIMITS": '{"idle_linger_s": 0.5}', **settings},
    )


async def test_a_restart_of_both_agents_loses_no_stream(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    streams = Streams()
    async with engine(streams.engine) as gpu, AsyncExitStack() as stack:
        endpoints = write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], slots=1000)
        agents = [await started(agent_process(tmp_path, name, own_etcd, endpoints), stack) for name in ("a", "b")]
        for leaving, other in (agents, agents[::-1]):
            clients = [*await streams.begin(leaving), *await streams.begin(other)]
            stopping = asyncio.create_task(asyncio.to_thread(leaving.stop, PATIENCE_S))
            await until(lambda leaving=leaving: has_logged(leaving, "draining"))
            assert f'"grace_s": {MIN_DEFAULT_GRACE_S}' in leaving.log_tail(30)
            assert await is_served(other)
            assert not stopping.done(), "it completes its streams"
            streams.may_end.set()
            for client in clients:
                assert [await client.chunk() for _ in range(2)] == [b"data: [DONE]\n\n", b""]
            await stopping
            assert (leaving.returncode, '"cut": 0' in leaving.log_tail()) == (0, True), leaving.log_tail()
            await started(leaving, stack)


async def test_streams_that_exceed_the_grace_end_with_an_error(tmp_path: Path, own_etcd: EtcdServer) -> None:
    await publish(own_etcd, msgspec.structs.replace(policy(), anonymous_tenant="open"))
    streams = Streams()
    async with engine(streams.engine) as gpu, AsyncExitStack() as stack:
        endpoints = write_endpoints(tmp_path / "endpoints.yaml", [gpu.address], slots=1000)
        hasty = agent_process(tmp_path, "hasty", own_etcd, endpoints, SHUTDOWN_GRACE_S="0.5")
        patient = agent_process(tmp_path, "patient", own_etcd, endpoints)
        for process, signals in ((hasty, [signal.SIGTERM]), (patient, [signal.SIGINT, signal.SIGTERM, signal.SIGINT])):
            await started(process, stack)
            clients = await streams.begin(process)
            for signum in signals:
                os.kill(process.pid, signum)
                await until(lambda process=process: has_logged(process, "draining"))
            for client in clients:
                error = json.loads((await client.chunk()).removeprefix(b"data: "))["error"]
                assert error["code"] == "shutting_down"
                assert await client.chunk() == b""
            assert await asyncio.to_thread(process.wait_exit, PATIENCE_S)
            assert (process.returncode, f'"cut": {STREAMS}' in process.log_tail()) == (0, True), process.log_tail()
