"""The time limits of a request's model and route, by which a real agent ends requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.routes.route import Timeouts
from regional_agent.http.limits import Limits
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, SSE_HEAD, ask, chunk, code, never_responds, streams_forever
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

SHORT_S, LONG_S = 0.3, 600.0
WHOLE = b'{"model": "%b", "messages": []}' % MODEL.encode()
LIMITS = Limits(idle_linger_s=0.0)


def use_limits(running: Agent, model: Timeouts, route: Timeouts) -> None:
    policy = running.config.policy
    models = {name: msgspec.structs.replace(each, timeouts=model) for name, each in policy.models.items()}
    routes = tuple(msgspec.structs.replace(each, timeouts=route) for each in policy.routes)
    running.config.policy = msgspec.structs.replace(policy, models=models, routes=routes)


@pytest.mark.parametrize(
    ("model", "route"),
    [
        (Timeouts(), Timeouts(first_byte_s=SHORT_S, stream_first_byte_s=LONG_S)),
        (Timeouts(first_byte_s=SHORT_S), Timeouts(first_byte_s=LONG_S)),
    ],
)
async def test_the_first_byte_of_a_whole_response_has_a_limit(tmp_path: Path, model: Timeouts, route: Timeouts) -> None:
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as running:
        use_limits(running, model, route)
        status, _, body = await ask(running, body=WHOLE)
        assert (status, code(body)) == (504, "engine_timeout")
        assert b"0.3 s" in body
        assert running.held() == 0


async def test_a_streamed_response_has_its_own_limits(tmp_path: Path) -> None:
    route = Timeouts(first_byte_s=LONG_S, stream_first_byte_s=SHORT_S)
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address], limits=LIMITS) as running:
        use_limits(running, Timeouts(), route)
        status, _, body = await ask(running)
        assert (status, code(body)) == (504, "engine_timeout")
    async with (
        engine(streams_forever) as gpu,
        running_agent(tmp_path / "idle", [gpu.address], limits=LIMITS) as running,
    ):
        use_limits(running, Timeouts(), Timeouts(stream_first_byte_s=LONG_S, idle_s=SHORT_S))
        assert b"stream_stalled" in (await ask(running)).body
        assert running.held() == 0


async def test_the_total_limit_of_a_route_replaces_the_agents_and_the_client_may_lower_it(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, request_timeout_s=SHORT_S)
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as running:
        use_limits(running, Timeouts(), Timeouts(total_s=LONG_S))
        client = await RawClient.connect(running.traffic)
        client.send(post(BODY, "x-request-timeout-ms: 60000"))
        await until(lambda: bool(gpu.requests))
        assert int(gpu.requests[0].header("x-request-timeout-ms") or 0) > 1000 * SHORT_S
        client.close()
        await until(lambda: running.held() == 0)
        status, _, body = await ask(running, "x-request-timeout-ms: 1000")
        assert (status, code(body)) == (504, "deadline_passed")
        use_limits(running, Timeouts(), Timeouts())
        assert code((await ask(running)).body) == "deadline_passed"
        assert running.held() == 0


async def floods(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD)
    while True:
        writer.write(chunk(b"data: %b\n\n" % (b"x" * 60_000)))
        await writer.drain()


async def test_a_limit_that_a_slow_reader_exceeds_is_no_failure_of_the_fleet(tmp_path: Path) -> None:
    # Long enough for a busy machine to fill all buffers between the engine and the client.
    limits = Limits(idle_linger_s=0.0, request_timeout_s=12.0)
    async with engine(floods) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as running:
        client = await RawClient.connect(running.traffic)
        client.send(post(BODY))
        await until(lambda: bool(running.counted()))
        assert running.counted() == {"expired": 1}
        assert running.tally.report().failed == 0
        client.close()


async def test_a_limit_that_a_slow_upload_exceeds_is_no_failure_of_the_fleet(tmp_path: Path) -> None:
    limits = Limits(idle_linger_s=0.0, request_timeout_s=0.5, kept_body_bytes=8192)
    fields = f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n--b\r\n'
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    file = 'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + "x" * 65_536
    async with engine(never_responds) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as running:
        client = await RawClient.connect(running.traffic)
        client.send(f"{head}Content-Length: 1000000\r\n\r\n{fields}{file}".encode())
        answer = await client.answer()
        assert (answer.status, code(answer.body)) == (408, "request_timeout")
        assert running.counted() == {"client_error": 1}
        assert running.tally.report().failed == 0
        client.close()
