"""Responses through a real Envoy that end early: by the endpoint, which is charged, or by the client, which left."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from regional_agent.picker import early_ends
from regional_agent.picker.early_ends import MAX_UNREPORTED
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, chunk, streams_forever
from tests.support.envoys import Config, clusters, http_manager, lb_endpoints, running_envoy, running_picker
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


def unreported(agent: Agent) -> float:
    return agent.metrics.registry.get_sample_value("penstock_agent_unreported_ends_total") or 0.0


async def break_off(front: Address, gpu: ScriptedEngine, ended: Callable[[], bool]) -> None:
    """Send a request, whose response breaks off once a part of it has arrived, and stay until it has `ended`."""
    client = await RawClient.connect(front)
    client.send(post(BODY))
    assert (await client.head())[0] == 200
    await client.reader.readexactly(1)
    received_by_client(gpu).set()
    await until(ended)
    client.close()


def picker_options(config: Config) -> Config:
    """The HTTP/2 settings of the picker's cluster."""
    (options,) = clusters(config)["penstock-picker"]["typed_extension_protocol_options"].values()
    found: Config = options["explicit_http_config"]["http2_protocol_options"]
    return found


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
            await break_off(front, gpu, lambda: agent.counted() == {outcome: float(number)})  # noqa: B023
        assert charged(agent) == (0 if outcome == "ok" else 3)
        assert (agent.held(), unreported(agent)) == (0, 0)


async def test_an_endpoint_whose_clients_leave_is_not_charged(tmp_path: Path) -> None:
    async with behind_envoy(tmp_path, streams_forever) as (_, agent, front):
        for number in range(1, 4):
            client = await RawClient.connect(front)
            client.send(post(BODY))
            await client.head()
            await client.reader.readexactly(1)
            client.close()
            await until(lambda: agent.counted() == {"client_left": float(number)})  # noqa: B023
        assert (charged(agent), agent.held(), unreported(agent)) == (0, 0, 0)


async def test_an_entry_that_takes_another_connection_than_its_request_counts(tmp_path: Path) -> None:
    def one_call_a_connection(config: Config) -> None:
        picker_options(config)["max_concurrent_streams"] = 1

    async with behind_envoy(tmp_path, breaks_off(SSE_HEAD + chunk(EVENT)), one_call_a_connection) as (
        gpu,
        agent,
        front,
    ):
        for number in range(1, 6):
            await break_off(front, gpu, lambda: agent.counted() == {"engine_cut": float(number)})  # noqa: B023
        assert (agent.held(), unreported(agent)) == (0, 0)


def no_log(config: Config) -> None:
    """Remove the access log that reports early ends to the picker."""
    del http_manager(config)["access_log"]


async def test_without_an_access_log_early_ends_are_counted_and_charge_no_endpoint(tmp_path: Path) -> None:
    async with behind_envoy(tmp_path, breaks_off(SSE_HEAD + chunk(EVENT)), no_log) as (gpu, agent, front):
        for number in range(1, MAX_UNREPORTED + 3):
            await break_off(front, gpu, lambda: agent.counted() == {"client_left": float(number)})  # noqa: B023
            assert unreported(agent) == number
        assert (charged(agent), agent.held()) == (0, 0)


async def test_an_agent_that_stops_awaits_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_ends, "LATE_S", 3600.0)

    async with behind_envoy(tmp_path, breaks_off(SSE_HEAD + chunk(EVENT)), no_log) as (gpu, agent, front):
        client = await RawClient.connect(front)
        client.send(post(BODY))
        assert (await client.head())[0] == 200
        await client.reader.readexactly(1)
        received_by_client(gpu).set()
        await client.until_cut()
        assert agent.counted() == {}
    assert agent.counted() == {"client_left": 1.0}
    assert (agent.held(), unreported(agent)) == (0, 1)


@pytest.mark.parametrize("logs", [1, 2])
async def test_each_agent_needs_a_log_of_its_own(tmp_path: Path, logs: int) -> None:
    async with (
        engine(breaks_off(SSE_HEAD + chunk(EVENT))) as gpu,
        running_agent(tmp_path / "1", [gpu.address]) as one,
        running_agent(tmp_path / "2", [gpu.address], name="agent-2") as two,
        running_picker(one) as first,
        running_picker(two) as second,
    ):

        def two_agents(config: Config) -> None:
            of_both, own_logs = clusters(config)["penstock-picker"], []
            (log,) = http_manager(config)["access_log"]
            for number, picker in list(enumerate((first, second)))[:logs]:
                name = f"picker-{number}"
                endpoints = {"cluster_name": name, "endpoints": [{"lb_endpoints": lb_endpoints([picker])}]}
                own = of_both | {"name": name, "load_assignment": endpoints}
                config["static_resources"]["clusters"].append(own)
                typed = log["typed_config"]
                service = {"envoy_grpc": {"cluster_name": name}}
                common = typed["common_config"] | {"grpc_service": service, "log_name": name}
                own_logs.append(log | {"typed_config": typed | {"common_config": common}})
            http_manager(config)["access_log"] = own_logs
            both = [{"lb_endpoints": lb_endpoints([first, second])}]
            of_both["load_assignment"]["endpoints"] = both

        def ended() -> float:
            return sum(sum(agent.counted().values()) for agent in (one, two))

        async with running_envoy(tmp_path, first, [gpu.address], two_agents) as front:
            for number in range(1, 9):
                await break_off(front, gpu, lambda: ended() == number)  # noqa: B023
        assert one.counted().keys() == {"engine_cut"}
        assert two.counted().keys() == ({"engine_cut"} if logs == 2 else {"client_left"})
        assert unreported(one) == 0
        assert unreported(two) == (0 if logs == 2 else two.counted()["client_left"])
        assert one.held() == two.held() == 0


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
