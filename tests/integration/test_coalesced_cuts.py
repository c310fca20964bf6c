"""Shared streams that an engine cuts end as the stream of one client: with the error of its format, and a reset where
only the close of the connection would be the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.coalescing import Coalescing
from tests.integration.test_async_requests import ended
from tests.integration.test_batches import serving
from tests.integration.test_coalescing import CHAT, CHATS
from tests.integration.test_proxy_cuts import Streaming, becomes_invalid, dies, ends_too_early, expires
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, chunk
from tests.support.on_uvloop import on_uvloop
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until

LINES_HEAD = SSE_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
NEW = post(CHAT, path=CHATS)
OLD = NEW.replace(b"HTTP/1.1", b"HTTP/1.0")
EVENT, LINE = b'data: {"text": "one"}\n\n', b'{"text": "one"}\n'
CUTS = [dies, ends_too_early, becomes_invalid, expires]


class Begun(Streaming):
    """An engine whose streams have begun with one part, and end as a test decides."""

    def __init__(self, head: bytes, part: bytes) -> None:
        super().__init__(head + chunk(part))

    async def __call__(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.head)
        await asyncio.Event().wait()


async def begin(agent: Agent, request: bytes) -> RawClient:
    """Send a request, and read the first part of its stream."""
    client = await RawClient.connect(agent.traffic)
    client.send(request)
    assert (await client.head())[0] == 200
    async with asyncio.timeout(PATIENCE_S):
        await client.reader.readuntil(b'"one"}\n')
    return client


async def ending(client: RawClient) -> tuple[bytes, str]:
    """Read the end of a stream; returns it without its request's identifier, and what happens to the connection."""
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while not received.endswith(b"0\r\n\r\n"):
                data = await client.reader.read(1 << 16)
                if not data:
                    return _without_id(received), "closed"
                received += data
        except ConnectionResetError:
            return _without_id(received), "reset"
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n")
    return _without_id(received), "closed" if await client.closed() else "kept"


def _without_id(received: bytes) -> bytes:
    return re.sub(rb'"request_id": ?"[^"]*"', b"", received).lstrip(b"\r\n")


async def cut_streams(
    agent: Agent, script: Streaming, request: bytes, clients: int, cut: Callable[[Agent, Streaming], Awaitable[None]]
) -> list[tuple[bytes, str]]:
    """The ends of the streams of some clients whose engine's stream is cut."""
    before = len(script.writers)
    connected = [await begin(agent, request) for _ in range(clients)]
    script.writers[0] = script.writers[before]
    await cut(agent, script)
    ends = await asyncio.gather(*(ending(client) for client in connected))
    for client in connected:
        client.close()
    await until(lambda: agent.held() == 0)
    return ends


@pytest.mark.parametrize(("head", "part"), [(SSE_HEAD, EVENT), (LINES_HEAD, LINE)], ids=["events", "lines"])
@pytest.mark.parametrize("request_head", [NEW, OLD], ids=["http11", "http10"])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_a_shared_stream_that_is_cut_ends_as_that_of_one_client(
    tmp_path: Path, cut: Callable[[Agent, Streaming], Awaitable[None]], request_head: bytes, head: bytes, part: bytes
) -> None:
    @on_uvloop
    async def test() -> None:
        script = Begun(head, part)
        async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
            (alone,) = await cut_streams(agent, script, request_head, 1, cut)
            outcomes = agent.counted()
            agent.config.policy = replace(agent.config.policy, coalescing=Coalescing(("openai-*",)))
            runs = len(gpu.requests)
            shared = await cut_streams(agent, script, request_head, 3, cut)
            assert shared == [alone] * 3
            assert b'"error"' in alone[0] or request_head is OLD, "a reset may destroy what was not read"
            assert alone[1] == ("reset" if request_head is OLD else "kept")
            assert len(gpu.requests) == runs + 1
            assert agent.counted() == dict.fromkeys(outcomes, 2.0)
            saved = agent.metrics.registry.get_sample_value("penstock_agent_coalesced_saved_gpu_seconds_total")
            assert saved == 0.0, "no client has a response"

    test()


async def test_an_asynchronous_request_whose_stream_is_cut_runs_again(tmp_path: Path) -> None:
    async def cut_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENT))
        if len(e.requests) == 1:
            writer.transport.abort()
        else:
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with engine(cut_once) as gpu, serving(tmp_path, gpu) as (_, client):
        headers = {"prefer": "respond-async", "content-type": "application/json"}
        job = (await client.http.post(CHATS, content=CHAT, headers=headers)).json()["id"]
        done = await ended(client, job)
        assert (done["status"], len(gpu.requests)) == ("completed", 2)
        result = await client.http.get(done["result"]["url"])
        assert result.content == EVENT + b"data: [DONE]\n\n"
