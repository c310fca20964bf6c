"""Upgraded connections: bytes both ways, in bounded memory, until both halves have ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

from regional_agent.telemetry.access_log import AccessLog
from regional_agent.websocket.websocket_frames import BINARY
from tests.support.agents import running_agent
from tests.support.chats import ANSWER, BODY, answers
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.tunnels import BYE, HELLO, UPGRADE, echoing
from tests.support.wait import PATIENCE_S, until
from tests.support.websockets import frame, read_frame


async def test_a_websocket_is_relayed_both_ways_and_closes_by_halves(tmp_path: Path) -> None:
    log, early = AccessLog(tmp_path / "access.log", 1.0, Random(1)), frame(b"early ", BINARY)
    async with echoing() as (address, heads), running_agent(tmp_path, [address], access_log=log) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"Sec-WebSocket-Key: k\r\nX-Penstock-Route: forged\r\n\r\n" + early)
        status, headers = await client.head()
        assert (status, headers["upgrade"], headers["sec-websocket-accept"]) == (101, "websocket", "abc")
        assert headers["x-penstock-endpoint"] == "gpu-0"
        assert await client.reader.readexactly(len(HELLO + early)) == HELLO + early
        assert b"sec-websocket-key: k" in heads[0]
        assert b"x-penstock" not in heads[0]
        blob = frame(b"y" * (4 << 20), BINARY)
        client.send(blob)
        assert await client.reader.readexactly(len(blob)) == blob
        assert agent.held() == 1, "in flight until the end"
        client.writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.read() == BYE
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"ok": 1}
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["status"], line["received_bytes"]) == (101, len(early + blob))
    assert line["sent_bytes"] == len(HELLO + early + blob + BYE)


async def test_a_tunnel_buffers_no_more_than_its_sockets(tmp_path: Path) -> None:
    async with echoing() as (address, _), running_agent(tmp_path, [address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent_bytes = 0

        async def flood() -> None:
            nonlocal sent_bytes
            while True:
                client.send(frame(b"z" * 65536, BINARY))
                await client.writer.drain()
                sent_bytes += 65536

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent_bytes:
            before = sent_bytes
            await asyncio.sleep(0.3)
        assert sent_bytes < 64 * 1024 * 1024
        flooding.cancel()
        client.close()
        await until(lambda: agent.held() == 0)


async def test_a_declined_or_unknown_upgrade_is_an_ordinary_response(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n")
        assert (await client.answer()).body == ANSWER, "the engine does not support WebSocket"
        assert await client.closed()
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE.replace(b"realtime", b"nothing") + b"\r\n")
        assert (await client.answer()).status == 404
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
        assert (await client.answer()).status == 426, "HTTP/1.0 has no upgrades"
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(post(BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"))
            assert (await client.answer()).status == 200, "an offer of h2c is passed over"
        assert gpu.requests[-1].header("upgrade") is None
        assert gpu.requests[-1].header("http2-settings") is None
        assert gpu.requests[-1].body == BODY


async def test_many_upgrade_offers_in_one_request_are_accepted(tmp_path: Path) -> None:
    offer = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    posted = post(
        BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
    )
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        # More than Python's limit of recursion.
        client.send(offer * 1200 + posted + offer)
        for _ in range(1200):
            assert (await client.answer()).body == b"ok\n"
        assert (await client.answer()).body == ANSWER
        assert (await client.answer()).body == b"ok\n"
        assert gpu.requests[0].body == BODY


async def test_an_engine_that_switches_protocols_unasked_is_skipped(tmp_path: Path) -> None:
    async def switches(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw")

    async with (
        engine(switches) as bad,
        engine(answers) as gpu,
        running_agent(tmp_path, [bad.address, gpu.address]) as agent,
    ):
        for _ in range(12):
            client = await RawClient.connect(agent.traffic)
            client.send(post(BODY))
            assert (await client.answer()).status == 200
            client.close()
        assert bad.requests


async def test_a_websocket_is_forwarded_to_a_peer(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        echoing() as (address, heads),
        running_agent(tmp_path / "es", [address], region="eu-es") as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(UPGRADE + b"\r\n" + frame(b"early", BINARY))
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(len(HELLO)) == HELLO
        assert await read_frame(client.reader) == (BINARY, b"early")
        assert b"x-penstock-route" not in heads[0].lower()
        client.close()
        await until(lambda: server.held() == 0)
