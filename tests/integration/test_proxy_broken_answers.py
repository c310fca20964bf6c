"""Responses that end early, after their first byte, are not retried, and clients detect that they are incomplete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from regional_agent.proxy import exchange
from regional_agent.proxy.responses.relayed_response import RelayedResponse
from regional_agent.telemetry.access_log import AccessLog
from tests.support.agents import running_agent
from tests.support.chats import BODY, SSE_HEAD, answers, as_own, ask, chunk
from tests.support.codings import gzipped
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until


async def test_a_stream_that_breaks_ends_with_an_error_event(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await writer.drain()
        writer.transport.abort()

    async with engine(dies) as gpu, engine(answers) as other, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        _, _, body = await client.answer()
        first, _, event = body.partition(b"data: {")
        assert first == b"data: 1\n\n"
        assert json.loads(b"{" + event)["error"]["code"] == "engine_failed"
        assert (agent.held(), agent.counted()) == (0, {"engine_cut": 1})
        assert not other.requests, "never again after the first byte"
        # A client cannot know that the connection would close, and may be sending its next request.
        client.send(post(BODY))
        assert (await client.answer()).body.startswith(first)


async def test_an_incomplete_event_does_not_hide_the_error_event(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + chunk(b'data: {"choi'))
        writer.close()

    async with engine(dies) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        first, half, event, end = (await client.answer()).body.split(b"\n\n")
        assert (first, half, end) == (b"data: 1", b'data: {"choi', b"")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_failed"


async def test_the_relayed_bytes_of_a_stream_are_counted(tmp_path: Path) -> None:
    parts = (b"data: 1\n\n", b"data: 2\n\n", b'data: {"choi')
    go_on = asyncio.Event()

    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for data in parts:
            writer.write(chunk(data))
            await go_on.wait()
            go_on.clear()
        writer.transport.abort()

    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(dies) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        for data in parts:
            assert await client.chunk() == data
            go_on.set()
        error = await client.chunk()
        assert error.startswith(b"\n\ndata: {")
        assert await client.chunk() == b""
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert line["sent_bytes"] > sum(len(chunk(data)) for data in (*parts, error))


BEGINNING = gzipped(b"data: 1\n\n")[:-8]


async def test_a_broken_compressed_stream_is_closed(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + chunk(BEGINNING))
        writer.close()

    async with engine(dies) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await client.head()
        assert await client.chunk() == BEGINNING
        assert await client.closed()


async def test_a_broken_response_closes_the_connection(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: 1\n\nhalf")
        await writer.drain()
        writer.transport.abort()

    async with engine(dies) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
        await until(lambda: agent.held() == 0)


@pytest.mark.parametrize("half", [b"5\r\nab", b"5\r\nabcde", b"5\r\nabcde\r\n", b"zz\r\n", b"0\r\n"])
async def test_a_close_in_the_middle_of_a_chunk_is_incomplete(tmp_path: Path, half: bytes) -> None:
    async def stops(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n") + half)
        await writer.drain()
        writer.close()

    async with engine(stops) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        _, _, body = await ask(agent)
        assert body.startswith(b"data: 1\n\n")
        assert json.loads(body[body.index(b"data: {") + 6 :])["error"]["code"] == "engine_failed"
        await until(lambda: agent.held() == 0)


async def test_a_length_that_is_too_long_breaks_the_connection(tmp_path: Path) -> None:
    async def short(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 9\r\n\r\nabc")
        await writer.drain()
        writer.close()

    async with engine(short) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await ask(agent)
        await until(lambda: agent.held() == 0)


@pytest.mark.skipif(not exchange.__file__.endswith(".py"), reason="no method of a compiled class can be replaced")
async def test_a_defect_at_the_end_of_a_response_leaves_no_request_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        headers = agent.proxy.response_headers

        def fails(*_: object) -> bytes:
            monkeypatch.undo()
            raise OverflowError

        monkeypatch.setattr(type(headers), "lines", fails)
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        assert await client.closed()
        assert agent.held() == 0
        await until(lambda: not list(agent.proxy.active))
        assert (await ask(agent)).status == 200


@pytest.mark.skipif(not exchange.__file__.endswith(".py"), reason="no method of a compiled class can be replaced")
@pytest.mark.parametrize("method", ["open", "on_read", "settle"])
async def test_a_defect_in_a_response_holds_no_place_at_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("of the agent")

    async def two_parts(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
        writer.write(SSE_HEAD + chunk(event))
        await writer.drain()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    monkeypatch.setattr(RelayedResponse, method, fails)
    async with engine(two_parts) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests) and agent.held() == 0 and not list(agent.proxy.active))
        if method == "settle":
            await client.until_cut()
        monkeypatch.undo()
        assert (await ask(agent)).status == 200
