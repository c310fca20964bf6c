"""A fake engine over real sockets: response formats of vLLM, errors, limits, and clients that disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.engines import Connect, EngineProcess, running_engines
from tests.support.wait import PATIENCE_S, until_async

MODEL = "llama-3.1-8b"

ENGINES = (
    {"name": "plain"},
    {"name": "measured"},
    {"name": "left"},
    {"name": "full", "max_num_seqs": 1},
    {"name": "raw"},
    {"name": "warm"},
    {"name": "slow-reader", "time_scale": 1000},
    {"name": "cold", "cold_start_s": 30},
    {"name": "real-time", "time_scale": 1},
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with running_engines(tmp_path_factory.mktemp("engines"), *ENGINES) as process:
        yield process


def chat(stream: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": stream} | more


def of_length(tokens: int) -> dict[str, Any]:
    """Fields of a request whose answer has exactly that many tokens."""
    return {"max_tokens": tokens, "ignore_eos": True}


def prompt_of(tokens: int) -> list[dict[str, str]]:
    """Messages of exactly that many tokens, including role and separators."""
    return [{"role": "user", "content": "x" * (tokens * 4 - len("<|user|>\n\n"))}]


def events(text: str) -> list[str]:
    """The data of server-sent events, each exactly one `data:` line (WHATWG HTML, section 9.2)."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "the stream ends with an event, not in the middle of one"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    return next(f for f in text_string_to_metric_families(text) if f.name == name).samples[0].value


async def test_a_chat_stream_has_the_shape_that_clients_parse(
    connect: Connect,
) -> None:
    body = chat(stream=True, stream_options={"include_usage": True}, **of_length(7), messages=prompt_of(700))
    answer = await connect("plain").post("/v1/chat/completions", json=body, headers={"x-request-id": "shape-1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-request-id"] == "shape-1"
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    role, *tokens, usage = map(json.loads, chunks)
    assert {chunk["object"] for chunk in (role, *tokens, usage)} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in (role, *tokens, usage)}) == 1
    assert {chunk["model"] for chunk in (role, *tokens, usage)} == {MODEL}
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert len(tokens) == 7
    assert all(chunk["choices"][0]["delta"]["content"].strip() for chunk in tokens)
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None] * 6 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 700
    assert usage["usage"]["completion_tokens"] == 7
    assert usage["usage"]["total_tokens"] == 707


async def test_usage_is_sent_only_on_request(connect: Connect) -> None:
    answer = await connect("plain").post("/v1/chat/completions", json=chat(stream=True, **of_length(3)))
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in map(json.loads, chunks))
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"


async def test_a_whole_chat_response_equals_a_streamed_one(
    connect: Connect,
) -> None:
    client = connect("plain")
    whole = (await client.post("/v1/chat/completions", json=chat(**of_length(40)))).json()
    streamed = (await client.post("/v1/chat/completions", json=chat(stream=True, **of_length(40)))).text
    text = "".join(
        json.loads(event)["choices"][0]["delta"]["content"] for event in events(streamed) if event != "[DONE]"
    )
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize("stream", [False, True])
async def test_text_completions_are_served(connect: Connect, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "hello", "stream": stream, **of_length(5)}
    answer = await connect("plain").post("/v1/completions", json=body)
    if not stream:
        (choice,) = answer.json()["choices"]
        assert answer.json()["object"] == "text_completion"
        assert (len(choice["text"].split()), choice["finish_reason"]) == (5, "length")
        return
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert [len(json.loads(chunk)["choices"][0]["text"].split()) for chunk in chunks] == [1] * 5


async def test_the_head_of_a_stream_comes_before_its_first_token(
    connect: Connect,
) -> None:
    client = connect("full")
    first = asyncio.create_task(client.post("/v1/chat/completions", json=chat(**of_length(100_000))))
    await until_async(lambda: _is(client, "vllm:num_requests_running", 1))
    async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, **of_length(2))) as answer:
        assert answer.status_code == 200
        assert not first.done()
        assert await gauge(client, "vllm:num_requests_waiting") == 1
        first.cancel()
        assert events((await answer.aread()).decode())[-1] == "[DONE]"


async def test_models_health_and_unknown_paths(connect: Connect) -> None:
    client = connect("plain")
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 131_072)
    assert (await client.get("/health")).status_code == 200
    missing, wrong = await client.get("/v1/nothing"), await client.get("/v1/chat/completions")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert (await client.post("/health")).status_code == 405


async def test_a_connection_without_requests_is_closed_after_five_seconds(connect: Connect) -> None:
    url = httpx.URL(connect("plain").base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    clock = asyncio.get_running_loop()
    for pause_s in (0.0, 1.0):  # each request restarts the time
        await asyncio.sleep(pause_s)
        began_s = clock.time()
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert await reader.read() == b""
    assert clock.time() - began_s > 4.5
    writer.close()


async def test_an_engine_is_unhealthy_until_its_model_is_loaded(
    connect: Connect,
) -> None:
    client = connect("cold")  # three seconds of wall time from the start of the process
    early = await client.get("/health")
    if early.status_code == 503:
        assert (await client.post("/v1/chat/completions", json=chat())).status_code in (503, 200)

    async def healthy() -> bool:
        return (await client.get("/health")).status_code == 200

    await until_async(healthy)
    assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b'{"model": "gpt-4", "messages": [{"role": "user", "content": "x"}]}', 404, "NotFoundError"),
        (b"{", 400, "BadRequestError"),
        (
            b'{"model": "llama-3.1-8b", "messages": [{"role": "user"}], "max_tokens": 999999}',
            400,
            "BadRequestError",
        ),
    ],
)
async def test_errors_have_the_shape_of_openai(connect: Connect, body: bytes, status: int, kind: str) -> None:
    client = connect("plain")
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, status)


async def test_a_client_that_leaves_frees_its_sequence_at_once(engines: EngineProcess, connect: Connect) -> None:
    client = connect("left")
    body = chat(stream=True, **of_length(100_000), messages=prompt_of(1000))
    async with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-request-id": "left-1"}) as answer:
        pieces = answer.aiter_bytes()
        await anext(pieces)
        assert await gauge(client, "vllm:num_requests_running") == 1
        assert await gauge(client, "vllm:kv_cache_usage_perc") > 0
    await until_async(lambda: _is(client, "vllm:num_requests_running", 0))
    assert await gauge(client, "vllm:kv_cache_usage_perc") == 0
    findings = engines.findings()
    assert findings.started["left-1"] == findings.aborted["left-1"] == 1
    assert "left-1" not in findings.finished


async def test_a_client_that_leaves_the_queue_is_removed(engines: EngineProcess, connect: Connect) -> None:
    client = connect("full")
    headers, body = {"x-request-id": "runs-1"}, chat(stream=True, **of_length(100_000))
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers):
        await until_async(lambda: _is(client, "vllm:num_requests_running", 1))
        headers["x-request-id"] = "waits-1"
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers):
            await until_async(lambda: _is(client, "vllm:num_requests_waiting", 1))
        await until_async(lambda: _is(client, "vllm:num_requests_waiting", 0))
        assert await gauge(client, "vllm:num_requests_running") == 1
    findings = engines.findings()
    assert findings.arrived["waits-1"] == findings.aborted["waits-1"] == 1
    assert "waits-1" not in findings.started


async def test_metrics_add_up(connect: Connect) -> None:
    client = connect("measured")
    body = chat(**of_length(20), messages=prompt_of(300))
    await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(10)))
    text = (await client.get("/metrics")).text
    samples = {
        (sample.name, sample.labels.get("le"), sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total", None, None] == 3000
    assert samples["vllm:generation_tokens_total", None, None] == 200
    assert samples["vllm:request_success_total", None, "length"] == 10
    assert samples["vllm:time_to_first_token_seconds_count", None, None] == 10
    assert samples["vllm:inter_token_latency_seconds_count", None, None] == 190
    assert samples["vllm:e2e_request_latency_seconds_bucket", "+Inf", None] == 10
    assert samples["vllm:num_requests_running", None, None] == 0


async def test_a_known_prefix_shows_in_usage_and_metrics(connect: Connect) -> None:
    client = connect("warm")
    body = chat(**of_length(2), messages=prompt_of(2100))
    cached = []
    for _ in range(2):
        answer = await client.post("/v1/chat/completions", json=body)
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 2048]
    assert await gauge(client, "vllm:prefix_cache_hits") == 2048
    assert await gauge(client, "vllm:prefix_cache_queries") == 4200


async def test_responses_take_the_time_of_the_engine_model(connect: Connect) -> None:
    # One stream on an H100 in real time: 6.5 ms a token. A busy machine takes longer.
    began_s = asyncio.get_running_loop().time()
    await connect("real-time").post("/v1/chat/completions", json=chat(**of_length(100)))
    elapsed_s = asyncio.get_running_loop().time() - began_s
    assert elapsed_s > 0.64


async def test_a_slow_reader_gets_everything_with_bounded_buffers(engines: EngineProcess, connect: Connect) -> None:
    client, tokens = connect("slow-reader"), 120_000
    body = chat(stream=True, **of_length(tokens))
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        before_mb = _resident_mb(engines.popen.pid)
        # The engine generates all of it, over 20 MB, before the client reads a byte.
        await until_async(lambda: _is(client, "vllm:generation_tokens", tokens))
        assert _resident_mb(engines.popen.pid) - before_mb < 10
        text = (await answer.aread()).decode()
    assert len(events(text)) == 1 + tokens + 1


def test_invalid_http_is_answered_and_closed(engines: EngineProcess) -> None:
    assert _send(engines, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert _send(engines, b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000).startswith(b"HTTP/1.1 431 ")
    huge = b"POST /v1/completions HTTP/1.1\r\ncontent-length: 17000000\r\n\r\n" + b" " * 16_900_000
    assert _send(engines, huge).startswith(b"HTTP/1.1 413 ")
    upgrade = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert _send(engines, upgrade).startswith(b"HTTP/1.1 400 ")


def test_connections_are_kept_alive_unless_the_client_closes_them(engines: EngineProcess) -> None:
    with _connection(engines) as sock:
        for _ in range(3):
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in _send(engines, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
    body = json.dumps({"model": MODEL, "prompt": "x", "stream": True}).encode()
    answer = _send(engines, b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_split_bodies_and_100_continue(engines: EngineProcess) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with _connection(engines) as sock:
        for byte in head % len(body):
            sock.sendall(bytes([byte]))
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for byte in body:
            sock.sendall(bytes([byte]))
        assert _all(sock).startswith(b"HTTP/1.1 200 ")


def test_pipelining_is_refused(engines: EngineProcess) -> None:
    with _connection(engines) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 2)
        with pytest.raises(ConnectionResetError):
            sock.recv(4096)


async def _is(client: httpx.AsyncClient, name: str, value: float) -> bool:
    return await gauge(client, name) == value


def _connection(engines: EngineProcess) -> socket.socket:
    url = httpx.URL(engines.urls["raw"])
    return socket.create_connection((url.host, url.port), timeout=PATIENCE_S)


def _send(engines: EngineProcess, data: bytes) -> bytes:
    """Send `data` and return the response up to the close; the engine may close before it has read everything."""
    with _connection(engines) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        return _all(sock)


def _all(sock: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            answer += data
    return answer


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
