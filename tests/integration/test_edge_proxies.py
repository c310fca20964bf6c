"""Agents behind the shipped configurations of Envoy, HAProxy and nginx for clients, with the real programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from adapters.servers.errors import MissingBinary
from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess
from regional_agent.upstream.address import Address
from tests.integration.test_gateways import envoy, haproxy, nginx
from tests.support.agents import running_agent
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.paths import ROOT
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until_async

EDGES = ROOT / "deploy" / "edge"
EDGE = {"haproxy": ("haproxy.cfg", haproxy), "envoy": ("envoy.yaml", envoy), "nginx": ("nginx.conf", nginx)}

pytestmark = pytest.mark.long


class Streams:
    """An engine whose streams go on when a test permits it."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def engine(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await self.may_end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@asynccontextmanager
async def edge(name: str, directory: Path, agents: list[Address]) -> AsyncIterator[Address]:
    """Run a proxy by its shipped configuration, with the ports of this test."""
    shipped, command = EDGE[name]
    (port,) = free_ports(1)
    text = (EDGES / shipped).read_text().replace("8000", str(port))
    for example, agent in zip(("10.1.0.5", "10.1.0.6"), agents, strict=True):
        text = text.replace(f"{example}:8080", str(agent))
        text = text.replace(f"{example}, port_value: 8080", f"{LOOPBACK}, port_value: {agent.port}")
    if name == "nginx":
        # Debian's nginx has these below /var, where only an installed one may write.
        folders = (f"{each}_temp_path {each};" for each in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi"))
        text = text.replace("http {", f"http {{ access_log off; {' '.join(folders)}", 1)
    (directory / shipped).write_text(text)
    try:
        process = ServerProcess(name, command(directory / shipped), log_path=directory / f"{name}.log", ports=(port,))
    except MissingBinary as missing:
        pytest.skip(str(missing))
    await asyncio.to_thread(process.start)
    try:
        yield Address(LOOPBACK, port)
    finally:
        await asyncio.to_thread(process.kill)


async def status_through(address: Address) -> int:
    """Return the status of a chat; 0 without an answer."""
    try:
        client = await RawClient.connect(address)
    except OSError:
        return 0
    try:
        client.send(post(BODY))
        return (await client.answer()).status
    except (OSError, asyncio.IncompleteReadError):
        return 0
    finally:
        client.close()


@pytest.mark.parametrize("name", EDGE)
async def test_streams_are_not_held_back_and_a_lost_agent_is_avoided(name: str, tmp_path: Path) -> None:
    streams = Streams()
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(streams.engine))
        lost = AsyncExitStack()
        stack.push_async_callback(lost.aclose)
        first = await lost.enter_async_context(running_agent(tmp_path / "1", [gpu.address], slots=100))
        second = await stack.enter_async_context(
            running_agent(tmp_path / "2", [gpu.address], slots=100, name="agent-2")
        )
        address = await stack.enter_async_context(edge(name, tmp_path, [first.traffic, second.traffic]))
        streams.may_end.set()

        async def serves() -> bool:
            return await status_through(address) == 200

        await until_async(serves, PATIENCE_S)
        streams.may_end.clear()
        client = await RawClient.connect(address)
        client.send(post(BODY))
        status, headers = await client.head()
        assert (status, await client.chunk()) == (200, b"data: 1\n\n"), "before the engine has written the rest"
        assert headers["x-penstock-region"] == "eu-de"
        streams.may_end.set()
        assert await client.chunk() == b"data: [DONE]\n\n"
        client.close()
        refused = await RawClient.connect(address)
        refused.send(post(BODY, "Authorization: Bearer no-such-key"))
        answer = await refused.answer()
        assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
        refused.close()
        await lost.aclose()
        assert [await status_through(address) for _ in range(20)] == [200] * 20
