"""Every fault setting of a fake engine, changed over HTTP while the engine runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.engines import Connect, EngineProcess, running_engines
from tests.support.wait import until, until_async

NAMES = ("slow", "hang", "errors", "dies", "ill", "rejects", "knobs")
CHAT = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with running_engines(tmp_path_factory.mktemp("engines"), *({"name": name} for name in NAMES)) as process:
        yield process


async def turn(client: httpx.AsyncClient, **faults: Any) -> None:
    answer = await client.post("/lab/faults", json=faults)
    assert answer.status_code == 200
    assert answer.json().items() >= faults.items()


async def complete(client: httpx.AsyncClient, tokens: int = 20, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {**CHAT, "max_tokens": tokens, "ignore_eos": True, **more}
    return await client.post("/v1/chat/completions", json=body, headers=headers)


async def test_slow_multiplies_the_duration(connect: Connect) -> None:
    client, clock = connect("slow"), asyncio.get_running_loop()

    async def took_s() -> float:
        began_s = clock.time()
        await complete(client, 100)
        return clock.time() - began_s

    async def is_fast() -> bool:
        return await took_s() < slow_s / 2

    await turn(client, slow=20)
    slow_s = await took_s()
    assert slow_s > 1.2  # 100 tokens of 6.5 ms, ten times as fast, twenty times as slow
    await turn(client)
    await until_async(is_fast)


async def test_a_hang_delays_every_response_until_it_ends(engines: EngineProcess, connect: Connect) -> None:
    client, control = connect("hang"), connect("hang")
    headers = {"x-request-id": "under-way"}
    body = {**CHAT, "stream": True, "max_tokens": 300, "ignore_eos": True}
    # Slow enough to be in progress when the hang begins.
    await turn(control, slow=1000)
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        pieces = answer.aiter_bytes()
        await anext(pieces)
        await turn(control, hang=True)
        held = asyncio.create_task(complete(connect("hang"), headers={"x-request-id": "held"}))
        probe = asyncio.create_task(connect("hang").get("/health"))
        rest = asyncio.create_task(_drain(pieces))
        await until(lambda: engines.findings().arrived["held"] == 1)
        done, _ = await asyncio.wait([held, probe, rest], timeout=0.4)
        assert not done
        assert "held" not in engines.findings().started
        await turn(control)
        assert (await held).status_code == (await probe).status_code == 200
        assert b"[DONE]" in await rest


async def test_a_client_that_leaves_a_hung_engine_is_cancelled(engines: EngineProcess, connect: Connect) -> None:
    client, control = connect("hang"), connect("hang")
    await turn(control, hang=True)
    asked = asyncio.create_task(complete(client, 100_000, headers={"x-request-id": "gave-up"}))
    await until(lambda: engines.findings().arrived["gave-up"] == 1)
    asked.cancel()
    await asyncio.wait([asked])
    await turn(control)
    assert (await complete(control, 2)).status_code == 200
    # The engine may detect the disconnect just after the hang ends; the request then starts and is cancelled.
    await until(lambda: engines.findings().started["gave-up"] == engines.findings().aborted["gave-up"])


async def test_a_share_of_requests_fails(engines: EngineProcess, connect: Connect) -> None:
    client = connect("errors")
    await turn(client, error_rate=0.5, error_status=503)
    statuses = [(await complete(client, 1)).status_code for _ in range(60)]
    assert set(statuses) == {200, 503}
    assert 10 < statuses.count(503) < 50
    await turn(client, error_rate=1)
    answer = await complete(client, 1, headers={"x-request-id": "failed-1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, 500)
    assert (await client.get("/health")).status_code == 200
    findings = engines.findings()
    assert findings.arrived["failed-1"] == 1
    assert "failed-1" not in findings.started
    await turn(client)


@pytest.mark.parametrize("tokens", [0, 1, 5])
async def test_the_engine_exits_mid_stream_after_the_set_tokens(
    engines: EngineProcess, connect: Connect, tokens: int
) -> None:
    client = connect("dies")
    await turn(client, die_mid_stream=tokens)
    headers, received = {"x-request-id": f"died-{tokens}"}, bytearray()
    body = {**CHAT, "stream": True, "max_tokens": 50, "ignore_eos": True}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await _drain_into(received, answer)
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in bytes(received).split(b"\n\n") if event]
    assert sum(bool(event["choices"][0]["delta"].get("content")) for event in chunks) == tokens
    await turn(client)
    assert (await complete(client, 2)).status_code == 200
    await until(lambda: engines.findings().aborted[f"died-{tokens}"] == 1)
    assert f"died-{tokens}" not in engines.findings().finished


async def test_an_exit_resets_responses_that_are_not_streamed(connect: Connect) -> None:
    client = connect("dies")
    await turn(client, die_mid_stream=5)
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await complete(client, 50)
    assert (await complete(client, 4)).status_code == 200, "it ends before it would die"
    await turn(client)


async def test_refused_health_leaves_completions_alone(connect: Connect) -> None:
    client = connect("ill")
    await turn(client, refuse_health=True)
    assert (await client.get("/health")).status_code == 503
    assert (await complete(client, 2)).status_code == 200
    await turn(client)
    assert (await client.get("/health")).status_code == 200


async def test_rejects_with_429_and_retry_after(connect: Connect) -> None:
    client = connect("rejects")
    await turn(client, reject=True)
    answer = await complete(client, 2)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == 429
    await turn(client)
    assert (await complete(client, 2)).status_code == 200


async def test_invalid_faults_change_nothing(connect: Connect) -> None:
    client = connect("knobs")
    await turn(client, slow=2)
    for nonsense in (
        b'{"slow": 0}',
        b'{"slow": 3, "on_fire": true}',
        b"slow",
        b"",
        b'{"x": ' + b"[" * 100_000,
    ):
        answer = await client.post("/lab/faults", content=nonsense)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("faults: ")
    assert (await client.get("/lab/faults")).json()["slow"] == 2
    assert (await client.delete("/lab/faults")).status_code == 405
    await turn(client)


async def _drain(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def _drain_into(received: bytearray, answer: httpx.Response) -> None:
    async for piece in answer.aiter_bytes():
        received += piece
