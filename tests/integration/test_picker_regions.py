"""What follows through a real Envoy, with the shipped configuration, if another region refuses or fails a request."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import Location
from penstock.retries.retry_rules import MAX_BROKEN, MAX_FAILED
from penstock.routing.reasons import Reason
from penstock.wire.route_context import RouteContext, accept
from regional_agent.routing.forwarded_attempt import engines_failed_line
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, NOBODY, SSE_HEAD, chunk, code, streams_forever
from tests.support.envoys import SHIPPED, http_manager, running_envoy, running_picker
from tests.support.identities import region_keyring
from tests.support.planet import plan
from tests.support.sockets import Answer, RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.wait import until

EVENT = (
    b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)
AT_HOME = plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
"""Everything stays in the region of the entry."""

TO_SPAIN = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
"""Everything leaves the region of the entry, which has endpoints of its own."""


async def streams(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(EVENT) + chunk(b""))


def responds(status: int, *lines: str) -> Script:
    """A region, or an engine, that responds to each request with an error."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        head = "".join(f"{line}\r\n" for line in lines)
        writer.write(f"HTTP/1.1 {status} Failed\r\ncontent-length: 2\r\n{head}\r\n{{}}".encode())

    return script


async def disconnects(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@asynccontextmanager
async def entry(
    directory: Path,
    engines: Sequence[ScriptedEngine | Address],
    peers: Mapping[str, Address],
    in_force: RegionPlan = TO_SPAIN,
    **more: Any,
) -> AsyncIterator[tuple[Agent, Address]]:
    """An agent of eu-de that forwards to `peers` through Envoy; yields it, and Envoy's address for clients."""
    addresses = [each if isinstance(each, Address) else each.address for each in engines]
    async with (
        running_agent(directory / "origin", addresses, plan=in_force, peers=peers, **more) as origin,
        running_picker(origin, forwards=True) as picker,
        running_envoy(directory, picker, addresses) as front,
    ):
        origin.location = Location("DE")
        yield origin, front


async def ask(front: Address, *headers: str, host: bytes = b"api.example.com") -> Answer:
    client = await RawClient.connect(front)
    client.send(post(BODY, *headers).replace(b"Host: test", b"Host: " + host))
    answer = await client.answer()
    client.close()
    return answer


def reads(received: ReceivedRequest, origin: Agent, region: str) -> bool:
    """Whether an agent of `region` accepts the route context of a request."""
    token = received.header("x-penstock-route") or ""
    accepted = accept(token, region_keyring(region), origin.config.policy, region, time.time())
    return isinstance(accepted, RouteContext)


REFUSALS: list[tuple[Script, str]] = [
    (responds(429, "x-penstock-refusal: saturated", "retry-after: 1"), "peer_refused"),
    (responds(503, "x-penstock-refusal: none_ready"), "peer_refused"),
    (responds(503, "x-penstock-refusal: endpoint_full"), "peer_refused"),
    (responds(421, "x-penstock-refusal: misdirected"), "peer_refused"),
    (responds(502, "x-penstock-refusal: engine_failed", "x-penstock-engine-failed: 1 broke"), "peer_refused"),
    (responds(500, "x-penstock-engine-failed: 2"), "engine_error"),
    (disconnects, "closed_early"),
]


@pytest.mark.parametrize(
    ("script", "reason", "host"),
    [*((*each, b"api.example.com") for each in REFUSALS), (*REFUSALS[0], b"eu.api.example.com")],
)
async def test_what_another_region_refuses_or_fails_is_sent_to_an_endpoint_of_this_one(
    script: Script, reason: str, host: bytes, tmp_path: Path
) -> None:
    log = AccessLog(tmp_path / "access.jsonl", 1.0, Random(1))
    async with (
        engine(script) as far,
        engine(streams) as near,
        entry(tmp_path, [near], {"eu-es": far.address}, access_log=log) as (origin, front),
    ):
        answer = await ask(front, "x-penstock-retry: failed", host=host)
        assert (answer.status, answer.headers.get("x-penstock-region")) == (200, "eu-de"), answer
        assert len(far.requests) == len(near.requests) == 1
        assert reads(far.requests[0], origin, "eu-es")
        assert near.requests[0].header("x-penstock-route") is None, "an engine never sees a route context"
        assert near.requests[0].body == far.requests[0].body
        await until(lambda: origin.counted() == {"ok": 1.0})
        assert origin.retried() == {reason: 1.0}
        assert origin.held() == 0
        assert origin.peers.broke == (["eu-es"] if reason == "closed_early" else [])
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert (line["kind"], line["server"], line["attempts"], line["input_tokens"]) == ("home", "eu-de", 2, 7)
    assert list(line["tried"]) == ["eu-es"]


@pytest.mark.parametrize(
    ("script", "status", "reason", "outcome"),
    [
        (responds(504, "x-penstock-refusal: engine_timeout"), 504, "engine_timeout", "stalled"),
        (
            responds(502, "x-penstock-refusal: engine_failed", "x-penstock-engine-failed: 2 broke"),
            502,
            "engine_failed",
            "engine_cut",
        ),
        (responds(500, "x-penstock-engine-failed: 3"), 500, None, "engine_error"),
        (responds(404), 404, None, "client_error"),
    ],
)
async def test_what_may_have_run_or_failed_too_often_reaches_no_further_target(
    script: Script, status: int, reason: str | None, outcome: str, tmp_path: Path
) -> None:
    async with (
        engine(script) as far,
        engine(streams) as near,
        entry(tmp_path, [near], {"eu-es": far.address}) as (origin, front),
    ):
        answer = await ask(front)
        assert (answer.status, answer.headers.get("x-penstock-refusal")) == (status, reason), answer
        assert (len(far.requests), near.requests) == (1, [])
        await until(lambda: origin.counted() == {outcome: 1.0})
        assert origin.retried() == {}


@pytest.mark.parametrize(
    ("script", "is_repeated"),
    [
        (responds(503, "x-penstock-refusal: saturated"), True),
        (responds(502, "x-penstock-refusal: engine_failed", "x-penstock-engine-failed: 1"), False),
        (responds(500, "x-penstock-engine-failed: 1"), False),
        (disconnects, False),
    ],
)
async def test_a_request_that_may_not_run_twice_moves_only_after_a_refusal(
    script: Script, is_repeated: bool, tmp_path: Path
) -> None:
    async with (
        engine(script) as far,
        engine(streams) as near,
        entry(tmp_path, [near], {"eu-es": far.address}) as (origin, front),
    ):
        policy = origin.config.policy
        routes = tuple(replace(route, repeatable=False) for route in policy.routes)
        origin.config.policy = replace(policy, routes=routes)
        assert ((await ask(front)).status == 200) == is_repeated
        assert (len(far.requests), len(near.requests)) == (1, int(is_repeated))
        await until(lambda: sum(origin.counted().values()) == 1.0)


@pytest.mark.parametrize("dead", [False, True])
async def test_the_next_region_receives_a_route_context_of_its_own(dead: bool, tmp_path: Path) -> None:
    refuses = responds(503, "x-penstock-refusal: saturated", "retry-after: 1")
    async with (
        engine(refuses) as spain,
        engine(streams) as far,
        running_agent(tmp_path / "us", [far.address], region="us-east", anonymous=None) as us,
        entry(tmp_path, [], {"eu-es": NOBODY if dead else spain.address, "us-east": us.peer}) as (origin, front),
    ):
        answer = await ask(front)
        assert (answer.status, answer.headers.get("x-penstock-region")) == (200, "us-east"), answer
        assert answer.body == EVENT
        assert (len(spain.requests), len(far.requests)) == (int(not dead), 1)
        assert all(reads(received, origin, "eu-es") for received in spain.requests)
        await until(lambda: origin.counted() == us.counted() == {"ok": 1.0})
        assert origin.retried() == {"connect_failed" if dead else "peer_refused": 1.0}
        assert us.held() == 0


@pytest.mark.parametrize("last", ["endpoint", "none"])
async def test_two_regions_fail(last: str, tmp_path: Path) -> None:
    async with (
        engine(disconnects) as spain,
        engine(responds(429, "x-penstock-refusal: saturated", "retry-after: 2")) as us,
        engine(streams) as near,
        entry(tmp_path, [near] if last == "endpoint" else [], {"eu-es": spain.address, "us-east": us.address}) as (
            origin,
            front,
        ),
    ):
        # The plan has no share for the region of the entry, whose endpoints are the last resort of the request.
        origin.config.plan = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0, us_east=0.0)
        policy = origin.config.policy
        nearer = {"us-east": replace(policy.regions["us-east"], bias_ms=-1000.0)}
        origin.config.policy = replace(policy, regions=policy.regions | nearer)
        answer = await ask(front)
        assert (len(spain.requests), len(us.requests)) == (1, 1)
        assert reads(us.requests[0], origin, "us-east")
        if last == "endpoint":
            assert (answer.status, len(near.requests)) == (200, 1), answer
            await until(lambda: origin.counted() == {"ok": 1.0})
            assert origin.retried() == {"closed_early": 1.0, "peer_refused": 1.0}
        else:
            assert (answer.status, code(answer.body), answer.headers["retry-after"]) == (429, "saturated", "2")
            await until(lambda: origin.counted() == {"refused": 1.0})
            assert origin.retried() == {"closed_early": 1.0}
        assert origin.peers.broke == ["eu-es"]
        assert origin.held() == 0


async def test_a_request_that_ends_engines_in_two_regions_reaches_no_third_one(tmp_path: Path) -> None:
    async with (
        engine(disconnects) as one,
        engine(disconnects) as two,
        engine(streams) as near,
        running_agent(tmp_path / "es", [one.address], region="eu-es", anonymous=None) as spain,
        running_agent(tmp_path / "us", [two.address], region="us-east", anonymous=None) as us,
        entry(
            tmp_path,
            [near],
            {"eu-es": spain.peer, "us-east": us.peer},
            plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0, us_east=0.0),
        ) as (origin, front),
    ):
        policy = origin.config.policy
        nearer = {"us-east": replace(policy.regions["us-east"], bias_ms=-1000.0)}
        origin.config.policy = replace(policy, regions=policy.regions | nearer)
        answer = await ask(front)
        assert (len(one.requests), len(two.requests), near.requests) == (1, 1, [])
        assert (answer.status, code(answer.body)) == (502, "engine_failed"), answer


async def test_no_request_moves_to_a_region_that_its_residency_forbids(tmp_path: Path) -> None:
    async with (
        engine(disconnects) as spain,
        engine(streams) as us,
        entry(
            tmp_path,
            [],
            {"eu-es": spain.address, "us-east": us.address},
            plan("eu-de", "eu-de+eu-es", eu_es=1.0),
            anonymous="personal",
        ) as (origin, front),
    ):
        answer = await ask(front)
        assert (answer.status, code(answer.body), answer.headers["retry-after"]) == (503, "none_ready", "1")
        assert (len(spain.requests), us.requests) == (1, [])
        await until(lambda: origin.counted() == {"engine_cut": 1.0})


async def test_without_budget_for_retries_no_endpoint_of_this_region_receives_what_another_refuses(
    tmp_path: Path,
) -> None:
    async with (
        engine(responds(429, "x-penstock-refusal: saturated", "retry-after: 2")) as far,
        engine(streams) as near,
        entry(tmp_path, [near], {"eu-es": far.address}) as (origin, front),
    ):
        proxy = origin.proxy
        while proxy.retry_budget.allows_one(proxy.clock()):
            proxy.retry_budget.withdraw(proxy.clock())
        answer = await ask(front)
        assert (answer.status, code(answer.body), answer.headers["retry-after"]) == (429, "saturated", "2")
        assert (len(far.requests), near.requests) == (1, [])
        await until(lambda: origin.counted() == {"refused": 1.0})


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_credit_of_the_next_region_is_spent_only_if_it_serves(refuses: bool, tmp_path: Path) -> None:
    """The region of the entry is full, so that both other regions serve on credits."""
    async with (
        engine(responds(429, "x-penstock-refusal: saturated") if refuses else streams) as spain,
        engine(streams) as us,
        engine(streams_forever) as near,
        entry(
            tmp_path,
            [near],
            {"eu-es": spain.address, "us-east": us.address},
            plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0),
            credits={"eu-es": 1, "us-east": 1},
            slots=1,
            queue=0,
        ) as (origin, front),
    ):
        running = await RawClient.connect(front)
        running.send(post(BODY))
        await running.head()
        answer = await ask(front)
        assert (answer.status, len(spain.requests), len(us.requests)) == (200, 1, int(refuses))
        assert origin.peers.spent == (["eu-es", "us-east"] if refuses else ["eu-es"])
        running.close()
        await until(lambda: origin.held() == 0)


@pytest.mark.parametrize("host", [b"api.example.com", b"eu.api.example.com"])
async def test_a_response_of_another_region_that_breaks_off_has_the_outcome_that_it_has_there(
    host: bytes, tmp_path: Path
) -> None:
    """Its agent ends the response with an error, and states the reason in the trailers."""

    async def breaks_off(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENT.replace(b'"stop"', b"null").partition(b"data: [DONE]")[0]))
        await writer.drain()
        writer.close()

    async with (
        engine(breaks_off) as far,
        engine(streams) as near,
        running_agent(tmp_path / "es", [far.address], region="eu-es", anonymous=None) as spain,
        entry(tmp_path, [near], {"eu-es": spain.peer}) as (origin, front),
    ):
        answer = await ask(front, host=host)
        assert answer.status == 200
        assert b'"code":"engine_failed"' in answer.body
        await until(lambda: origin.counted() == spain.counted() == {"engine_cut": 1.0})
        assert near.requests == []


BUSY = responds(429, "retry-after: 1")
FAILURES_HERE: list[tuple[Script | None, str]] = [
    (None, "connect_failed"),
    (disconnects, "closed_early"),
    (responds(500), "engine_error"),
    (responds(503), "engine_error"),
    (BUSY, "engine_busy"),
]


@pytest.mark.parametrize("host", [b"api.example.com", b"eu.api.example.com"])
@pytest.mark.parametrize(("script", "reason"), FAILURES_HERE)
async def test_what_the_only_endpoint_fails_or_refuses_is_sent_to_another_region(
    script: Script | None, reason: str, host: bytes, tmp_path: Path
) -> None:
    log = AccessLog(tmp_path / "access.jsonl", 1.0, Random(1))
    async with (
        engine(script or streams) as near,
        engine(streams) as far,
        running_agent(tmp_path / "es", [far.address], region="eu-es", anonymous=None) as spain,
        entry(
            tmp_path,
            [near if script else NOBODY],
            {"eu-es": spain.peer},
            AT_HOME,
            credits={"eu-es": 1},
            access_log=log,
        ) as (origin, front),
    ):
        answer = await ask(front, host=host)
        assert (answer.status, answer.headers.get("x-penstock-region"), answer.body) == (200, "eu-es", EVENT), answer
        assert [each.header("x-penstock-route") for each in near.requests] == [None] * (script is not None)
        await until(lambda: origin.counted() == spain.counted() == {"ok": 1.0})
        assert origin.retried() == {reason: 1.0}
        assert origin.held() == spain.held() == 0
        assert origin.peers.spent == ["eu-es"]
    log.close()
    (line,) = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert (line["kind"], line["server"], line["attempts"], line["input_tokens"]) == ("spillover", "eu-es", 2, 7)


@pytest.mark.parametrize(("script", "leaves"), [(disconnects, True), (responds(500), True), (BUSY, False)])
async def test_without_a_credit_only_what_fails_leaves_the_region(script: Script, leaves: bool, tmp_path: Path) -> None:
    async with (
        engine(script) as near,
        engine(streams) as far,
        entry(tmp_path, [near], {"eu-es": far.address}, AT_HOME) as (origin, front),
    ):
        answer = await ask(front)
        assert answer.status == (200 if leaves else 429), answer
        assert (len(near.requests), len(far.requests)) == (1, int(leaves))
        assert origin.peers.spent == []


@pytest.mark.parametrize(
    ("script", "leaves"), [(None, True), (BUSY, True), (responds(500), False), (disconnects, False)]
)
async def test_what_may_not_run_twice_leaves_the_region_only_if_it_has_not_begun(
    script: Script | None, leaves: bool, tmp_path: Path
) -> None:
    async with (
        engine(script or streams) as near,
        engine(streams) as far,
        entry(tmp_path, [near if script else NOBODY], {"eu-es": far.address}, AT_HOME, credits={"eu-es": 1}) as (
            origin,
            front,
        ),
    ):
        policy = origin.config.policy
        routes = tuple(replace(route, repeatable=False) for route in policy.routes)
        origin.config.policy = replace(policy, routes=routes)
        assert ((await ask(front)).status == 200) == leaves
        assert len(far.requests) == int(leaves)


async def test_what_an_endpoint_fails_leaves_for_no_region_that_its_residency_forbids(tmp_path: Path) -> None:
    async with (
        engine(responds(500)) as near,
        engine(streams) as far,
        entry(
            tmp_path,
            [near],
            {"us-east": far.address},
            plan("eu-de", "eu-de+eu-es", eu_de=1.0),
            credits={"us-east": 1},
            anonymous="personal",
        ) as (_, front),
    ):
        assert (await ask(front)).status == 500
        assert (len(near.requests), far.requests) == (1, [])


async def test_an_endpoint_of_another_host_comes_before_another_region(tmp_path: Path) -> None:
    failed: list[ScriptedEngine] = []

    async def fails_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if failed:
            await streams(e, received, writer)
        else:
            failed.append(e)
            await disconnects(e, received, writer)

    async with (
        engine(fails_once) as near,
        engine(fails_once, host="127.0.0.2") as beside,
        engine(streams) as far,
        entry(tmp_path, [near, beside], {"eu-es": far.address}, AT_HOME, credits={"eu-es": 1}) as (_, front),
    ):
        assert (await ask(front)).status == 200
        assert (len(near.requests), len(beside.requests), far.requests) == (1, 1, [])


@pytest.mark.parametrize("script", [BUSY, responds(500), disconnects])
async def test_without_a_credit_an_endpoint_of_the_same_host_comes_before_another_region(
    script: Script, tmp_path: Path
) -> None:
    failed: list[ScriptedEngine] = []

    async def fails_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if not failed:
            failed.append(e)
            await script(e, received, writer)
        else:
            await streams(e, received, writer)

    async with (
        engine(fails_once) as near,
        engine(fails_once) as beside,
        engine(streams) as far,
        entry(tmp_path, [near, beside], {"eu-es": far.address}, AT_HOME) as (_, front),
    ):
        assert (await ask(front)).status == 200
        assert (len(near.requests), len(beside.requests), far.requests) == (1, 1, [])


async def test_another_region_comes_before_an_endpoint_of_a_host_that_failed(tmp_path: Path) -> None:
    async with (
        engine(disconnects) as near,
        engine(disconnects) as beside,
        engine(streams) as far,
        entry(tmp_path, [near, beside], {"eu-es": far.address}, AT_HOME, credits={"eu-es": 1}) as (_, front),
    ):
        assert (await ask(front)).status == 200
        assert len(near.requests + beside.requests) == len(far.requests) == 1


@pytest.mark.parametrize("refuses", [False, True])
async def test_nothing_follows_another_region_that_was_the_last(refuses: bool, tmp_path: Path) -> None:
    """Two engines broke the connection: no third one receives the request."""
    refusal = responds(429, "x-penstock-refusal: saturated", "retry-after: 2")
    async with (
        engine(disconnects) as near,
        engine(disconnects) as one,
        engine(disconnects) as two,
        engine(refusal) as refuser,
        running_agent(tmp_path / "es", [one.address, two.address], region="eu-es", anonymous=None) as spain,
        entry(
            tmp_path, [near], {"eu-es": refuser.address if refuses else spain.peer}, AT_HOME, credits={"eu-es": 1}
        ) as (origin, front),
    ):
        answer = await ask(front)
        assert (len(near.requests), len(one.requests + two.requests)) == (1, int(not refuses))
        if refuses:
            assert (answer.status, code(answer.body), answer.headers["retry-after"]) == (429, "saturated", "2")
        else:
            assert (answer.status, code(answer.body)) == (502, "engine_failed")
        await until(lambda: sum(origin.counted().values()) == 1.0)
        assert origin.held() == 0


async def test_the_time_limit_is_that_of_the_target_that_has_the_request(tmp_path: Path) -> None:
    """The first one has failed; the second one, which does not respond, is charged with that."""
    asked = asyncio.Event()

    async def never_responds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        asked.set()

    async with (
        engine(responds(500)) as near,
        engine(never_responds) as far,
        entry(tmp_path, [near], {"eu-es": far.address}, AT_HOME, credits={"eu-es": 1}) as (origin, front),
    ):
        answer = asyncio.ensure_future(ask(front))
        await asked.wait()
        exchanges: Any = origin.proxy.active
        (exchange,) = exchanges
        await until(lambda: origin.retried() == {"engine_error": 1.0})
        assert (origin.held(), origin.peers.spent, origin.peers.broke) == (0, ["eu-es"], [])
        limit_s = origin.proxy.time_limits_of(exchange.context).first_byte_limit_s(streaming=True)
        exchange.check(origin.proxy.clock() + limit_s)
        assert ((await answer).status, origin.peers.broke) == (504, ["eu-es"])
        await until(lambda: origin.counted() == {"stalled": 1.0})


async def test_an_endpoint_that_serves_spends_no_credit(tmp_path: Path) -> None:
    async with (
        engine(streams) as near,
        engine(streams) as far,
        entry(tmp_path, [near], {"eu-es": far.address}, AT_HOME, credits={"eu-es": 1}) as (origin, front),
    ):
        assert (await ask(front)).status == 200
        assert (len(near.requests), far.requests, origin.peers.spent) == (1, [], [])


async def test_a_region_that_counts_as_failed_ends_no_request_that_has_left_it(tmp_path: Path) -> None:
    """Envoy's access log states that the request has moved on; a response has not begun."""
    goes_on = asyncio.Event()

    async def responds_later(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await goes_on.wait()
        await streams(e, received, writer)

    async with (
        engine(disconnects) as far,
        engine(responds_later) as near,
        entry(tmp_path, [near], {"eu-es": far.address}) as (origin, front),
    ):
        answer = asyncio.ensure_future(ask(front))
        await until(lambda: bool(near.requests))
        exchanges: Any = origin.proxy.active
        (exchange,) = exchanges
        origin.peers.states["eu-es"] = RegionState.FAILED
        await until(lambda: not exchange._targets.is_lost())
        exchange.check(origin.proxy.clock())
        goes_on.set()
        assert (await answer).status == 200
        await until(lambda: origin.counted() == {"ok": 1.0})


def test_the_shipped_configuration_knows_which_refusals_and_failures_may_move() -> None:
    """By the reasons that exist, and by the limits of engines that may fail a request."""
    (policy,) = [
        route["route"]["retry_policy"]
        for host in http_manager(yaml.safe_load(SHIPPED.read_text()))["route_config"]["virtual_hosts"]
        for route in host["routes"]
        if host["name"] == "any" and route["match"].get("headers", [{}])[0].get("string_match") == {"exact": "failed"}
    ]
    refused, failed = (each["string_match"]["safe_regex"]["regex"] for each in policy["retriable_headers"])
    stay = {reason for reason in Reason if not re.fullmatch(refused, reason.value)}
    assert stay == {Reason.ENGINE_FAILED, Reason.ENGINE_TIMEOUT}
    for broke, limit in ((False, MAX_FAILED), (True, MAX_BROKEN)):
        values = [
            engines_failed_line(count, broke=broke).partition(b": ")[2].strip() for count in range(MAX_FAILED + 1)
        ]
        moves = [bool(re.fullmatch(failed, value.decode())) for value in values]
        assert moves == [count < limit for count in range(MAX_FAILED + 1)]
