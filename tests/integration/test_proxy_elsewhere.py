"""A request that an engine did not start is retried at another; a request that may crash engines does not reach all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import running_agent
from tests.support.chats import BODY, JSON_ANSWER, NOBODY, SSE_HEAD, answers, ask, chunk, code, is_busy, limit_queue
from tests.support.planet import plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import PATIENCE_S, until


async def test_an_unreachable_endpoint_is_skipped(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [NOBODY, Address("127.0.0.1", 2), gpu.address]) as agent:
        for _ in range(5):
            status, headers, _ = await ask(agent)
            assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-2")
        assert agent.held() == 0


async def test_an_endpoint_whose_name_cannot_be_resolved_is_skipped(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [NOBODY, gpu.address]) as agent:
        nowhere = next(iter(agent.endpoints.every()))
        nowhere.address = Address("a..b", 80)
        for _ in range(6):
            assert (await ask(agent))[0] == 200
        assert agent.held() == 0


@pytest.mark.parametrize("early", [b"", SSE_HEAD, b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_an_engine_that_closes_before_a_body_byte_loses_no_request(tmp_path: Path, early: bytes) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(early)
        writer.close()

    async with (
        engine(dies) as dead,
        engine(answers) as gpu,
        running_agent(tmp_path, [dead.address, gpu.address]) as agent,
    ):
        for _ in range(12):
            status, headers, _ = await ask(agent)
            assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-1")
        assert dead.requests, "it was tried"
        assert agent.held() == 0


def answers_once() -> Script:
    """An engine that breaks a connection at its second request."""
    served: set[asyncio.StreamWriter] = set()

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if writer in served:
            writer.transport.abort()
        else:
            served.add(writer)
            writer.write(JSON_ANSWER)

    return script


async def test_a_closed_idle_connection_counts_no_failure(tmp_path: Path) -> None:
    async with engine(answers_once()) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        for _ in range(8):
            assert (await ask(agent))[0] == 200
        endpoint = next(iter(agent.endpoints.every()))
        assert (endpoint.health.ready, endpoint.ejection.failures) == (True, 0)
        assert len(gpu.requests) == 15, "each but the first was sent again at once"


async def test_a_request_that_is_not_repeatable_is_sent_over_no_kept_connection(tmp_path: Path) -> None:
    """A connection that breaks after the request was sent would not show whether the engine has begun."""
    async with engine(answers_once()) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        once = tuple(replace(route, repeatable=False) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        for sent in range(1, 4):
            assert (await ask(agent))[0] == 200
            assert len(gpu.requests) == sent


@pytest.mark.parametrize("is_reached", [True, False])
async def test_a_request_that_is_not_repeatable_leaves_no_region_whose_engine_may_have_begun(
    is_reached: bool, tmp_path: Path
) -> None:
    async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with (
        engine(breaks) as broken,
        engine(answers) as gpu,
        running_agent(
            tmp_path / "es", [broken.address if is_reached else NOBODY], region="eu-es", anonymous=None
        ) as spain,
        running_agent(tmp_path / "us", [gpu.address], region="us-east", anonymous=None) as us,
        running_agent(
            tmp_path / "de",
            [],
            plan=plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0),
            peers={"eu-es": spain.peer, "us-east": us.peer},
        ) as origin,
    ):
        for agent in (spain, us, origin):
            once = tuple(replace(route, repeatable=False) for route in agent.config.policy.routes)
            agent.config.policy = replace(agent.config.policy, routes=once)
        answer = await ask(origin)
        if is_reached:
            assert (answer.status, code(answer.body)) == (502, "engine_failed")
            assert (len(broken.requests), gpu.requests) == (1, [])
            await until(lambda: origin.counted() == spain.counted() == {"engine_cut": 1.0})
        else:
            assert (answer.status, len(gpu.requests)) == (200, 1)


async def test_a_rejected_request_is_retried_at_another_engine(tmp_path: Path) -> None:
    async with (
        engine(is_busy) as busy,
        engine(answers) as gpu,
        running_agent(tmp_path, [busy.address, gpu.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent))[0] == 200
        assert busy.requests


async def test_a_client_that_leaves_after_a_rejection_receives_nothing(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(is_busy) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(BODY))
        await until(lambda: agent.waiting() == 1)
        client.close()
        await until(lambda: agent.counted() == {"client_left": 1})
    log.close()
    assert json.loads((tmp_path / "access.log").read_text())["status"] == 0


@pytest.mark.parametrize("ends", ["never", "late"])
async def test_an_endless_rejection_is_cut(tmp_path: Path, ends: str) -> None:
    async def is_busy_at_length(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n")
        while ends == "late":
            writer.write(chunk(b"not now"))
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    async with (
        engine(is_busy_at_length) as busy,
        engine(answers) as gpu,
        running_agent(tmp_path, [busy.address, gpu.address]) as agent,
    ):
        while not busy.requests:
            assert (await ask(agent))[0] == 200
        assert agent.held() == 0
        await asyncio.wait_for(busy.closed_by_client.wait(), PATIENCE_S)


async def test_an_incomplete_rejection_is_a_rejection(tmp_path: Path) -> None:
    async def breaks_off(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbu")
        writer.close()

    async with (
        engine(breaks_off) as busy,
        engine(answers) as gpu,
        running_agent(tmp_path, [busy.address, gpu.address]) as agent,
    ):
        while not busy.requests:
            assert (await ask(agent))[0] == 200
        assert all(endpoint.health.ready for endpoint in agent.endpoints.every()), "it lives"


async def test_all_busy_is_429_with_retry_after_and_none_ready_is_503(tmp_path: Path) -> None:
    async with engine(is_busy) as busy, running_agent(tmp_path / "busy", [busy.address]) as agent:
        limit_queue(agent, max_wait_s=1.0)
        status, headers, body = await ask(agent)
        assert (status, code(body)) == (429, "saturated")
        assert int(headers["retry-after"]) >= 1
        assert agent.tally.report().failed == 1
    async with running_agent(tmp_path / "none", [NOBODY]) as agent:
        status, headers, body = await ask(agent)
        assert (status, code(body)) == (503, "none_ready")


@pytest.mark.parametrize(("retry_after", "waits"), [(b"60", False), (b"1", True), (b"", True), (b"Sun, 06 Nov", True)])
async def test_a_used_up_quota_of_an_engine_is_reported_at_once(
    tmp_path: Path, retry_after: bytes, waits: bool
) -> None:
    asked: list[ScriptedEngine] = []

    async def limits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        asked.append(e)
        lines = b"Retry-After: %b\r\n" % retry_after if retry_after else b""
        if len(asked) == 1:
            writer.write(b"HTTP/1.1 429 Too Many\r\n%bContent-Length: 2\r\n\r\n{}" % lines)
        else:
            await answers(e, received, writer)

    async with engine(limits) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        limit_queue(agent, max_wait_s=20.0)
        status, headers, body = await ask(agent)
        if waits:
            assert (status, len(asked)) == (200, 2)
        else:
            assert (status, code(body), len(asked)) == (429, "saturated", 1)
            assert int(headers["retry-after"]) >= 60
        assert agent.held() == 0
    asked.clear()
    async with (
        engine(limits) as gpu,
        engine(answers) as other,
        running_agent(tmp_path / "two", [gpu.address, other.address]) as agent,
    ):
        assert [(await ask(agent))[0] for _ in range(3)] == [200] * 3


async def test_the_quota_of_an_engine_in_another_region_is_reported_by_the_entry(tmp_path: Path) -> None:
    async def limits(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Too Many\r\nRetry-After: 60\r\nContent-Length: 2\r\n\r\n{}")

    async with (
        engine(limits) as gpu,
        running_agent(tmp_path / "far", [gpu.address], region="us-east") as server,
        running_agent(tmp_path / "origin", [], peers={"us-east": server.peer}) as origin,
    ):
        limit_queue(server, max_wait_s=20.0)
        limit_queue(origin, max_wait_s=20.0)
        status, headers, body = await ask(origin)
        assert (status, code(body), len(gpu.requests)) == (429, "saturated", 1)
        assert 60 <= int(headers["retry-after"]) <= 90, "spread once"


async def test_a_request_that_crashes_engines_reaches_two_of_them(tmp_path: Path) -> None:
    async def dies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with (
        engine(dies) as a,
        engine(dies) as b,
        engine(dies) as c,
        running_agent(tmp_path, [a.address, b.address, c.address]) as agent,
    ):
        status, _, body = await ask(agent)
        assert (status, code(body)) == (502, "engine_failed")
        assert sum(len(gpu.requests) for gpu in (a, b, c)) == 2
        # Repetitions, as of an SDK, may break one engine each.
        for repeated in range(1, 3):
            assert (await ask(agent)).status == 502
            assert sum(len(gpu.requests) for gpu in (a, b, c)) == 2 + repeated
        other = BODY.replace(b'"messages": []', b'"messages": [{}]')
        assert (await ask(agent, body=other)).status == 502
        assert sum(len(gpu.requests) for gpu in (a, b, c)) == 6


async def test_a_repeated_request_is_served_once_engines_have_recovered(tmp_path: Path) -> None:
    is_well = False

    async def recovers(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (answers if is_well else breaks)(e, received, writer)

    async with engine(recovers) as a, engine(recovers) as b, running_agent(tmp_path, [a.address, b.address]) as agent:
        assert (await ask(agent)).status == 502
        is_well = True
        assert (await ask(agent)).status == 200


async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_a_request_leaves_the_host_of_an_engine_that_broke_its_connection(tmp_path: Path) -> None:
    """Engines of one host may be one process, which ends."""
    async with (
        engine(breaks) as a,
        engine(breaks) as b,
        engine(breaks) as c,
        engine(answers) as gpu,
        running_agent(tmp_path, [each.address for each in (a, b, c, gpu)]) as agent,
    ):
        elsewhere = list(agent.endpoints.every())[-1]
        elsewhere.address = elsewhere.address._replace(host="localhost")
        for _ in range(8):
            status, headers, _ = await ask(agent)
            assert (status, headers["x-penstock-endpoint"]) == (200, "gpu-3")
        assert any(each.requests for each in (a, b, c))


async def test_a_request_that_two_engines_of_one_host_break_is_sent_to_another_region(tmp_path: Path) -> None:
    async with (
        engine(breaks) as a,
        engine(breaks) as b,
        engine(breaks) as c,
        engine(answers) as far,
        running_agent(tmp_path / "far", [far.address], region="eu-es", anonymous=None) as server,
        running_agent(tmp_path / "near", [each.address for each in (a, b, c)], peers={"eu-es": server.peer}) as agent,
    ):
        status, headers, _ = await ask(agent)
        assert (status, headers["x-penstock-region"]) == (200, "eu-es")
        assert sum(len(gpu.requests) for gpu in (a, b, c)) == 2
        await until(lambda: agent.held() == server.held() == 0)


async def test_a_request_that_breaks_engines_of_two_hosts_reaches_no_further_one(tmp_path: Path) -> None:
    async with (
        engine(breaks) as a,
        engine(breaks) as b,
        engine(breaks) as c,
        running_agent(tmp_path, [each.address for each in (a, b, c)]) as agent,
    ):
        for endpoint, host in zip(agent.endpoints.every(), ("127.0.0.1", "localhost", "localhost"), strict=True):
            endpoint.address = endpoint.address._replace(host=host)
        status, _, body = await ask(agent)
        assert (status, code(body)) == (502, "engine_failed")
        assert sum(len(gpu.requests) for gpu in (a, b, c)) == 2


async def test_a_request_that_crashes_the_engines_of_regions_reaches_two_of_them(tmp_path: Path) -> None:
    async with (
        engine(breaks) as here,
        engine(breaks) as near,
        engine(breaks) as far,
        running_agent(tmp_path / "near", [near.address], region="eu-es", anonymous=None) as eu_es,
        running_agent(tmp_path / "far", [far.address], region="us-east", anonymous=None) as us_east,
        running_agent(tmp_path / "here", [here.address], peers={"eu-es": eu_es.peer, "us-east": us_east.peer}) as agent,
    ):
        status, headers, body = await ask(agent)
        assert (status, code(body)) == (502, "engine_failed")
        assert "x-penstock-engine-failed" not in headers
        assert sum(len(gpu.requests) for gpu in (here, near, far)) == 2
        await until(lambda: agent.held() == eu_es.held() == us_east.held() == 0)
