"""Engines that respond with 5xx before a client has received anything: retried once elsewhere, or forwarded."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.tenants import Tenant
from tests.support.agents import running_agent
from tests.support.chats import JSON_ANSWER, as_own, ask, chunk, code
from tests.support.failing_engines import FAILED, SERVES, ejected, fails, request
from tests.support.planet import MODEL
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize(("streamed", "chunked"), [(False, False), (True, False), (True, True)])
async def test_a_failed_request_is_served_by_a_sibling_and_charged(
    tmp_path: Path, status: int, streamed: bool, chunked: bool
) -> None:
    async with (
        engine(fails(status, chunked=chunked)) as bad,
        engine(SERVES) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent, body=request(streamed=streamed))).status == 200
        assert agent.counted() == {"ok": 12}
        assert 1 <= len(bad.requests) <= 4, "the endpoint is charged, and ejected"
        assert (ejected(agent), agent.held()) == (1, 0)


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_the_same_error_of_two_engines_is_forwarded_and_counts_against_none(tmp_path: Path, status: int) -> None:
    async with (
        engine(fails(status)) as one,
        engine(fails(status)) as two,
        engine(fails(status)) as three,
        running_agent(tmp_path, [one.address, two.address, three.address]) as agent,
    ):
        for _ in range(10):
            answer = await ask(agent, body=request())
            if status == 503:
                assert (answer.status, code(answer.body), b"CUDA error" in answer.body) == (503, "none_ready", True)
                assert int(answer.headers["retry-after"]) >= 1
            else:
                assert (answer.status, answer.body, answer.headers["x-engine"]) == (status, FAILED, "a")
        assert len(one.requests) + len(two.requests) + len(three.requests) == 20, "two attempts for each request"
        assert agent.counted() == {"engine_error": 10}
        assert (ejected(agent), agent.held()) == (0, 0)


async def test_a_tenants_poisonous_requests_eject_no_endpoint_and_are_soon_sent_once(tmp_path: Path) -> None:
    def poisonous(body: bytes) -> bool:
        return b"poison" in body

    async with (
        engine(fails(500, when=poisonous)) as one,
        engine(fails(500, when=poisonous)) as two,
        engine(fails(500, when=poisonous)) as three,
        running_agent(tmp_path, [one.address, two.address, three.address], anonymous=None) as agent,
    ):
        engines = (one, two, three)
        tenants = {name: Tenant(name, "open", (sha256(name.encode()).hexdigest(),)) for name in ("bad", "good")}
        agent.config.policy = replace(agent.config.policy, tenants=tenants)
        for _ in range(30):
            answer = await ask(agent, "Authorization: Bearer bad", body=request("poison"))
            assert (answer.status, answer.body) == (500, FAILED)
            for _ in engines:
                assert (await ask(agent, "Authorization: Bearer good", body=request())).status == 200
        assert ejected(agent) == 0
        sent = sum(poisonous(received.body) for gpu in engines for received in gpu.requests)
        assert 30 <= sent <= 40, "a request of a tenant whose requests are the cause is not sent again"


@pytest.mark.parametrize("status", [501, 504, 505])
async def test_statuses_that_another_engine_would_not_change_are_forwarded_at_once(tmp_path: Path, status: int) -> None:
    async with (
        engine(fails(status)) as one,
        engine(SERVES) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        answers = [await ask(agent, body=request()) for _ in range(6)]
        assert [answer.status for answer in answers].count(status) == len(one.requests) > 0
        retries = {answer.headers.get("x-should-retry") for answer in answers if answer.status == status}
        assert retries == {None if status == 504 else "false"}, "504: the client decides"
        assert not any("x-should-retry" in answer.headers for answer in answers if answer.status == 200)


async def test_requests_for_what_engines_do_not_implement_count_against_none(tmp_path: Path) -> None:
    """Ollama and llama.cpp respond with 501 to requests for embeddings, unless the model is for them."""
    embeddings = json.dumps({"model": MODEL, "input": "hello"}).encode()
    unsupported = fails(501, when=lambda body: b"input" in body)
    async with (
        engine(unsupported) as one,
        engine(unsupported) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent, body=embeddings, path="/v1/embeddings")).status == 501
        assert (agent.counted(), ejected(agent)) == ({"client_error": 12}, 0)
        assert (await ask(agent, body=request())).status == 200


@pytest.mark.parametrize("status", [500, 503])
async def test_a_route_that_is_not_repeatable_forwards_the_error(tmp_path: Path, status: int) -> None:
    async with (
        engine(fails(status)) as one,
        engine(fails(status)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        once = tuple(replace(route, repeatable=False) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        assert (await ask(agent, body=request())).body == FAILED
        assert len(one.requests) + len(two.requests) == 1


async def test_the_error_of_a_lone_engine_is_forwarded(tmp_path: Path) -> None:
    async with engine(fails(500)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for _ in range(3):
            answer = await ask(agent, body=request(streamed=True))
            assert (answer.status, answer.body) == (500, FAILED)
        assert (len(gpu.requests), agent.counted()) == (3, {"engine_error": 3})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"busy",
        b"Service Unavailable",
        b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
        b'{"error": "Exceeds maximum queue size"}',
        b"upstream connect error or disconnect/reset before headers. reset reason: overflow",
        b"<html><head><title>503 Service Temporarily Unavailable</title></head></html>",
    ],
)
async def test_a_request_that_was_not_started_waits(tmp_path: Path, body: bytes) -> None:
    turns = iter([503])

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if next(turns, 0):
            writer.write(b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        else:
            writer.write(JSON_ANSWER)

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        assert (await ask(agent, body=request())).status == 200
        assert (len(gpu.requests), agent.counted(), ejected(agent)) == (2, {"ok": 1}, 0)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_long_503_is_not_kept(tmp_path: Path, ends: bool) -> None:
    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(FAILED) + chunk(b"x" * 20_000))
        if ends:
            writer.write(b"0\r\n\r\n")
        else:
            await asyncio.Event().wait()

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=request())
        assert (answer.status, code(answer.body), b"status 503" in answer.body) == (503, "none_ready", True)
        assert (len(gpu.requests), agent.held()) == (1, 0)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_an_error_is_forwarded_when_the_retry_budget_is_used_up(tmp_path: Path, status: int) -> None:
    async with (
        engine(fails(status)) as one,
        engine(fails(status)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        budget = agent.proxy.retry_budget
        while budget.withdraw(agent.proxy.clock()):
            pass
        answer = await ask(agent, body=request())
        assert (answer.status, answer.body) == (status, FAILED)
        assert len(one.requests) + len(two.requests) == 1


@pytest.mark.parametrize("status", [300, 302, 304, 307])
@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_redirection_in_place_of_an_answer_is_an_error(tmp_path: Path, status: int, repeatable: bool) -> None:
    async def redirects(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nLocation: http://{e.address}/v1/chat/completions/\r\n"
        writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())

    async with (
        engine(redirects) as bad,
        engine(SERVES) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        once = tuple(replace(route, repeatable=repeatable) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        answers = [await ask(agent, body=request()) for _ in range(12)]
        assert 1 <= len(bad.requests) <= 4 + 8 * (not repeatable), "the endpoint is charged"
        assert {answer.status for answer in answers} == ({200} if repeatable else {200, 502})
        assert not [answer for answer in answers if "location" in answer.headers]
        lost = 0 if repeatable else len(bad.requests)
        assert agent.counted() == {"ok": 12 - lost, **({"engine_error": lost} if lost else {})}
    async with engine(redirects) as bad, running_agent(tmp_path, [bad.address]) as agent:
        answer = await ask(agent, body=request())
        assert (answer.status, code(answer.body), f"status {status}".encode() in answer.body) == (
            502,
            "engine_failed",
            True,
        )
        as_own(agent)
        assert (await ask(agent, body=request())).status == status, "a route of the policy may redirect"
