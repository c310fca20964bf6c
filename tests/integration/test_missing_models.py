"""Engines that list a model and lack it: what every engine of a region lacks, a burst endpoint or a region serves."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import brotli
import pytest

from tests.support.agents import running_agent
from tests.support.chats import ask
from tests.support.codings import gzipped
from tests.support.failing_engines import SERVES, request
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post

AWAY = plan("eu-de", "eu-de+eu-es+us-east", us_east=1.0)
MISSING = b'{"error": {"message": "The model `llama` does not exist.", "type": "NotFoundError", "code": 404}}'
ECHOED = b'{"error": {"message": "No response with id resp_model", "type": "invalid_request_error", "code": 404}}'
NO_PATH = b'{"detail": "Not Found"}'
CODINGS = {"": bytes, "gzip": gzipped, "br": brotli.compress, "deflate": zlib.compress, "zstd": bytes}


def not_found(body: bytes, coding: str = "") -> Script:
    """An engine that responds with 404."""
    body = CODINGS[coding](body)

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
        if coding:
            head += b"Content-Encoding: %b\r\n" % coding.encode()
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
        if len(body) < 1000:
            assert (answer.status, answer.body) == (404, body)
            assert agent.counted() == {"client_error": 1}
        else:
            assert (answer.status, body in answer.body) == (404, False), "an answer of this size is not kept"
        assert (len(near.requests), agent.held()) == (1, 0)
