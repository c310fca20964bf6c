"""An agent that stops ends the requests that exceed its grace, with an error of their format."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from penstock.routes.presets.preset_registry import preset_routes
from penstock.routes.route import ErrorFormat
from regional_agent.http.drain import drain_all
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.websocket.websocket_frames import CLOSE, GOING_AWAY
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, chunk, code, never_responds, streams_forever
from tests.support.planet import MODEL, plan
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.streamed_chats import chat, hangs, is_complete, streams_chat
from tests.support.tunnels import UPGRADE
from tests.support.uploads import LIMITS, taker, upload_head
from tests.support.wait import PATIENCE_S, until
from tests.support.websockets import read_frame, websocket_engine

JSON_LINES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"


async def stop(agent: Agent) -> int:
    """Stop an agent without grace; returns the number of requests that were cut."""
    return await drain_all([agent.listener, agent.peer_listener], 0.0, agent.proxy.shut_down)


async def test_an_event_stream_ends_with_an_error_event(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        stopping = asyncio.create_task(stop(agent))
        error = json.loads((await client.chunk()).removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"]) == ("shutting_down", "server_error")
        assert await client.chunk() == b""
        assert await client.closed()
        assert await stopping == 1
        assert agent.counted() == {"shutdown": 1}
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["outcome"], line["reason"]) == ("shutdown", "shutting_down")


async def test_a_stream_of_anthropics_ends_with_its_error_event(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        routes = tuple(replace(route, errors=ErrorFormat.ANTHROPIC) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=routes)
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        await client.chunk()
        stopping = asyncio.create_task(stop(agent))
        name, _, data = (await client.chunk()).partition(b"\ndata: ")
        error = json.loads(data)["error"]
        assert (name, error["details"]["error_code"]) == (b"event: error", "shutting_down")
        assert error["type"] == "overloaded_error"
        assert await stopping == 1


async def test_json_lines_end_with_an_error_line(tmp_path: Path) -> None:
    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON_LINES + chunk(b"{}\n"))
        await asyncio.Event().wait()

    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.config.policy = replace(agent.config.policy, routes=preset_routes("ollama"))
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY, path="/api/chat"))
        await client.head()
        assert await client.chunk() == b"{}\n"
        stopping = asyncio.create_task(stop(agent))
        assert b"the agent stops" in await client.chunk()
        assert await client.chunk() == b""
        assert await stopping == 1


async def refused(agent: Agent, client: RawClient, reason: str = "shutting_down") -> Answer:
    """Stop the agent; returns the refusal of the request of `client`."""
    stopping = asyncio.create_task(stop(agent))
    answer = await client.answer()
    assert code(answer.body) == reason
    assert await client.closed()
    await stopping
    assert agent.held() == agent.waiting() == 0
    return answer


async def test_a_request_without_a_response_is_refused_and_may_be_sent_again(tmp_path: Path) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests))
        answer = await refused(agent, client)
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
        assert 0 < int(answer.headers["retry-after"]) <= 3
        assert agent.counted() == {"shutdown": 1}


async def test_a_request_that_must_not_run_twice_is_not_sent_again(tmp_path: Path) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        routes = tuple(replace(route, repeatable=False) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=routes)
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests))
        answer = await refused(agent, client, "engine_timeout")
        assert "x-should-retry" not in answer.headers
        assert agent.counted() == {"shutdown": 1}


async def test_an_upload_that_has_not_arrived_is_refused(tmp_path: Path) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        await until(lambda: any(connection.sequencer.receiving for connection in agent.listener.connections))
        assert (await refused(agent, client)).status == 503


async def test_an_upload_that_an_engine_receives_is_refused(tmp_path: Path) -> None:
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        client = await RawClient.connect(agent.traffic)
        head = upload_head(1_000_000, f"x-model: {MODEL}", "content-type: audio/wav")
        client.send(head + b"x" * 200_000)
        await until(lambda: bool(gpu.head))
        assert (await refused(agent, client)).status == 503


async def test_a_tunnel_is_closed_with_a_code(tmp_path: Path) -> None:
    async with websocket_engine() as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        await client.head()
        stopping = asyncio.create_task(stop(agent))
        opcode, payload = await read_frame(client.reader)
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, GOING_AWAY)
        assert await client.closed()
        assert await stopping == 1
        assert agent.counted() == {"shutdown": 1}


async def test_a_response_without_a_length_is_reset(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.head()
        await client.reader.readuntil(b"data: 1\n\n")
        stopping = asyncio.create_task(stop(agent))
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        assert await stopping == 1
        assert agent.counted() == {"shutdown": 1}


async def test_requests_that_end_within_the_grace_are_not_ended(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await release.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with engine(streams) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        leaving = asyncio.create_task(drain_all([agent.listener], PATIENCE_S, agent.proxy.shut_down))
        await until(lambda: agent.listener.state.draining)
        release.set()
        assert [await client.chunk() for _ in range(3)] == [b"data: 1\n\n", b"data: [DONE]\n\n", b""]
        assert await leaving == 0
        assert agent.counted() == {"ok": 1}


async def test_a_hurry_ends_the_grace(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        hurry = asyncio.Event()
        leaving = asyncio.create_task(drain_all([agent.listener], 3600.0, agent.proxy.shut_down, hurry))
        await until(lambda: agent.listener.state.draining)
        hurry.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await leaving == 1


async def test_a_forwarded_stream_is_continued_when_the_agent_of_its_region_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        scripts = streams_chat(1, 7, hangs), streams_chat(2)
        madrid, frankfurt = [await stack.enter_async_context(engine(script)) for script in scripts]
        server = await stack.enter_async_context(running_agent(tmp_path / "es", [madrid.address], region="eu-es"))
        agent = await stack.enter_async_context(
            running_agent(
                tmp_path / "de",
                [frankfurt.address],
                plan=plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0),
                peers={"eu-es": server.peer},
            )
        )
        agent.continue_streams()
        server.continue_streams()
        asking = asyncio.create_task(chat(agent))
        await until(lambda: server.held() == 1 and bool(madrid.requests))
        exchanges = list(server.proxy.active)
        await until(lambda: all(exchange._state.now.name == "streaming" for exchange in exchanges))  # type: ignore[attr-defined]
        # As the withdrawal of the agent's registration does, if it is the last agent of its region.
        agent.peers.addresses.clear()
        assert await stop(server) == 1
        status, headers, body = await asking
        assert (status, is_complete(body)) == (200, True)
        assert headers["x-penstock-region"] == "eu-es", "it began there"
        assert (server.counted(), agent.counted()) == ({"shutdown": 1}, {"ok": 1})
        assert agent.continued() == {"resumed": 1}


async def test_a_forwarded_request_is_sent_elsewhere_when_the_agent_of_its_region_stops(tmp_path: Path) -> None:
    async with (
        engine(never_responds) as madrid,
        engine(streams_chat(2)) as frankfurt,
        running_agent(tmp_path / "es", [madrid.address], region="eu-es") as server,
        running_agent(
            tmp_path / "de",
            [frankfurt.address],
            plan=plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0),
            peers={"eu-es": server.peer},
        ) as agent,
    ):
        asking = asyncio.create_task(chat(agent))
        await until(lambda: bool(madrid.requests))
        assert await stop(server) == 1
        status, _, body = await asking
        assert (status, is_complete(body)) == (200, True)
        assert (server.counted(), agent.counted()) == ({"shutdown": 1}, {"ok": 1})
