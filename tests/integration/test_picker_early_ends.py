"""Responses through a real Envoy that end early: by the endpoint, which is charged, or by the client, which left."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, chunk, streams_forever
from tests.support.envoys import Config, http_manager, running_envoy, running_picker
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until

EVENT = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ERROR = b'data: {"error":{"message":"CUDA error","code":500}}\n\n'
CLOSED_BY_END = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"


def breaks_off(begin: bytes, end: bytes = b"", *, resets: bool = False) -> Script:
    """An engine that sends `begin`, waits until the client has received a part of it, and then breaks off after `end`.

    Args:
        resets: whether the connection is reset, and not closed.
    """

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await received_by_client(e).wait()
        received_by_client(e).clear()
        writer.write(end)
        await writer.drain()
        if resets:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    return script


def received_by_client(e: ScriptedEngine) -> asyncio.Event:
    """Set once the client has received a part of the response of an engine."""
    event: asyncio.Event = e.__dict__.setdefault("received", asyncio.Event())
    return event


@asynccontextmanager
async def behind_envoy(
    directory: Path, script: Script, change: Callable[[Config], None] | None = None
) -> AsyncIterator[tuple[ScriptedEngine, Agent, Address]]:
    """An engine, its agent, and the address of an Envoy that asks the agent; `change` changes Envoy's configuration."""
    async with (
        engine(script) as gpu,
        running_agent(directory / "agent", [gpu.address]) as agent,
        running_picker(agent) as picker,
        running_envoy(directory, picker, [gpu.address], *([change] if change else [])) as front,
    ):
        yield gpu, agent, front


def charged(agent: Agent) -> int:
    return sum(endpoint.ejection.failures for endpoint in agent.endpoints.every())


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (breaks_off(SSE_HEAD + chunk(EVENT)), "engine_cut"),
        (breaks_off(SSE_HEAD + chunk(EVENT), resets=True), "engine_cut"),
        (breaks_off(SSE_HEAD + chunk(EVENT), b"no chunk\r\n"), "engine_cut"),
        (breaks_off(CLOSED_BY_END + EVENT), "engine_cut"),
        (breaks_off(COUNTED + b'{"choices": ['), "engine_cut"),
        (breaks_off(SSE_HEAD + chunk(EVENT), chunk(ERROR)), "engine_error"),
        (breaks_off(SSE_HEAD + chunk(EVENT), chunk(LAST)), "ok"),
        (breaks_off(CLOSED_BY_END + EVENT, LAST), "ok"),
    ],
)
async def test_an_endpoint_that_breaks_off_is_charged(tmp_path: Path, script: Script, outcome: str) -> None:
    async with behind_envoy(tmp_path, script) as (gpu, agent, front):
        for number in range(1, 4):
            client = await RawClient.connect(front)
            client.send(post(BODY))
            assert (await client.head())[0] == 200
            await client.reader.readexactly(1)
            received_by_client(gpu).set()
            await until(lambda: agent.counted() == {outcome: float(number)})  # noqa: B023
            client.close()
        assert charged(agent) == (0 if outcome == "ok" else 3)
        assert agent.held() == 0


async def test_an_endpoint_whose_clients_leave_is_not_charged(tmp_path: Path) -> None:
    async with behind_envoy(tmp_path, streams_forever) as (_, agent, front):
        for number in range(1, 4):
            client = await RawClient.connect(front)
            client.send(post(BODY))
            await client.head()
            await client.reader.readexactly(1)
            client.close()
            await until(lambda: agent.counted() == {"client_left": float(number)})  # noqa: B023
        assert (charged(agent), agent.held()) == (0, 0)


async def test_a_response_that_envoy_ends_because_it_stopped_arriving_is_stalled(tmp_path: Path) -> None:
    def idle(config: Config) -> None:
        http_manager(config)["stream_idle_timeout"] = "6s"

    async def stops(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENT))
        await asyncio.Event().wait()

    async with behind_envoy(tmp_path, stops, idle) as (_, agent, front):
        client = await RawClient.connect(front)
        client.send(post(BODY))
        assert (await client.head())[0] == 200
        await until(lambda: agent.counted() == {"stalled": 1.0})
        client.close()
        assert (charged(agent), agent.held()) == (1, 0)
