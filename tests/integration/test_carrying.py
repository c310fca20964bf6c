"""What an agent does with a request on the wire: streams, cancels, goes elsewhere, refuses, and lets go of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.geography import Location
from penstock.region_health import RegionState
from regional_agent.carry.access_log import AccessLog
from regional_agent.carry.limits import Limits
from regional_agent.carry.upstream import Address
from tests.agents import LARGEST_BODY_BYTES, Agent, agent
from tests.planet import MODEL, plan
from tests.sockets import PATIENCE_S, Heard, RawClient, Script, ScriptedEngine, engine, post

BODY = json.dumps({"model": MODEL, "stream": True, "messages": []}).encode()
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"ok": 1}'
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
NOBODY = Address("127.0.0.1", 1)
"""Nothing listens on ports 1 and 2: connections are refused."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the event loop will bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  the condition is plain state, without an event to wait for
            await asyncio.sleep(0.005)


async def answers(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON_ANSWER)


def answers_after(release: asyncio.Event) -> Script:
    """Of an engine that answers as soon as it may."""

    async def answers_later(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(JSON_ANSWER)

    return answers_later


async def streams_forever(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
    await asyncio.Event().wait()


async def says_nothing(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def is_busy(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")


async def ask(one: Agent, *headers: str, body: bytes = BODY) -> tuple[int, dict[str, str], bytes]:
    client = await RawClient.connect(one.traffic)
    client.say(post(body, *headers))
    answer = await client.answer()
    client.close()
    return answer


async def test_a_stream_flows_as_it_comes(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with engine(script) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        status, headers = await client.head()
        assert (status, headers["x-penstock-region"], headers["x-penstock-endpoint"]) == (200, "eu-de", "gpu-0")
        assert await client.chunk() == b"data: 1\n\n", "before the stream has ended"
        assert one.held() == 1
        go_on.set()
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""
        assert one.held() == 0
        assert one.counted() == {"ok": 1}


async def test_a_whole_answer_keeps_its_length_and_the_connection(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        for _ in range(3):
            client.say(post(BODY))
            answer = await client.answer()
            assert (answer.status, answer.headers["content-length"], answer.body) == (200, "9", b'{"ok": 1}')
        assert len(gpu.heard) == 3
        told = one.knowing.answers.report()
        assert (told.ended, told.failed, told.begun) == (3, 0, 3)
        assert told.first_byte_s > 0.0


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def script(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05 if len(e.heard) == 1 else 0.0)
        name = heard.header("x-request-id") or ""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name.encode()))

    async with engine(script) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(b"".join(post(BODY, f"X-Request-Id: r{n}") for n in range(40)))
        assert [(await client.answer()).body for _ in range(40)] == [f"r{n}".encode() for n in range(40)]


async def test_a_client_that_leaves_cancels_its_engine_at_once(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        await client.head()
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()
        await until(lambda: one.held() == 0)
        assert one.counted() == {"cancelled": 1}


async def test_a_client_that_leaves_before_an_answer_cancels_too(tmp_path: Path) -> None:
    async with engine(says_nothing) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        await until(lambda: bool(gpu.heard))
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            await gpu.closed_by_client.wait()
        await until(lambda: one.held() == 0)


async def test_an_unreachable_endpoint_is_passed_over(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [NOBODY, Address("127.0.0.1", 2), gpu.address]) as one:
        for _ in range(5):
            status, headers, _ = await ask(one)
            assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-2")
        assert one.held() == 0


async def test_an_endpoint_that_cannot_be_looked_up_is_passed_over(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [NOBODY, gpu.address]) as one:
        nowhere = next(iter(one.knowing.endpoints.every()))
        nowhere.address = Address("a..b", 80)
        for _ in range(6):
            assert (await ask(one))[0] == 200
        assert one.held() == 0


@pytest.mark.parametrize("early", [b"", SSE_HEAD, b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_an_engine_that_closes_before_a_body_byte_loses_no_request(tmp_path: Path, early: bytes) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(early)
        writer.close()

    async with engine(dies) as dead, engine(answers) as gpu, agent(tmp_path, [dead.address, gpu.address]) as one:
        for _ in range(12):
            status, headers, _ = await ask(one)
            assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-1")
        assert dead.heard, "it was tried"
        assert one.held() == 0


async def test_a_busy_engine_sends_the_request_elsewhere(tmp_path: Path) -> None:
    async with engine(is_busy) as busy, engine(answers) as gpu, agent(tmp_path, [busy.address, gpu.address]) as one:
        for _ in range(12):
            assert (await ask(one))[0] == 200
        assert busy.heard


@pytest.mark.parametrize("ends", ["never", "late"])
async def test_an_engine_whose_refusal_does_not_end_is_not_waited_for(tmp_path: Path, ends: str) -> None:
    async def is_busy_at_length(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n")
        while ends == "late":
            writer.write(chunk(b"not now"))
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    async with (
        engine(is_busy_at_length) as busy,
        engine(answers) as gpu,
        agent(tmp_path, [busy.address, gpu.address]) as one,
    ):
        while not busy.heard:
            assert (await ask(one))[0] == 200
        assert one.held() == 0
        await asyncio.wait_for(busy.closed_by_client.wait(), PATIENCE_S)


async def test_a_refusal_that_breaks_off_is_one(tmp_path: Path) -> None:
    async def breaks_off(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbu")
        writer.close()

    async with engine(breaks_off) as busy, engine(answers) as gpu, agent(tmp_path, [busy.address, gpu.address]) as one:
        while not busy.heard:
            assert (await ask(one))[0] == 200
        assert all(endpoint.health.ready for endpoint in one.knowing.endpoints.every()), "it lives"


async def test_all_busy_is_429_with_retry_after_and_none_ready_is_503(tmp_path: Path) -> None:
    async with engine(is_busy) as busy, agent(tmp_path / "busy", [busy.address]) as one:
        status, headers, body = await ask(one)
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        assert one.knowing.answers.report().failed == 1
    async with agent(tmp_path / "none", [NOBODY]) as one:
        status, headers, body = await ask(one)
        assert (status, code(body)) == (503, "none_ready")


async def test_what_finds_no_room_waits_and_goes_where_it_appears_first(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as one_gpu,
        engine(streams_forever) as other_gpu,
        agent(tmp_path, [one_gpu.address, other_gpu.address], slots=1, queue=0) as one,
    ):
        clients = [await RawClient.connect(one.traffic) for _ in range(4)]
        for client in clients[:2]:
            client.say(post(BODY))
            await client.head()
        for number, client in enumerate(clients[2:], 1):
            client.say(post(BODY))
            await until(lambda number=number: one.waiting() == number)
        assert (len(one_gpu.heard), len(other_gpu.heard)) == (1, 1)
        clients[2].close()
        await until(lambda: one.waiting() == 1)
        clients[1].close()
        assert (await clients[3].head())[0] == 200
        assert (one.waiting(), one.held(), one.counted()) == (0, 2, {"cancelled": 2})
        for client in clients:
            client.close()
        await until(lambda: one.held() == 0)


async def test_waiting_that_is_of_no_use_is_429_at_once(tmp_path: Path) -> None:
    async with engine(streams_forever) as gpu, agent(tmp_path, [gpu.address], slots=1, queue=0) as one:
        clients = [await RawClient.connect(one.traffic) for _ in range(9)]
        for client in clients:
            client.say(post(BODY))
        await until(lambda: one.counted().get("refused", 0) > 0)
        for _ in range(3):
            status, headers, body = await ask(one)
            assert (status, code(body)) == (429, "saturated")
            assert int(headers["retry-after"]) >= 1
        assert len(gpu.heard) == 1
        for client in clients:
            client.close()
        await until(lambda: one.held() == 0 and one.waiting() == 0)


async def test_a_stream_that_breaks_ends_with_an_error_event(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await writer.drain()
        writer.transport.abort()

    async with engine(dies) as gpu, engine(answers) as other, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        _, _, body = await client.answer()
        first, _, event = body.partition(b"data: {")
        assert first == b"data: 1\n\n"
        assert json.loads(b"{" + event)["error"]["code"] == "engine_failed"
        assert await client.closed()
        assert (one.held(), one.counted()) == (0, {"engine_error": 1})
        assert not other.heard, "never again after the first byte"


async def test_an_event_that_breaks_off_does_not_swallow_the_error_s(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b'data: {"choi'))
        writer.close()

    async with engine(dies) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        half, event, end = (await client.answer()).body.split(b"\n\n")
        assert (half, end) == (b'data: {"choi', b"")
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_failed"


async def test_what_is_relayed_of_a_stream_counts_and_is_where_it_ends(tmp_path: Path) -> None:
    parts = (b"data: 1\n\n", b"data: 2\n\n", b'data: {"choi')
    go_on = asyncio.Event()

    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for data in parts:
            writer.write(chunk(data))
            await go_on.wait()
            go_on.clear()
        writer.transport.abort()

    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(dies) as gpu, agent(tmp_path, [gpu.address], access_log=log) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        await client.head()
        for data in parts:
            assert await client.chunk() == data
            go_on.set()
        error = await client.chunk()
        assert error.startswith(b"\n\ndata: {")
        assert await client.chunk() == b""
        assert await client.closed()
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert line["sent_bytes"] > sum(len(chunk(data)) for data in (*parts, error))


async def test_a_stream_that_is_packed_breaks_off(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + chunk(b"\x1f\x8b"))
        writer.close()

    async with engine(dies) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        await client.head()
        assert await client.chunk() == b"\x1f\x8b"
        assert await client.closed()


async def test_a_whole_answer_that_breaks_is_a_broken_connection(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    async with engine(dies) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()
        await until(lambda: one.held() == 0)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000, b"\x00" * 64])
async def test_an_engine_that_speaks_garbage_is_passed_over(tmp_path: Path, garbage: bytes) -> None:
    async def speaks(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await asyncio.Event().wait()

    async with engine(speaks) as bad, engine(answers) as gpu, agent(tmp_path, [bad.address, gpu.address]) as one:
        for _ in range(12):
            assert (await ask(one))[0] == 200
        assert bad.heard
        assert one.held() == 0


async def test_a_client_that_never_reads_stops_its_engine_not_our_memory(tmp_path: Path) -> None:
    sent_bytes = 0

    async def floods(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(SSE_HEAD)
        block = chunk(b"x" * 65536)
        while sent_bytes < 512 * 1024 * 1024:
            writer.write(block)
            await writer.drain()
            sent_bytes += len(block)

    async with engine(floods) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.say(post(BODY))
        await until(lambda: sent_bytes > 0)
        before = -1
        while before != sent_bytes:
            before = sent_bytes
            await asyncio.sleep(0.3)
        assert sent_bytes < 64 * 1024 * 1024, "socket buffers, not the answer"
        client.close()
        await until(lambda: one.held() == 0)


async def test_headers_that_end_here_end_here(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        await ask(
            one,
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
        heard = gpu.heard[0]
        for alike in ("x_forwarded_for", "x_penstock_route", "content_length"):
            assert heard.header(alike) is None, "some servers take _ for -"
        addresses = ("x-forwarded-for", "cf-connecting-ip")
        for gone in ("connection", "x-hop", "te", "x-penstock-route", "authorization", *addresses):
            assert heard.header(gone) is None, gone
        assert heard.header("x-request-id") == "mine-1"
        assert heard.header("x-lab-residency") == "eu-de"
        assert (heard.header("traceparent") or "").startswith("00-0af7")


async def test_an_engine_cannot_speak_in_our_name(tmp_path: Path) -> None:
    async def forges(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
            b"X-Penstock-Region: moon\r\nX-Penstock-Refusal: saturated\r\n\r\nok"
        )

    async with engine(forges) as gpu, agent(tmp_path, [gpu.address]) as one:
        status, headers, _ = await ask(one)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")
        assert "x-penstock-refusal" not in headers


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (post(b"{"), 400, "bad_request"),
        (post(b'{"model": 5}'), 400, "bad_request"),
        (post(b'{"model": "\xff"}'), 400, "bad_request"),
        (post(b'{"a": ' + b"[" * 30_000), 400, "bad_request"),
        (post(b'{"model": "no-such"}'), 404, "unknown_model"),
        (post(BODY, path="/v1/nothing"), 404, "not_found"),
        (b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n", 404, "not_found"),
        (post(BODY, "Authorization: Bearer nobody"), 401, "unknown_key"),
        (post(BODY, "Authorization: Basic Zm9v"), 401, "unknown_key"),
        (post(b"x" * (LARGEST_BODY_BYTES + 1)), 413, "body_too_large"),
        (post(BODY, "X-Big: " + "x" * 70_000), 431, "head_too_large"),
        (post(BODY, *(f"X-{n}: 1" for n in range(200))), 431, "head_too_large"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nX-Endless: " + b"x" * 700_000, 431, "head_too_large"),
        (b"POST /" + b"x" * 700_000, 431, "head_too_large"),
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (post(BODY, "Transfer-Encoding: chunked"), 400, "bad_request"),
        (post(BODY, "Content-Length: 3"), 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400, "bad_request"),
        (b"POST / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", 400, "bad_request"),
        (CHAT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "bad_request"),
    ],
)
async def test_what_cannot_be_served_is_refused_in_openai_s_shape(
    tmp_path: Path, request_bytes: bytes, status: int, reason: str
) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        client.say(request_bytes)
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (status, reason)
        assert not gpu.heard
        assert one.held() == 0


async def test_a_fault_in_handling_a_request_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context.get("exception")))
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        monkeypatch.delattr(one.knowing, "demand")
        client = await RawClient.connect(one.traffic)
        client.say(post(BODY))
        assert await client.closed(), "and does not leave it waiting"
        assert len(told) == 1
        assert not one.listener.connections


async def test_a_body_in_chunks_a_byte_at_a_time_is_one_request(tmp_path: Path) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        client = await RawClient.connect(one.traffic)
        for byte in head + chunk(BODY[:10]) + chunk(BODY[10:]) + b"0\r\n\r\n":
            client.say(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer()).status == 200
        assert gpu.heard[0].body == BODY
        assert gpu.heard[0].header("transfer-encoding") is None


async def test_without_an_anonymous_tenant_a_key_is_needed(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address], anonymous=None) as one:
        status, headers, body = await ask(one)
        assert (status, code(body)) == (401, "unknown_key")
        assert headers["www-authenticate"] == "Bearer"
        assert one.knowing.answers.report().failed == 1


async def test_a_forbidden_origin_sends_the_client_away_unserved(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address], region="us-east", anonymous="personal") as one:
        status, headers, body = await ask(one)
        assert (status, code(body)) == (421, "misdirected")
        assert headers["x-penstock-regions"] == "eu-es,eu-de", "nearest first"
        assert not gpu.heard
        assert one.knowing.offered == [], "not this origin's demand"


async def test_a_request_goes_where_the_plan_says_and_is_checked_there(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    async with (
        engine(answers) as far,
        engine(answers) as near,
        agent(tmp_path / "server", [far.address], region="eu-es", anonymous=None) as server,
        agent(
            tmp_path / "origin", [near.address], anonymous="personal", plan=away, peers={"eu-es": server.peer}
        ) as origin,
    ):
        origin.knowing.location = Location("DE")
        status, headers, _ = await ask(origin, "X-Request-Id: far-1")
        assert (status, headers["x-penstock-region"]) == (200, "eu-es")
        assert (len(far.heard), len(near.heard)) == (1, 0)
        assert far.heard[0].header("x-request-id") == "far-1"
        assert far.heard[0].header("x-penstock-route") is None, "an engine never sees the route context"
        assert server.knowing.offered == [], "demand is counted where it lands"
        assert server.counted() == origin.counted() == {"ok": 1}


async def test_a_plan_that_names_a_forbidden_region_takes_nothing_there(tmp_path: Path) -> None:
    wrong = plan("eu-de", "eu-de+eu-es", us_east=1.0)
    async with (
        engine(answers) as near,
        engine(answers) as forbidden,
        agent(tmp_path, [near.address], anonymous="personal", plan=wrong, peers={"us-east": forbidden.address}) as one,
    ):
        one.knowing.location = Location("DE")
        status, headers, _ = await ask(one)
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")
        assert not forbidden.heard


async def test_a_peer_that_refuses_or_is_gone_leaves_the_request_at_home(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(answers) as near,
        agent(tmp_path / "server", [NOBODY], region="eu-es") as server,
        agent(tmp_path / "origin", [near.address], plan=away, peers={"eu-es": server.peer}) as origin,
    ):
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de"
        assert server.counted() == {"refused": 1}
        origin.knowing.peers.addresses["eu-es"] = NOBODY
        assert (await ask(origin))[1]["x-penstock-region"] == "eu-de"
        assert origin.knowing.peers.broke == ["eu-es"]


async def test_a_peer_that_fails_silently_gives_its_requests_back(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(says_nothing) as black_hole,
        engine(answers) as near,
        agent(tmp_path, [near.address], plan=away, peers={"eu-es": black_hole.address}) as origin,
    ):
        asked = asyncio.create_task(ask(origin))
        await until(lambda: bool(black_hole.heard))
        origin.knowing.peers.states["eu-es"] = RegionState.FAILED
        status, headers, _ = await asked
        assert (status, headers["x-penstock-region"]) == (200, "eu-de")


async def test_a_full_home_spends_a_credit_or_waits_for_one(tmp_path: Path) -> None:
    async with (
        engine(streams_forever) as near,
        engine(answers) as far,
        agent(tmp_path / "server", [far.address], region="us-east") as server,
        agent(tmp_path / "origin", [near.address], slots=1, queue=0, peers={"us-east": server.peer}) as origin,
    ):
        first = await RawClient.connect(origin.traffic)
        first.say(post(BODY))
        await first.head()
        second = asyncio.create_task(ask(origin))
        await until(lambda: origin.waiting() == 1)
        assert not far.heard, "not invited"
        origin.knowing.peers.credits["us-east"] = 1
        status, headers, _ = await second
        assert (status, headers["x-penstock-region"]) == (200, "us-east")
        assert origin.knowing.peers.spent == ["us-east"]
        first.close()


async def test_the_peer_face_believes_nobody_without_a_signature(tmp_path: Path) -> None:
    async with engine(answers) as gpu, agent(tmp_path, [gpu.address]) as one:
        for route in ("forged", "e30.00", ""):
            client = await RawClient.connect(one.peer)
            client.say(post(BODY, f"X-Penstock-Route: {route}"))
            assert (await client.answer()).status == 403
            client.close()
        client = await RawClient.connect(one.peer)
        client.say(post(BODY))
        assert (await client.answer()).status == 404, "clients have no business there"
        assert not gpu.heard


async def test_a_drain_finishes_streams_and_takes_no_more(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    async with engine(script) as gpu, agent(tmp_path, [gpu.address]) as one:
        idle = await RawClient.connect(one.traffic)
        busy = await RawClient.connect(one.traffic)
        busy.say(post(BODY))
        await busy.head()
        one.listener.stop_accepting()
        drained = asyncio.create_task(one.listener.drain(PATIENCE_S))
        assert await idle.closed()
        with pytest.raises(OSError, match=r"."):
            await RawClient.connect(one.traffic)
        go_on.set()
        assert await busy.chunk() == b"data: 1\n\n"
        assert await busy.chunk() == b"data: 2\n\n"
        assert await busy.chunk() == b""
        assert await busy.closed()
        assert await drained == 0


async def test_a_kept_connection_that_its_engine_closes_costs_the_engine_nothing(tmp_path: Path) -> None:
    served: set[asyncio.StreamWriter] = set()

    async def answers_once(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        if writer in served:
            writer.transport.abort()
        else:
            served.add(writer)
            writer.write(JSON_ANSWER)

    async with engine(answers_once) as gpu, agent(tmp_path, [gpu.address]) as one:
        for _ in range(8):
            assert (await ask(one))[0] == 200
        endpoint = next(iter(one.knowing.endpoints.every()))
        assert (endpoint.health.ready, endpoint.standing.failures) == (True, 0)
        assert len(gpu.heard) == 15, "each but the first was sent again at once"


async def test_a_request_that_breaks_engines_is_offered_to_two_of_them(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with (
        engine(dies) as a,
        engine(dies) as b,
        engine(dies) as c,
        agent(tmp_path, [a.address, b.address, c.address]) as one,
    ):
        status, _, body = await ask(one)
        assert (status, code(body)) == (502, "engine_failed")
        assert sum(len(gpu.heard) for gpu in (a, b, c)) == 2


async def test_a_peer_whose_engine_may_have_started_is_the_last_to_be_tried(tmp_path: Path) -> None:
    slow = Limits(first_byte_timeout_s=0.2, idle_linger_s=0.0)
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(says_nothing) as far,
        engine(answers) as near,
        agent(tmp_path / "es", [far.address], region="eu-es", limits=slow) as server,
        agent(tmp_path / "de", [near.address], plan=away, peers={"eu-es": server.peer}) as one,
    ):
        status, _, body = await ask(one)
        assert (status, code(body)) == (504, "engine_timeout")
        assert not near.heard
