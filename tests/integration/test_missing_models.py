"""Engines that list a model and lack it: what every engine of a region lacks, a burst endpoint or a region serves."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import brotli
import pytest
from msgspec.structs import replace

from penstock.health.endpoint_health import ProbeOutcome
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.endpoints.endpoint_pool import EndpointPool
from tests.support.agents import running_agent
from tests.support.chats import SSE_HEAD, ask, chunk
from tests.support.codings import gzipped
from tests.support.failing_engines import SERVES, request
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until

AWAY = plan("eu-de", "eu-de+eu-es+us-east", us_east=1.0)
MISSING = b'{"error": {"message": "The model `llama` does not exist.", "type": "NotFoundError", "code": 404}}'
ECHOED = b'{"error": {"message": "No response with id resp_model", "type": "invalid_request_error", "code": 404}}'
NO_PATH = b'{"detail": "Not Found"}'
CODINGS = {"": bytes, "gzip": gzipped, "br": brotli.compress, "deflate": zlib.compress, "zstd": bytes}


def not_found(body: bytes, coding: str = "", *, status: int = 404, chunked: bool = False) -> Script:
    """An engine that responds with 404, or another status."""
    body = CODINGS[coding](body)

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 %d Not Found\r\nContent-Type: application/json\r\n" % status
        if coding:
            head += b"Content-Encoding: %b\r\n" % coding.encode()
        if chunked:
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            writer.write(chunk(body) + b"0\r\n\r\n")
            return
        writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))

    return script


@pytest.mark.parametrize(
    ("streamed", "coding"), [(True, ""), (False, ""), (False, "gzip"), (False, "br"), (True, "deflate")]
)
async def test_another_region_serves_a_model_that_all_engines_of_the_region_lack(
    tmp_path: Path, coding: str, *, streamed: bool
) -> None:
    async with (
        engine(not_found(MISSING, coding)) as one,
        engine(not_found(MISSING, coding)) as two,
        engine(SERVES) as far,
        running_agent(tmp_path / "east", [far.address], region="us-east") as east,
        running_agent(tmp_path / "de", [one.address, two.address], peers={"us-east": east.peer}) as agent,
    ):
        for number in range(1, 4):
            answer = await ask(agent, body=request(streamed=streamed))
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "us-east")
            assert len(one.requests) + len(two.requests) == 2 * number
        assert (agent.counted(), agent.held(), east.held()) == ({"ok": 3}, 0, 0)


@pytest.mark.parametrize("body", [MISSING, NO_PATH, ECHOED])
async def test_a_404_of_the_engines_of_a_serving_region(tmp_path: Path, body: bytes) -> None:
    async with (
        engine(not_found(body)) as one,
        engine(not_found(body)) as two,
        engine(SERVES) as good,
        running_agent(tmp_path / "east", [one.address, two.address], region="us-east") as east,
        running_agent(tmp_path / "es", [good.address], region="eu-es") as es,
        running_agent(tmp_path / "de", [], plan=AWAY, peers={"us-east": east.peer, "eu-es": es.peer}) as agent,
    ):
        answer = await ask(agent, body=request())
        assert len(one.requests) + len(two.requests) == 2
        if body is MISSING:
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
            assert (agent.counted(), east.counted()) == ({"ok": 1}, {"client_error": 1})
            good.script = not_found(body)
            answer = await ask(agent, body=request())
        assert (answer.status, answer.body) == (404, body)
        assert "x-penstock-engine-failed" not in answer.headers
        assert agent.counted()["client_error"] == 1
        assert len(good.requests) == (2 if body is MISSING else 0), "a path that engines lack is asked for once"
        assert (agent.held(), east.held(), es.held()) == (0, 0, 0)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_an_encoded_404_that_states_no_missing_model_reaches_the_client_as_it_is(
    tmp_path: Path, coding: str
) -> None:
    for body in (NO_PATH, b"[" * 3_000_000) if coding == "gzip" else (MISSING,):
        async with (
            engine(not_found(body, coding)) as near,
            engine(SERVES) as far,
            running_agent(tmp_path / "east", [far.address], region="us-east") as east,
            running_agent(tmp_path / "de", [near.address], peers={"us-east": east.peer}) as agent,
        ):
            client = await RawClient.connect(agent.traffic)
            client.send(post(request()))
            status, headers, received = await client.answer()
            client.close()
            assert (status, headers.get("content-encoding")) == (404, coding)
            assert received == CODINGS[coding](body)
            assert (len(far.requests), agent.held(), east.held()) == (0, 0, 0)


@pytest.mark.parametrize("body", [MISSING, NO_PATH, ECHOED, b"model" + b"x" * 20_000])
async def test_a_404_reaches_the_client_if_nothing_else_can_serve(tmp_path: Path, body: bytes) -> None:
    async with (
        engine(not_found(body)) as near,
        running_agent(tmp_path / "east", [], region="us-east") as east,
        running_agent(tmp_path / "de", [near.address], peers={"us-east": east.peer}) as agent,
    ):
        answer = await ask(agent, body=request())
        assert (answer.status, answer.body) == (404, body)
        assert (agent.counted(), len(near.requests), agent.held()) == ({"client_error": 1}, 1, 0)


UNKNOWN = b'{"error": {"message": "model \'%b\' not found", "type": "invalid_request_error", "code": 400}}'
LACKS = UNKNOWN % MODEL.encode()
MISTAKES = (UNKNOWN % b"other", b'{"error": {"message": "bad", "code": 400}}', b"x" * 5_000, b"")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_400_that_states_a_missing_model_is_retried_at_a_sibling_and_charged(
    tmp_path: Path, *, streamed: bool, chunked: bool
) -> None:
    async with (
        engine(not_found(LACKS, status=400, chunked=chunked)) as bad,
        engine(SERVES) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent, body=request(streamed=streamed))).status == 200
        assert (agent.counted(), agent.held()) == ({"ok": 12}, 0)
        assert 1 <= len(bad.requests) <= 4, "the endpoint is charged, and ejected"
        name = str(bad.address)
        assert agent.proxy.usage_requests.may_ask(MODEL, agent.proxy.clock(), name), "it refused no flag"


async def test_another_region_serves_a_model_whose_engines_respond_with_400(tmp_path: Path) -> None:
    async with (
        engine(not_found(LACKS, status=400)) as one,
        engine(not_found(LACKS, status=400)) as two,
        engine(SERVES) as good,
        running_agent(tmp_path / "east", [one.address, two.address], region="us-east") as east,
        running_agent(tmp_path / "es", [good.address], region="eu-es") as es,
        running_agent(tmp_path / "de", [], plan=AWAY, peers={"us-east": east.peer, "eu-es": es.peer}) as agent,
    ):
        for streamed in (False, True):
            answer = await ask(agent, body=request(streamed=streamed))
            assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
        assert len(one.requests) + len(two.requests) == 4
        assert agent.proxy.usage_requests.may_ask(MODEL, agent.proxy.clock()), "no engine refused the flag"
        good.script = not_found(LACKS, status=400)
        answer = await ask(agent, body=request())
        assert (answer.status, answer.body) == (400, LACKS)
        assert (agent.counted(), agent.held(), east.held()) == ({"ok": 2, "client_error": 1}, 0, 0)


@pytest.mark.parametrize("body", MISTAKES, ids=["other", "bad", "long", "empty"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_400_for_a_mistake_of_the_client_reaches_it_as_it_is(
    tmp_path: Path, body: bytes, *, chunked: bool
) -> None:
    async with (
        engine(not_found(body, status=400, chunked=chunked and body != b"")) as one,
        engine(not_found(body, status=400, chunked=chunked and body != b"")) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        for _ in range(8):
            answer = await ask(agent, body=request())
            assert (answer.status, answer.body) == (400, body)
        assert (agent.counted(), agent.held()) == ({"client_error": 8}, 0)
        assert len(one.requests) + len(two.requests) == 8
        assert not any(endpoint.ejection.failures for endpoint in agent.endpoints.every())


@pytest.mark.parametrize("ends", ["late", "broken"])
async def test_a_400_whose_body_stops_arriving_is_forwarded(tmp_path: Path, ends: str) -> None:
    begun = b'{"error": {"mess'

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + begun)
        if ends == "broken":
            await writer.drain()
            writer.transport.abort()
        await asyncio.Event().wait()

    async with (
        engine(script) as one,
        engine(script) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(post(request()))
        if ends == "late":
            assert (await client.reader.readuntil(begun)).startswith(b"HTTP/1.1 400 ")
            client.close()
        await until(lambda: agent.counted() == {"client_left" if ends == "late" else "engine_cut": 1})
        client.close()
        assert agent.held() == 0
        assert len(one.requests) + len(two.requests) == 1


@pytest.mark.parametrize("body", [NO_PATH, b"404 page not found", b"", b"<html>" + b"x" * 9_000])
async def test_an_engine_that_lacks_the_path_of_one_route_serves_the_others(tmp_path: Path, body: bytes) -> None:
    def responds_unless(lacks: bool) -> Script:
        async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            if b"/v1/responses" not in received.head:
                await SERVES(e, received, writer)
            elif lacks:
                await not_found(body)(e, received, writer)
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n")
                writer.write(b'{"output": []}')

        return script

    asked = json.dumps({"model": MODEL, "input": "hello"}).encode()
    async with (
        engine(responds_unless(True)) as bad,
        engine(responds_unless(False)) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        agent.config.policy = replace(agent.config.policy, routes=preset_routes("openai"))
        for _ in range(12):
            assert (await ask(agent, body=asked, path="/v1/responses")).status == 200
        assert [b"/v1/responses" in each.head for each in bad.requests] in ([True], [])
        for _ in range(12):
            assert (await ask(agent, body=request())).status == 200
        assert sum(b"/v1/chat" in each.head for each in bad.requests) >= 4
        assert agent.counted() == {"ok": 24}
        assert not any(each.ejection.failures or each.ejection.is_ejected for each in agent.endpoints.every())
        pool, asked_before = agent.endpoints.pools[MODEL], len(bad.requests)
        pool.note_lacking("openai-responses", str(bad.address), agent.proxy.clock())
        (other,) = (each for each in agent.endpoints.every() if each.address == good.address)
        for _ in range(3):
            other.probed(ProbeOutcome.UNREADY)
        assert pool.ready == 1
        assert (await ask(agent, body=asked, path="/v1/responses")).status == 404, "no other one is ready"
        assert len(bad.requests) == asked_before + 1


async def test_an_engine_that_lacks_a_route_is_avoided_while_another_one_streams(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'))
        await may_end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with (
        engine(not_found(NO_PATH)) as bad,
        engine(streams) as good,
        running_agent(tmp_path, [bad.address, good.address], slots=8) as agent,
    ):
        clients = [await RawClient.connect(agent.traffic) for _ in range(6)]
        for client in clients:
            client.send(post(request(streamed=True)))
            assert (await client.head())[0] == 200
        assert (len(bad.requests), len(good.requests)) == (1, 6)
        may_end.set()
        await until(lambda: agent.counted() == {"ok": 6})
        for client in clients:
            client.close()
        assert agent.held() == 0


def test_an_engine_is_asked_for_a_route_again_after_a_while() -> None:
    pool = EndpointPool()
    pool.note_lacking("a", "one", 0.0)
    pool.note_lacking("b", "one", 20.0)
    assert pool.without_route("a", 29.9) == {"one"}
    assert pool.without_route("a", 30.1) == pool.without_route("c", 0.0) == frozenset()
    pool.note_lacking("b", "two", 40.0)
    assert pool.without_route("b", 45.0) == {"one", "two"}
    assert len(pool.lacking) == 2


@pytest.mark.parametrize("body", [MISSING, NO_PATH])
async def test_a_404_before_the_failure_of_another_engine_is_not_forwarded(tmp_path: Path, body: bytes) -> None:
    first = iter([not_found(body)])

    async def lacks_or_breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        lacks = next(first, None)
        if lacks is None:
            writer.transport.abort()
        else:
            await lacks(e, received, writer)

    async with (
        engine(lacks_or_breaks) as one,
        engine(lacks_or_breaks) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        routes = tuple(replace(each, repeatable=False) for each in preset_routes("openai"))
        agent.config.policy = replace(agent.config.policy, routes=routes)
        answer = await ask(agent, body=request())
        assert (answer.status, answer.headers["x-penstock-refusal"]) == (502, "engine_failed")
        assert (len(one.requests), len(two.requests)) == (1, 1)
        assert (agent.counted(), agent.held()) == ({"engine_cut": 1}, 0)
