"""Large requests, uploads and tunnels: passed on as they come, in bounded memory, no faster than the slower side."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from regional_agent.carry.limits import Limits
from regional_agent.carry.upstream import Address
from regional_agent.carry.upstream_connection import UpstreamConnection
from tests.agents import agent
from tests.integration.test_carrying import BODY, answers, answers_after, code, is_busy, until
from tests.planet import MODEL, plan
from tests.sockets import PATIENCE_S, Heard, RawClient, ScriptedEngine, engine, post

LIMITS = Limits(kept_body_bytes=256 * 1024, largest_body_bytes=256 * 1024 * 1024, idle_linger_s=0.0)
ROOMY = Limits(idle_linger_s=0.0)
TRANSCRIPTIONS = "/v1/audio/transcriptions"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Taker:
    """A server that counts what it reads, at the pace a test sets, and answers at the end."""

    def __init__(self) -> None:
        self.head = b""
        self.body_bytes = 0
        self.read_on = asyncio.Event()
        self.address = Address("127.0.0.1", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.head = await reader.readuntil(b"\r\n\r\n")
            length = Heard(self.head, b"").header("content-length")
            await self.read_on.wait()
            while length is None or self.body_bytes < int(length):
                data = await reader.read(1 << 16)
                self.body_bytes += len(data)
                if not data or (length is None and data.endswith(b"0\r\n\r\n")):
                    break
            writer.write(OK)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def taker() -> AsyncIterator[Taker]:
    one = Taker()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.address = Address(*server.sockets[0].getsockname()[:2])
    try:
        yield one
    finally:
        server.close()


def upload_head(length: int | None, *headers: str, path: str = TRANSCRIPTIONS) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", framing, *headers, "", ""]).encode()


@pytest.mark.parametrize("length", [64 * 1024 * 1024, None])
async def test_an_upload_flows_as_fast_as_its_engine_reads_and_no_faster(tmp_path: Path, length: int | None) -> None:
    sent_bytes, total = 0, length or 64 * 1024 * 1024
    block = b"x" * (1 << 18)

    async def send(client: RawClient) -> None:
        nonlocal sent_bytes
        while sent_bytes < total:
            client.say(block if length else b"%x\r\n%b\r\n" % (len(block), block))
            await client.writer.drain()
            sent_bytes += len(block)
        if length is None:
            client.say(b"0\r\n\r\n")

    async with taker() as gpu, agent(tmp_path, [gpu.address], limits=LIMITS) as one:
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(length, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        sending = asyncio.create_task(send(client))
        await until(lambda: bool(gpu.head))
        before = -1
        while before != sent_bytes:
            before = sent_bytes
            await asyncio.sleep(0.3)
        assert sent_bytes < 48 * 1024 * 1024, "what sockets hold, not the whole upload"
        assert one.listener.bodies.bytes_kept == 0, "too large to be sent again, so nothing is kept"
        gpu.read_on.set()
        await sending
        assert (await client.answer()).body == b"ok"
        assert gpu.body_bytes >= total
        assert (one.held(), one.listener.bodies.bytes_kept, one.counted()) == (0, 0, {"ok": 1})


async def test_an_engine_that_takes_no_more_of_an_upload_is_given_up(tmp_path: Path) -> None:
    limits = replace(LIMITS, stall_timeout_s=0.3)
    async with taker() as gpu, agent(tmp_path, [gpu.address], limits=limits) as one:
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(200_000_000, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        client.say(b"x" * 64_000_000)
        status, _, answer = await client.answer()
        assert (status, code(answer)) == (504, "engine_timeout")
        await until(lambda: one.held() == 0)
        assert one.counted() == {"timeout": 1}
        (endpoint,) = one.knowing.endpoints.every()
        assert endpoint.standing.failures == 1
        client.close()
        gpu.read_on.set()


async def test_an_engine_that_answers_early_and_reads_no_more_keeps_no_connection(tmp_path: Path) -> None:
    held: list[asyncio.StreamWriter] = []
    full = asyncio.Event()

    async def answers_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await full.wait()
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        held.append(writer)

    server = await asyncio.start_server(answers_early, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    async with agent(tmp_path, [address], limits=LIMITS) as one:
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(60_000_000, "Content-Type: audio/wav", f"X-Model: {MODEL}") + b"x" * 50_000_000)
        await until(lambda: one.listener.departures.watching == 1)
        full.set()
        assert (await client.answer()).status == 413
        connections = [found for found in gc.get_objects() if isinstance(found, UpstreamConnection)]
        await until(lambda: all(found._transport is None for found in connections if found.address == address))
    server.close()


async def test_a_form_names_its_model_before_its_file(tmp_path: Path) -> None:
    form = (
        b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() + b"\r\n"
        b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + b"\x00" * 300_000
        + b"\r\n--b1--\r\n"
    )
    async with taker() as gpu, agent(tmp_path, [gpu.address], limits=LIMITS) as one:
        gpu.read_on.set()
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(len(form), "Content-Type: multipart/form-data; boundary=b1"))
        client.say(form[:100_000])
        await until(lambda: bool(gpu.head))
        client.say(form[100_000:])
        assert (await client.answer()).status == 200
        assert gpu.body_bytes == len(form)


@pytest.mark.parametrize("kept", [LIMITS, ROOMY])
async def test_what_is_kept_can_be_sent_again_and_what_is_not_cannot(tmp_path: Path, kept: Limits) -> None:
    body = json.dumps({"model": MODEL, "messages": ["x" * 600_000]}).encode()
    async with (
        engine(is_busy) as busy,
        engine(answers) as gpu,
        agent(tmp_path, [busy.address, gpu.address], limits=kept) as one,
    ):
        outcomes = set()
        for _ in range(12):
            client = await RawClient.connect(one.traffic)
            client.say(post(body))
            status, _, answer = await client.answer()
            outcomes.add((status, code(answer) if status != 200 else ""))
            client.close()
        assert busy.heard
        assert gpu.heard
        assert gpu.heard[0].body == body
        await until(lambda: one.held() == 0 and one.listener.bodies.bytes_kept == 0)
        again = {(200, "")}
        assert outcomes == (again if kept is ROOMY else again | {(502, "engine_failed")})


async def test_a_large_body_that_names_no_model_in_time_is_refused(tmp_path: Path) -> None:
    body = json.dumps({"messages": ["x" * 600_000], "model": MODEL}).encode()
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address], limits=LIMITS) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(body))
        status, _, answer = await client.answer()
        assert (status, code(answer)) == (400, "bad_request")
        assert b"x-model" in answer
        assert not gpu.heard
        assert await client.closed()


async def test_continue_is_said_only_for_what_will_be_served(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address], anonymous=None) as one:
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(5, "Expect: 100-continue", path="/v1/chat/completions"))
        status, _, _ = await client.answer()
        assert status == 401, "no 100 before it"
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(1 << 30, "Expect: 100-continue", path="/v1/chat/completions"))
        assert (await client.answer()).status == 413
    async with engine(answers) as gpu, agent(tmp_path / "open", [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(len(BODY), "Expect: 100-continue", path="/v1/chat/completions"))
        assert (await client.head())[0] == 100
        assert not gpu.heard
        client.say(BODY)
        assert (await client.answer()).status == 200
        assert gpu.heard[0].header("expect") is None


async def test_continue_is_not_said_to_who_did_not_wait_for_it(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        await until(lambda: bool(gpu.heard))
        client.say(upload_head(len(BODY), "Expect: 100-continue", path="/v1/chat/completions") + BODY)
        connection = next(iter(one.listener.connections))
        await until(lambda: bool(connection._waiting))
        release.set()
        for _ in range(2):
            assert (await client.answer()).body == b'{"ok": 1}'
        client.say(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).body == b"ok\n", "and nothing before it"


async def test_too_many_large_bodies_at_once_are_refused(tmp_path: Path) -> None:
    limits = Limits(most_kept_bytes=300_000, idle_linger_s=0.0)
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address], limits=limits) as one:
        first = await RawClient.connect(one.traffic)
        first.say(upload_head(500_000, path="/v1/chat/completions") + b" " * 250_000)
        await until(lambda: one.listener.bodies.bytes_kept > 100_000)
        second = await RawClient.connect(one.traffic)
        second.say(upload_head(500_000, path="/v1/chat/completions") + b" " * 250_000)
        status, headers, body = await second.answer()
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        first.close()
        await until(lambda: one.listener.bodies.bytes_kept == 0)


UPGRADE = (
    f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n".encode()
)


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Address, list[bytes]]]:
    """A server that agrees to every upgrade, and then says back what it hears, until it hears no more."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: abc\r\n\r\nhello"
            )
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
            writer.write_eof()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2]), heads
    finally:
        server.close()


async def test_a_websocket_goes_through_both_ways_and_ends_a_half_at_a_time(tmp_path: Path) -> None:
    async with echoing() as (address, heads), agent(tmp_path, [address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE + b"Sec-WebSocket-Key: k\r\nX-Penstock-Route: forged\r\n\r\nearly ")
        status, headers = await client.head()
        assert (status, headers["upgrade"], headers["sec-websocket-accept"]) == (101, "websocket", "abc")
        assert headers["x-penstock-endpoint"] == "gpu-0"
        assert await client.reader.readexactly(11) == b"helloearly "
        assert b"sec-websocket-key: k" in heads[0]
        assert b"x-penstock" not in heads[0]
        blob = b"y" * (4 << 20)
        client.say(blob)
        assert await client.reader.readexactly(len(blob)) == blob
        assert one.held() == 1, "in flight until the end"
        client.writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.read() == b"bye"
        await until(lambda: one.held() == 0)
        assert one.counted() == {"ok": 1}


async def test_a_tunnel_holds_no_more_than_sockets_do(tmp_path: Path) -> None:
    async with echoing() as (address, _), agent(tmp_path, [address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE + b"\r\n")
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent_bytes = 0

        async def flood() -> None:
            nonlocal sent_bytes
            while True:
                client.say(b"z" * 65536)
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
        await until(lambda: one.held() == 0)


async def test_an_upgrade_that_is_declined_or_unknown_is_an_ordinary_answer(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE + b"\r\n")
        assert (await client.answer()).body == b'{"ok": 1}', "the engine speaks no WebSocket"
        assert await client.closed()
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE.replace(b"realtime", b"nothing") + b"\r\n")
        assert (await client.answer()).status == 404
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
        assert (await client.answer()).status == 404, "HTTP/1.0 knows no upgrades"
        client = await RawClient.connect(one.traffic)
        for _ in range(2):
            client.say(post(BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"))
            assert (await client.answer()).status == 200, "an offer of h2c is passed over"
        assert gpu.heard[-1].header("upgrade") is None
        assert gpu.heard[-1].header("http2-settings") is None
        assert gpu.heard[-1].body == BODY


async def test_any_number_of_offers_to_upgrade_may_come_at_once(tmp_path: Path) -> None:
    offer = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    posted = post(
        BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
    )
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(offer * 3000 + posted + offer)
        for _ in range(3000):
            assert (await client.answer()).body == b"ok\n"
        assert (await client.answer()).body == b'{"ok": 1}'
        assert (await client.answer()).body == b"ok\n"
        assert gpu.heard[0].body == BODY


async def test_an_engine_that_switches_protocols_unasked_is_passed_over(tmp_path: Path) -> None:
    async def switches(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw")

    async with engine(switches) as bad, engine(answers) as gpu, agent(tmp_path, [bad.address, gpu.address]) as one:
        for _ in range(12):
            client = await RawClient.connect(one.traffic)
            client.say(post(BODY))
            assert (await client.answer()).status == 200
            client.close()
        assert bad.heard


@pytest.mark.parametrize("length", [300_000, None])
async def test_an_upload_crosses_the_peer_hop_as_it_comes(tmp_path: Path, length: int | None) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        taker() as far,
        agent(tmp_path / "es", [far.address], region="eu-es", limits=LIMITS) as server,
        agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}, limits=LIMITS) as one,
    ):
        half = b"x" * 150_000
        client = await RawClient.connect(one.traffic)
        client.say(upload_head(length, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        client.say(half if length else b"%x\r\n%b\r\n" % (len(half), half))
        await until(lambda: bool(far.head))
        far.read_on.set()
        client.say(half if length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))
        assert (await client.answer()).status == 200
        assert far.body_bytes >= 300_000


async def test_a_websocket_crosses_the_peer_hop(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        echoing() as (address, heads),
        agent(tmp_path / "es", [address], region="eu-es") as server,
        agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}) as one,
    ):
        client = await RawClient.connect(one.traffic)
        client.say(UPGRADE + b"\r\n" + b"early")
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(10) == b"helloearly"
        assert b"x-penstock-route" not in heads[0].lower()
        client.close()
        await until(lambda: server.held() == 0)
