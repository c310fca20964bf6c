"""Large requests and uploads are forwarded as they arrive, in bounded memory, at the pace of the slower side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from regional_agent.http.client_transport import LINGER_S
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import ANSWER, BODY, SSE_HEAD, answers, answers_after, chunk, code, is_busy, streams_forever
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, engine, post
from tests.support.uploads import LIMITS, TRANSCRIPTIONS, taker, upload_head
from tests.support.wait import PATIENCE_S, until

ROOMY = Limits(idle_linger_s=0.0)


@pytest.mark.parametrize("length", [64 * 1024 * 1024, None])
async def test_an_upload_is_forwarded_at_the_pace_of_its_engine(tmp_path: Path, length: int | None) -> None:
    sent_bytes, total = 0, length or 64 * 1024 * 1024
    block = b"x" * (1 << 18)

    async def send(client: RawClient) -> None:
        nonlocal sent_bytes
        while sent_bytes < total:
            client.send(block if length else b"%x\r\n%b\r\n" % (len(block), block))
            await client.writer.drain()
            sent_bytes += len(block)
        if length is None:
            client.send(b"0\r\n\r\n")

    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(length, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        sending = asyncio.create_task(send(client))
        await until(lambda: bool(gpu.head))
        before = -1
        while before != sent_bytes:
            before = sent_bytes
            await asyncio.sleep(0.3)
        assert sent_bytes < 48 * 1024 * 1024, "what sockets hold, not the whole upload"
        assert agent.listener.state.bodies.bytes_kept == 0, "too large to be sent again, so nothing is kept"
        gpu.read_on.set()
        await sending
        assert (await client.answer()).body == b"ok"
        assert gpu.body_bytes >= total
        assert (agent.held(), agent.listener.state.bodies.bytes_kept, agent.counted()) == (0, 0, {"ok": 1})


async def test_an_engine_that_stops_reading_an_upload_times_out(tmp_path: Path) -> None:
    limits = replace(LIMITS, stall_timeout_s=0.3)
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(200_000_000, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        client.send(b"x" * 64_000_000)
        status, _, answer = await client.answer()
        assert (status, code(answer)) == (504, "engine_timeout")
        await until(lambda: agent.held() == 0)
        assert agent.counted() == {"stalled": 1}
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures == 1
        client.close()
        gpu.read_on.set()


@pytest.mark.parametrize(
    "said",
    [
        upload_head(60_000_000, "Content-Type: audio/wav", f"X-Model: {MODEL}") + b"x" * 50_000_000,
        post(json.dumps({"model": MODEL, "prompt": "x" * 15_000_000}).encode()),
    ],
    ids=["as-it-comes", "whole"],
)
async def test_the_connection_of_an_engine_that_responds_early_and_stops_reading_is_closed(
    tmp_path: Path, said: bytes
) -> None:
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

    async with running_agent(tmp_path, [address], limits=ROOMY) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(said)
        await until(lambda: any(not upstream.writable for upstream in agent.upstreams()))
        (connection,) = agent.upstreams()
        full.set()
        assert (await client.answer()).status == 413
        await until(lambda: connection.transport is None)
    server.close()
    for writer in held:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("rest", "status", "why"),
    [
        (b"zz\r\n", 400, "bad_request"),
        (b"1;" + b"x" * 3_000_000, 400, "bad_request"),
        (b"100000\r\n" + b"x" * 0x100000, 413, "body_too_large"),
        (b"", 408, "request_timeout"),
    ],
    ids=["garbage", "extensions", "too-large", "too-slow"],
)
async def test_an_upload_with_an_invalid_rest_is_refused(tmp_path: Path, rest: bytes, status: int, why: str) -> None:
    limits = replace(LIMITS, max_body_bytes=500_000, min_body_bytes_per_s=1 << 30)
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        gpu.read_on.set()
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(None, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        client.send(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
        await until(lambda: gpu.body_bytes > 0x40000)
        if status == 408:
            (connection,) = agent.listener.connections
            connection.transport.waits_since -= limits.body_timeout_s + 1.0
        client.send(rest)
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (status, why)
        assert await client.closed()
        assert (agent.held(), agent.listener.state.bodies.bytes_kept, agent.counted()) == (0, 0, {"client_error": 1})


async def test_a_pause_of_the_client_is_no_stall_of_the_engine(tmp_path: Path) -> None:
    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(100_000)
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await reader.readexactly(100_000)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    server = await asyncio.start_server(listens, "127.0.0.1", 0)
    address, stall_s = Address(*server.sockets[0].getsockname()[:2]), 0.3
    async with running_agent(tmp_path, [address], limits=replace(ROOMY, stall_timeout_s=stall_s)) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(200_000, "Content-Type: audio/wav", f"X-Model: {MODEL}") + b"x" * 100_000)
        assert (await client.head())[0] == 200
        assert await client.chunk() == b"data: 1\n\n"
        await asyncio.sleep(3 * stall_s)
        client.send(b"x" * 100_000)
        assert [await client.chunk() for _ in range(2)] == [b"data: [DONE]\n\n", b""]
        (endpoint,) = agent.endpoints.every()
        assert (endpoint.ejection.failures, agent.counted()) == (0, {"ok": 1})
    server.close()


async def test_a_form_names_its_model_before_its_file(tmp_path: Path) -> None:
    form = (
        b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() + b"\r\n"
        b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + b"\x00" * 300_000
        + b"\r\n--b1--\r\n"
    )
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        gpu.read_on.set()
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(len(form), "Content-Type: multipart/form-data; boundary=b1"))
        client.send(form[:100_000])
        await until(lambda: bool(gpu.head))
        client.send(form[100_000:])
        assert (await client.answer()).status == 200
        assert gpu.body_bytes == len(form)


@pytest.mark.parametrize("kept", [LIMITS, ROOMY])
async def test_a_kept_body_can_be_retried_and_a_dropped_one_cannot(tmp_path: Path, kept: Limits) -> None:
    body = b"x" * 600_000
    async with (
        engine(is_busy) as busy,
        engine(answers) as gpu,
        running_agent(tmp_path, [busy.address, gpu.address], limits=kept) as agent,
    ):
        outcomes = set()
        for _ in range(12):
            client = await RawClient.connect(agent.traffic)
            client.send(post(body, "Content-Type: audio/wav", f"X-Model: {MODEL}", path=TRANSCRIPTIONS))
            status, _, answer = await client.answer()
            outcomes.add((status, code(answer) if status != 200 else ""))
            client.close()
        assert busy.requests
        assert gpu.requests
        assert gpu.requests[0].body == body
        await until(lambda: agent.held() == 0 and agent.listener.state.bodies.bytes_kept == 0)
        again = {(200, "")}
        assert outcomes == (again if kept is ROOMY else again | {(502, "engine_failed")})


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_json_may_name_its_model_last(tmp_path: Path, chunked: bool) -> None:
    body = json.dumps({"messages": ["x" * 20_000_000], "model": MODEL}).encode()
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        engine(answers) as far,
        running_agent(tmp_path / "es", [far.address], region="eu-es", limits=ROOMY) as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}, limits=ROOMY) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        head = upload_head(None if chunked else len(body), path="/v1/chat/completions")
        client.send(head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body))
        assert (await client.answer()).status == 200
        assert far.requests[0].body == body
        assert server.listener.state.bodies.bytes_kept == agent.listener.state.bodies.bytes_kept == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_json_above_its_limit_is_refused_with_the_name_of_the_limit(tmp_path: Path, chunked: bool) -> None:
    limits = Limits(max_json_bytes=300_000, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(None if chunked else 300_001, path="/v1/chat/completions"))
        if chunked:
            client.send(b"%x\r\n" % 400_000 + b" " * 300_001)
        status, _, answer = await client.answer()
        assert (status, code(answer)) == (413, "body_too_large")
        assert b"max_json_bytes" in answer
        assert not gpu.requests
        assert agent.listener.state.bodies.bytes_kept == 0


async def test_100_continue_is_sent_only_for_admitted_requests(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], anonymous=None) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(5, "Expect: 100-continue", path="/v1/chat/completions"))
        status, _, _ = await client.answer()
        assert status == 401, "no 100 before it"
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(1 << 30, "Expect: 100-continue", path="/v1/chat/completions"))
        assert (await client.answer()).status == 413
    async with engine(answers) as gpu, running_agent(tmp_path / "open", [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(len(BODY), "Expect: 100-continue", path="/v1/chat/completions"))
        assert (await client.head())[0] == 100
        assert not gpu.requests
        client.send(BODY)
        assert (await client.answer()).status == 200
        assert gpu.requests[0].header("expect") is None


async def test_100_continue_is_not_sent_to_a_client_that_did_not_wait(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with engine(answers_after(release)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: bool(gpu.requests))
        client.send(upload_head(len(BODY), "Expect: 100-continue", path="/v1/chat/completions") + BODY)
        connection = next(iter(agent.listener.connections))
        await until(lambda: not connection.sequencer.is_idle)
        release.set()
        for _ in range(2):
            assert (await client.answer()).body == ANSWER
        client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).body == b"ok\n", "and nothing before it"


async def test_no_body_is_kept_once_its_response_has_begun(tmp_path: Path) -> None:
    large = json.dumps({"model": MODEL, "prompt": "x" * 100_000}).encode()
    room_for_one = Limits(max_kept_bytes=150_000, idle_linger_s=0.0)
    async with engine(streams_forever) as gpu, running_agent(tmp_path, [gpu.address], limits=room_for_one) as agent:
        clients = [await RawClient.connect(agent.traffic) for _ in range(3)]
        for client, body in zip(clients, (BODY, large, large), strict=True):
            client.send(post(body))
            assert (await client.head())[0] == 200
            assert await client.chunk()
        assert agent.listener.state.bodies.bytes_kept == 0
        served = [connection.sequencer.serving for connection in agent.listener.connections]
        kept = [len(request.body) for request in served if request]
        assert kept == [0, 0, 0]


async def test_concurrent_large_bodies_are_limited(tmp_path: Path) -> None:
    limits = Limits(max_kept_bytes=300_000, idle_linger_s=0.0)
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        first = await RawClient.connect(agent.traffic)
        first.send(upload_head(290_000, path="/v1/chat/completions") + b" " * 250_000)
        await until(lambda: agent.listener.state.bodies.bytes_kept > 100_000)
        second = await RawClient.connect(agent.traffic)
        second.send(upload_head(290_000, path="/v1/chat/completions") + b" " * 250_000)
        status, headers, body = await second.answer()
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        first.close()
        await until(lambda: agent.listener.state.bodies.bytes_kept == 0)


@pytest.mark.parametrize("length", [300_000, None])
async def test_an_upload_is_forwarded_to_a_peer_as_it_arrives(tmp_path: Path, length: int | None) -> None:
    away = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with (
        taker() as far,
        running_agent(tmp_path / "es", [far.address], region="eu-es", limits=LIMITS) as server,
        running_agent(tmp_path / "de", [], plan=away, peers={"eu-es": server.peer}, limits=LIMITS) as agent,
    ):
        half = b"x" * 150_000
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(length, "Content-Type: audio/wav", f"X-Model: {MODEL}"))
        client.send(half if length else b"%x\r\n%b\r\n" % (len(half), half))
        await until(lambda: bool(far.head))
        far.read_on.set()
        client.send(half if length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))
        assert (await client.answer()).status == 200
        assert far.body_bytes >= 300_000


LONG_BYTES = 27_000_000


def long_form(model: str, *, last: bool = False) -> bytes:
    named = b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model.encode()
    file = b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(LONG_BYTES) + b"\r\n"
    return (file + named if last else named + file) + b"--b1--\r\n"


def long_json(model: str, *, last: bool = False) -> bytes:
    prompt = {"prompt": "x" * LONG_BYTES}
    return json.dumps(prompt | {"model": model} if last else {"model": model} | prompt).encode()


FORM, JSON_TYPE, AUDIO = "multipart/form-data; boundary=b1", "application/json", "audio/wav"
REFUSED = {
    "form": (FORM, lambda: long_form("unknown"), "model_not_found"),
    "form-model-last": (FORM, lambda: long_form("unknown", last=True), "bad_request"),
    "form-none-ready": (FORM, lambda: long_form(MODEL), "none_ready"),
    "audio": (AUDIO, lambda: b"x" * LONG_BYTES, "bad_request"),
    "json": (JSON_TYPE, lambda: long_json("unknown"), "model_not_found"),
    "json-model-last": (JSON_TYPE, lambda: long_json("unknown", last=True), "model_not_found"),
    "json-none-ready": (JSON_TYPE, lambda: long_json(MODEL), "none_ready"),
    "json-none-ready-model-last": (JSON_TYPE, lambda: long_json(MODEL, last=True), "none_ready"),
}
"""Type, body and reason of uploads that are refused."""


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("kind", "body_of", "reason"), REFUSED.values(), ids=REFUSED)
async def test_a_client_that_sends_all_before_it_reads_gets_the_refusal_at_once(
    tmp_path: Path, kind: str, body_of: Callable[[], bytes], reason: str, chunked: bool
) -> None:
    body = body_of()
    async with running_agent(tmp_path, [], limits=Limits(kept_body_bytes=1 << 22)) as agent:
        now = agent.listener.state.clock()
        # No timer of the connection ends, so that the refusal waits for none.
        agent.listener.state.clock = lambda: now
        client = await RawClient.connect(agent.traffic)
        path = "/v1/chat/completions" if kind == JSON_TYPE else TRANSCRIPTIONS
        client.send(upload_head(None if chunked else len(body), f"Content-Type: {kind}", path=path))
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        async with asyncio.timeout(PATIENCE_S):
            await client.writer.drain()
        assert code((await client.answer()).body) == reason
        assert agent.listener.state.bodies.bytes_kept == 0
        client.close()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ["form", "form-none-ready", "audio"])
async def test_an_upload_is_refused_as_soon_as_its_beginning_shows_why(
    tmp_path: Path, name: str, chunked: bool
) -> None:
    kind, body_of, reason = REFUSED[name]
    body = body_of()
    async with running_agent(tmp_path, [], limits=Limits(kept_body_bytes=1 << 20)) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(None if chunked else len(body), f"Content-Type: {kind}"))
        client.send((b"%x\r\n" % len(body) if chunked else b"") + body[: 2 << 20])
        assert code((await client.answer()).body) == reason
        client.send(body[2 << 20 :])
        async with asyncio.timeout(PATIENCE_S):
            await client.writer.drain()
        client.close()


async def test_a_refused_upload_is_read_while_it_arrives_but_not_forever(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [], limits=Limits()) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(upload_head(10**8, "Content-Type: audio/wav", f"X-Model: {MODEL}") + b"x" * 100_000)
        assert (await client.answer()).status == 503
        (connection,) = agent.listener.connections
        transport = connection.transport
        until_ = transport._linger_until
        assert until_ == transport._lingers_since + LINGER_S
        client.send(b"x" * 100_000)
        await until(lambda: transport._linger_until > until_)
        transport._lingers_since -= transport._limits.body_timeout_s
        client.send(b"x" * 100_000)
        assert await client.closed()


FILE_FIRST = (
    b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    + b"\x00" * 300_000
    + b'\r\n--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b1--\r\n'
)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        FILE_FIRST % b"another",
        FILE_FIRST % MODEL.encode() + FILE_FIRST,
        (FILE_FIRST % MODEL.encode())[: -len(b"\r\n--b1--\r\n")],
    ],
    ids=["another-model", "after-the-end", "no-end"],
)
async def test_a_form_that_turns_out_ambiguous_is_never_forwarded_whole(
    tmp_path: Path, form: bytes, chunked: bool
) -> None:
    async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as agent:
        gpu.read_on.set()
        client = await RawClient.connect(agent.traffic)
        length = None if chunked else len(form)
        client.send(upload_head(length, "Content-Type: multipart/form-data; boundary=b1", f"X-Model: {MODEL}"))
        blocks = [form[:150_000], form[150_000:299_000], form[299_000:]]
        for block in blocks:
            client.send(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
            await asyncio.sleep(0.05)
        if chunked:
            client.send(b"0\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (400, "bad_request")
        assert gpu.head
        assert chunked or gpu.body_bytes < len(form)
        assert (agent.held(), agent.listener.state.bodies.bytes_kept) == (0, 0)


async def test_a_form_may_name_its_model_after_its_file(tmp_path: Path) -> None:
    form = FILE_FIRST % MODEL.encode()
    for headers in ((), (f"X-Model: {MODEL}",)):
        async with taker() as gpu, running_agent(tmp_path, [gpu.address], limits=ROOMY) as agent:
            gpu.read_on.set()
            client = await RawClient.connect(agent.traffic)
            client.send(upload_head(len(form), "Content-Type: multipart/form-data; boundary=b1", *headers) + form)
            assert (await client.answer()).status == 200
            assert gpu.body_bytes == len(form)
