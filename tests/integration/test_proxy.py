"""A request and its response on the wire: both are streamed, and each outcome releases the reservations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.agents import running_agent
from tests.support.chats import (
    ANSWER,
    BODY,
    SSE_HEAD,
    answers,
    answers_after,
    as_own,
    ask,
    chunk,
    never_responds,
    streams_forever,
)
from tests.support.on_uvloop import on_uvloop
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until


async def test_a_stream_is_relayed_as_it_arrives(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        status, headers = await client.head()
        assert (status, headers["x-penstock-region"], headers["x-penstock-endpoint"]) == (200, "eu-de", "gpu-0")
        assert await client.chunk() == b"data: 1\n\n", "before the stream has ended"
        assert agent.held() == 1
        go_on.set()
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        assert agent.held() == 0
        assert agent.counted() == {"ok": 1}


async def test_a_whole_answer_keeps_its_length_and_the_connection(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for _ in range(3):
            client.send(post(BODY))
            answer = await client.answer()
            assert (answer.status, answer.headers["content-length"], answer.body) == (200, str(len(ANSWER)), ANSWER)
        assert len(gpu.requests) == 3
        reported = agent.tally.report()
        assert (reported.ended, reported.failed, reported.begun) == (3, 0, 3)
        assert reported.first_byte_s > 0.0


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05 if len(e.requests) == 1 else 0.0)
        name = received.header("x-request-id") or ""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name.encode()))

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        as_own(agent)
        client.send(b"".join(post(BODY, f"X-Request-Id: r{n}") for n in range(40)))
        assert [(await client.answer()).body for _ in range(40)] == [f"r{n}".encode() for n in range(40)]


@pytest.mark.parametrize("script", [streams_forever, never_responds])
async def test_a_client_that_leaves_cancels_its_engine_at_once(tmp_path: Path, script: Script) -> None:
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests))
        if script is streams_forever:
            await client.head()
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"client_left": 1}


@on_uvloop
async def test_a_client_that_never_reads_stops_its_engine_in_bounded_memory(tmp_path: Path) -> None:
    sent_bytes = 0

    async def floods(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(SSE_HEAD)
        block = chunk(b"x" * 65536)
        while sent_bytes < 512 * 1024 * 1024:
            writer.write(block)
            await writer.drain()
            sent_bytes += len(block)

    async with engine(floods) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(post(BODY))
        await until(lambda: sent_bytes > 0)
        before = -1
        while before != sent_bytes:
            before = sent_bytes
            await asyncio.sleep(0.3)
        assert sent_bytes < 64 * 1024 * 1024, "socket buffers, not the answer"
        (connection,) = agent.listener.connections
        assert connection.transport.connected.get_write_buffer_size() < 1024 * 1024, "one read, and not a turn's"
        client.close()
        await until(lambda: agent.held() == 0)


async def test_hop_by_hop_headers_are_not_forwarded(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        await ask(
            agent,
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "TE: trailers",
            "X-Penstock-Route: forged",
            "X-Forwarded-For: 192.0.2.1",
            "X-Request-Id: mine-1",
            "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "X-Lab-Residency: eu-de",
            "CF-Connecting-IP: 192.0.2.1",
            "X_Forwarded_For: 192.0.2.1",
            "X_Penstock_Route: forged",
            "Content_Length: 1",
        )
        received = gpu.requests[0]
        for alike in ("x_forwarded_for", "x_penstock_route", "content_length"):
            assert received.header(alike) is None, "some servers take _ for -"
        addresses = ("x-forwarded-for", "cf-connecting-ip")
        for gone in ("connection", "x-hop", "te", "x-penstock-route", "authorization", *addresses):
            assert received.header(gone) is None, gone
        assert received.header("x-request-id") == "mine-1"
        assert received.header("x-lab-residency") == "eu-de"
        assert (received.header("traceparent") or "").startswith("00-0af7")


async def test_an_engine_cannot_set_penstock_headers(tmp_path: Path) -> None:
    async def forges(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
            b"X-Penstock-Region: moon\r\nX-Penstock-Refusal: saturated\r\n\r\nok"
        )

    async with engine(forges) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        status, headers, _ = await ask(agent)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")
        assert "x-penstock-refusal" not in headers


async def test_a_fault_in_handling_a_request_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context.get("exception")))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        monkeypatch.delattr(agent.locator, "generation")
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        assert await client.closed(), "and does not leave it waiting"
        assert len(reported) == 1
        assert not agent.listener.connections


async def test_a_fault_in_selecting_a_target_ends_the_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        with monkeypatch.context() as failing:
            failing.delattr(agent.config, "samplers")
            client = await RawClient.connect(agent.traffic)
            client.send(post(BODY))
            assert await client.closed()
        assert not list(agent.proxy.active)
        assert (agent.held(), agent.counted()) == (0, {"client_left": 1})
        assert (await ask(agent)).status == 200


async def test_a_fault_in_handling_a_pipelined_request_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context.get("exception")))
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(2 * post(BODY))
        await until(lambda: len(gpu.requests) == 1)
        monkeypatch.delattr(agent.locator, "generation")
        release.set()
        await until(lambda: len(reported) == 1 and not agent.listener.connections)


async def test_a_body_in_chunks_a_byte_at_a_time_is_one_request(tmp_path: Path) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for byte in head + chunk(BODY[:10]) + chunk(BODY[10:]) + b"0\r\n\r\n":
            client.send(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer()).status == 200
        assert gpu.requests[0].body == BODY
        assert gpu.requests[0].header("transfer-encoding") is None


async def test_a_drain_finishes_streams_and_accepts_no_more(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        idle = await RawClient.connect(agent.traffic)
        busy = await RawClient.connect(agent.traffic)
        busy.send(post(BODY))
        await busy.head()
        agent.listener.stop_accepting()
        drained = asyncio.create_task(agent.listener.drain(PATIENCE_S))
        assert await idle.closed()
        with pytest.raises(OSError, match=r"."):
            await RawClient.connect(agent.traffic)
        go_on.set()
        assert await busy.chunk() == b"data: 1\n\n"
        assert await busy.chunk() == b"data: 2\n\n"
        assert await busy.chunk() == b""
        assert await busy.closed()
        assert await drained == 0
