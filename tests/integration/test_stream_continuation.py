"""Streams whose engine or serving region fails are continued by another, within the limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from lab.engine.openai_format import words
from penstock.continuation import next_events
from penstock.continuation.next_events import NextEvents
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.region_health import RegionState
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.limits import Limits
from regional_agent.http.protocol.request_parser import PARSED_BYTES
from regional_agent.telemetry.access_log import AccessLog
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, answers, answers_after, ask, chunk, is_busy, never_responds
from tests.support.engines import running_engines
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine, post
from tests.support.streamed_chats import (
    CHAT,
    WORDS,
    Failure,
    chat,
    dies,
    ends,
    finishes_with,
    hangs,
    in_turn,
    is_complete,
    read_stream,
    reports_an_error,
    streams_chat,
)
from tests.support.wait import until

LIMITS = Limits(max_body_bytes=64 * 1024, idle_linger_s=0.0)
HASTY = replace(LIMITS, stall_timeout_s=2.0)
"""For engines that hang: a busy machine may delay the events of others."""

Fleet = tuple[Agent, list[ScriptedEngine]]


@asynccontextmanager
async def before(directory: Path, *scripts: Script, engines: int = 2, **options: Any) -> AsyncIterator[Fleet]:
    """Run an agent that continues streams, in front of engines that run `scripts` in order of arrival."""
    async with AsyncExitStack() as stack:
        shared = in_turn(*scripts)
        scripted = [await stack.enter_async_context(engine(shared)) for _ in range(engines)]
        agent = await stack.enter_async_context(running_agent(directory, [gpu.address for gpu in scripted], **options))
        agent.continue_streams()
        yield agent, scripted
        await until(lambda: released(agent))


def released(agent: Agent) -> bool:
    return agent.held() == agent.waiting() == sum(agent.proxy.in_flight().values()) == 0


@pytest.mark.parametrize("failure", [dies, ends, reports_an_error, hangs])
@pytest.mark.parametrize("limit", [0, 1, 7, 29])
async def test_another_engine_continues_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Failure, limit: int
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    scripts, limits = (streams_chat(1, limit, failure), streams_chat(2)), HASTY if failure is hangs else LIMITS
    async with before(tmp_path, *scripts, limits=limits, access_log=log) as (agent, engines):
        status, headers, body = await chat(agent)
        assert (status, is_complete(body)) == (200, True)
        assert [len(gpu.requests) for gpu in engines] == [1, 1]
        assert headers["x-penstock-endpoint"] in ("gpu-0", "gpu-1")
        await until(lambda: released(agent))
        assert (agent.counted(), agent.continued()) == ({"ok": 1}, {"resumed": 1})
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["outcome"], line["continuations"], line["attempts"]) == ("ok", 1, 2)


SENT = 9
"""Words after which the engine fails, or the client leaves."""


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("then", ["dies", "hangs", "leaves"])
async def test_events_that_are_relayed_one_by_one_count_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, reports: bool
) -> None:
    """The engine sends each event once the client has the one before, so that each is a read of its own."""
    wanted, take = asyncio.Semaphore(0), NextEvents.take
    taken: list[bool] = []
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))

    def count(expected: NextEvents, part: bytes, begin: int) -> bytes:
        sent = take(expected, part, begin)
        taken.append(bool(sent))
        return sent

    async def one_by_one(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        parts: list[bytes] = []

        async def no_wait() -> None:
            return

        if not reports:
            request = request._replace(body=request.body.replace(b"continuous_usage_stats", b"ignored"))
        await streams_chat(1)(e, request, cast(Any, SimpleNamespace(write=parts.append, drain=no_wait)))
        writer.write(b"".join(parts[:3]))
        for part in parts[3 : SENT + 2]:
            await wanted.acquire()
            writer.write(part)
        await wanted.acquire()
        await (hangs if then == "hangs" else dies)(writer)

    monkeypatch.setattr(NextEvents, "take", count)
    limits = HASTY if then == "hangs" else LIMITS
    async with before(tmp_path, one_by_one, streams_chat(2), limits=limits, access_log=log) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        body = b""
        for word in range(1, SENT + 1):
            # The event of the role has a text, too.
            while body.count(b'"content"') < 1 + word:
                body += await client.chunk()
            if word < SENT or then != "leaves":
                wanted.release()
        while then != "leaves" and (part := await client.chunk()):
            body += part
        assert then == "leaves" or is_complete(body)
        client.close()
        await until(lambda: released(agent))
    log.close()
    if next_events.__file__.endswith(".py"):  # a compiled class calls no replaced method
        assert sum(taken) == SENT - 1
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["outcome"], line["output_tokens"]) == (("client_left", SENT) if then == "leaves" else ("ok", WORDS))


@pytest.mark.parametrize("reason", ["abort", "cancelled", "error"])
@pytest.mark.parametrize("limit", [0, 7])
async def test_another_engine_continues_a_stream_that_its_engine_aborts(
    tmp_path: Path, reason: str, limit: int
) -> None:
    scripts = streams_chat(1, limit, finishes_with(reason), in_event=False), streams_chat(2)
    async with before(tmp_path, *scripts) as (agent, engines):
        answer = await chat(agent)
        assert (answer.status, is_complete(answer.body)) == (200, True)
        assert sum(len(gpu.requests) for gpu in engines) == 2
        await until(lambda: released(agent))
        assert (agent.counted(), agent.continued()) == ({"ok": 1}, {"resumed": 1} if limit else {})


@pytest.mark.parametrize("continues", [True, False])
async def test_an_aborted_stream_that_is_not_continued_is_the_engines_fault(tmp_path: Path, continues: bool) -> None:
    fields: dict[str, Any] = {"logprobs": True} if continues else {}
    async with before(tmp_path, streams_chat(1, 7, finishes_with("abort"), in_event=False)) as (agent, _):
        if not continues:
            policy = agent.config.policy
            agent.config.policy = replace(policy, models={MODEL: replace(policy.models[MODEL], continue_streams=False)})
        stream = read_stream((await chat(agent, **fields)).body)
        assert (stream.finish_reason, stream.done, stream.error) == ("abort", True, None)
        await until(lambda: released(agent))
        assert agent.counted() == {"engine_cut": 1}
        charged = [each for each in agent.endpoints.every() if each.ejection.failures]
        assert len(charged) == 1


async def test_a_connection_of_a_continued_stream_serves_further_requests(tmp_path: Path) -> None:
    async with before(tmp_path, streams_chat(1, 5), streams_chat(2), streams_chat(3)) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(post(json.dumps(CHAT).encode()))
            assert is_complete((await client.answer()).body)
        client.close()


async def test_a_text_completion_is_continued(tmp_path: Path) -> None:
    fields = {"model": MODEL, "stream": True, "prompt": "Why?", "ignore_eos": True, "max_tokens": 30}
    async with before(tmp_path, streams_chat(1, 9), streams_chat(2)) as (agent, _):
        answer = await ask(agent, body=json.dumps(fields).encode(), path="/v1/completions")
        assert is_complete(answer.body)


@pytest.mark.parametrize("fields", [{"functions": [{}]}, {"logprobs": True}, {"response_format": {}}])
async def test_responses_with_more_than_text_end_with_an_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with before(tmp_path, streams_chat(1, 7), streams_chat(2)) as (agent, engines):
        _, _, body = await chat(agent, **fields)
        code = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"]
        assert (code, sum(len(gpu.requests) for gpu in engines)) == ("engine_failed", 1)
        assert (agent.counted(), agent.continued()) == ({"engine_cut": 1}, {})


def calls_tool(number: int, delta_after: dict[str, Any] | None, failure: Failure | None) -> Script:
    """The script of an engine that writes a word, calls a tool, and fails within the arguments of the call."""
    function = {"name": "look_up", "arguments": ""}
    call = {"index": 0, "id": f"call-{number}", "type": "function", "function": function}
    parts = [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"city":', '"Köln"', "}")]

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        body = json.loads(received.body)
        generated, prompt = 0, 9 + body.get("continue_final_message", False)
        text = [] if body.get("continue_final_message") else [{"content": "Let me look."}]
        writer.write(SSE_HEAD)
        deltas = [{"role": "assistant", "content": ""}, *text, {"tool_calls": [call]}, *parts, {}]
        for at, delta in enumerate(deltas if delta_after is None else [deltas[0], delta_after, *deltas[1:]]):
            if failure is not None and at == len(deltas) - 2:
                await failure(writer)
                return
            generated += at > 0 and delta != {}
            choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if delta == {} else None}
            used = {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
            same = {"id": f"answer-{number}", "created": number, "model": MODEL, "usage": used}
            writer.write(chunk(b"data: " + json.dumps({**same, "choices": [choice]}).encode() + b"\n\n"))
            await writer.drain()
        writer.write(chunk(b"data: " + json.dumps({**same, "choices": []}).encode() + b"\n\n"))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    return script


@pytest.mark.parametrize("failure", [dies, ends, finishes_with("abort")])
async def test_a_tool_call_that_breaks_off_is_made_once(tmp_path: Path, failure: Failure) -> None:
    scripts = calls_tool(1, None, failure), calls_tool(2, None, None)
    async with before(tmp_path, *scripts) as (agent, engines):
        answer = await chat(agent, tools=[{"type": "function"}], max_tokens=None)
        stream = read_stream(answer.body)
        assert (stream.text, stream.finish_reason, stream.error) == ("Let me look.", "tool_calls", None)
        chunks = [json.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-2]]
        calls = [
            call for each in chunks for choice in each["choices"] for call in choice["delta"].get("tool_calls", ())
        ]
        assert [call["id"] for call in calls if "id" in call] == ["call-2"]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"city":"Köln"}'
        assert stream.usage == {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        continued = next(json.loads(r.body) for gpu in engines for r in gpu.requests if b"final_message" in r.body)
        assert continued["messages"][-1] == {"role": "assistant", "content": "Let me look."}
        await until(lambda: released(agent))
        assert (agent.counted(), agent.continued()) == ({"ok": 1}, {"resumed": 1})


async def test_a_stream_that_breaks_off_after_reasoning_ends_with_one_error(tmp_path: Path) -> None:
    async with before(tmp_path, calls_tool(1, {"reasoning": "First,"}, dies), streams_chat(2)) as (agent, engines):
        body = (await chat(agent)).body
        *_, last, rest = body.split(b"\n\n")
        assert (json.loads(last.removeprefix(b"data: "))["error"]["code"], rest) == ("engine_failed", b"")
        assert (body.count(b'"error"'), sum(len(gpu.requests) for gpu in engines)) == (1, 1)
        await until(lambda: released(agent))
        assert (agent.counted(), agent.continued()) == ({"engine_cut": 1}, {"not_continuable": 1})


async def test_several_answers_end_with_an_error(tmp_path: Path) -> None:
    async def two(e: ScriptedEngine, received: Any, writer: asyncio.StreamWriter) -> None:
        await streams_chat(1, 3)(e, replace_n(received), writer)

    def replace_n(received: Any) -> Any:
        return received._replace(body=json.dumps(json.loads(received.body) | {"n": 1}).encode())

    async with before(tmp_path, two, streams_chat(2)) as (agent, engines):
        assert b"engine_failed" in (await chat(agent, n=2)).body
        assert sum(len(gpu.requests) for gpu in engines) == 1


async def test_a_model_without_a_continuation_policy_is_not_continued(tmp_path: Path) -> None:
    async with before(tmp_path, streams_chat(1, 7), streams_chat(2)) as (agent, _):
        policy = agent.config.policy
        agent.config.policy = replace(policy, models={MODEL: replace(policy.models[MODEL], continue_streams=False)})
        assert b"engine_failed" in (await chat(agent)).body
        assert agent.continued() == {}


def clear_the_kinds(agent: Agent) -> None:
    for endpoint in agent.endpoints.every():
        endpoint.set_kind(EngineKind.AUTO)


@pytest.mark.parametrize(
    ("prepare", "outcome", "reported"),
    [
        (clear_the_kinds, "no_target", "not continued: no other endpoint of an engine that continues texts"),
    ],
)
async def test_a_limit_ends_the_stream_with_an_error(
    tmp_path: Path, prepare: Callable[[Agent], None], outcome: str, reported: str
) -> None:
    async with before(tmp_path, streams_chat(1, 7), streams_chat(2)) as (agent, engines):
        prepare(agent)
        stream = read_stream((await chat(agent)).body)
        assert (stream.text, stream.done) == (words(0, 7), False)
        assert stream.error is not None
        assert (stream.error["code"], reported in stream.error["message"]) == ("engine_failed", True)
        assert sum(len(gpu.requests) for gpu in engines) == 1
        assert (agent.counted(), agent.continued()) == ({"engine_cut": 1}, {outcome: 1})


@pytest.mark.parametrize(("failure", "outcome"), [(reports_an_error, "engine_error"), (dies, "")])
async def test_the_retry_budget_limits_continuations_of_streams_whose_endpoint_is_there(
    tmp_path: Path, failure: Failure, outcome: str
) -> None:
    go_on, count, permitted = asyncio.Event(), 100, 20

    async def fails_later(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await failure(writer)

    async with (
        engine(streams_chat(1, 7, fails_later)) as dying,
        engine(answers_after(go_on, streams_chat(2))) as other,
        running_agent(tmp_path, [dying.address, other.address], slots=count) as agent,
    ):
        agent.continue_streams()
        asked = [asyncio.create_task(chat(agent)) for _ in range(count)]
        await until(lambda: len(dying.requests) + len(other.requests) == count)
        dead = len(dying.requests)
        budget, now = agent.proxy.retry_budget, agent.proxy.clock
        left = sum(budget.withdraw(now()) for _ in range(1000))
        budget._retries -= permitted
        assert left > permitted < dead
        go_on.set()
        streams = [read_stream((await asking).body) for asking in asked]
        complete = sum(stream.done and stream.text == words(0, 30) for stream in streams)
        cut = sum(stream.error is not None and stream.text == words(0, 7) for stream in streams)
        lost = dead - permitted if outcome else 0
        assert (complete, cut) == (count - lost, lost)
        ends = {"over_budget": lost} if lost else {}
        assert agent.continued() == {"resumed": dead - lost, **ends}
        await until(lambda: released(agent))
        assert agent.counted() == {"ok": complete, **({outcome: lost} if lost else {})}


async def test_a_request_that_breaks_two_engines_reaches_no_third(tmp_path: Path) -> None:
    async with before(tmp_path, *[streams_chat(1, 7)] * 3, engines=3) as (agent, engines):
        stream = read_stream((await chat(agent)).body)
        assert (stream.text, stream.done) == (words(0, 14), False)
        assert stream.error is not None
        assert "may be the cause" in stream.error["message"]
        assert sum(len(gpu.requests) for gpu in engines) == 2


async def test_a_stream_of_a_stalled_engine_is_continued_once(tmp_path: Path) -> None:
    scripts = *[streams_chat(1, 7, hangs)] * 3, streams_chat(2)
    async with before(tmp_path, *scripts, engines=4, limits=HASTY) as (agent, engines):
        stream = read_stream((await chat(agent)).body)
        assert (stream.text, stream.error and stream.error["code"]) == (words(0, 21), "stream_stalled")
        assert sum(len(gpu.requests) for gpu in engines) == 3
        assert agent.continued() == {"resumed": 2, "over_budget": 1}


async def test_a_continuation_that_an_engine_refuses_ends_with_an_error(tmp_path: Path) -> None:
    async def refuses(e: ScriptedEngine, received: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")

    async with before(tmp_path, streams_chat(1, 7), refuses) as (agent, _):
        stream = read_stream((await chat(agent)).body)
        assert stream.error is not None
        assert (stream.error["code"], "status 400" in stream.error["message"]) == ("engine_failed", True)
        assert agent.continued() == {"no_target": 1}


async def test_a_continuation_is_retried_like_any_request(tmp_path: Path) -> None:
    async with before(tmp_path, streams_chat(1, 7), is_busy, streams_chat(2), engines=3) as (agent, _):
        assert is_complete((await chat(agent)).body)


async def test_a_continuation_waits_for_a_free_slot(tmp_path: Path) -> None:
    break_off, go_on = asyncio.Event(), asyncio.Event()

    async def dies_later(writer: asyncio.StreamWriter) -> None:
        await break_off.wait()
        writer.transport.abort()

    async def ends_later(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await reports_an_error(writer)

    scripts = streams_chat(1, 7, dies_later), streams_chat(2, 3, ends_later), streams_chat(3)
    async with before(tmp_path, *scripts, slots=1, queue=0) as (agent, engines):
        pool = agent.endpoints.pools[MODEL]
        pool.prior_s = 0.1
        pool.recount()
        first = asyncio.create_task(chat(agent))
        await until(lambda: any(gpu.requests for gpu in engines))
        second = asyncio.create_task(chat(agent, n=1, logprobs=True))
        await until(lambda: all(gpu.requests for gpu in engines))
        break_off.set()
        await until(lambda: agent.waiting() == 1)
        go_on.set()
        assert b"EngineCore" in (await second).body
        assert is_complete((await first).body)


async def test_an_answer_with_all_its_tokens_is_finished(tmp_path: Path) -> None:
    async def omits_the_end(e: ScriptedEngine, received: Any, writer: asyncio.StreamWriter) -> None:
        longer = json.loads(received.body) | {"max_tokens": 31}
        await streams_chat(1, 30)(e, received._replace(body=json.dumps(longer).encode()), writer)

    async with before(tmp_path, omits_the_end, streams_chat(2)) as (agent, engines):
        stream = read_stream((await chat(agent)).body)
        assert (stream.text, stream.finish_reason, stream.done) == (words(0, 30), "length", True)
        assert sum(len(gpu.requests) for gpu in engines) == 1


async def test_the_stall_after_a_complete_answer_is_not_service_time(tmp_path: Path) -> None:
    async def never_ends(e: ScriptedEngine, received: Any, writer: asyncio.StreamWriter) -> None:
        open_ended: Any = SimpleNamespace(
            write=lambda data: writer.write(data.removesuffix(b"0\r\n\r\n")), drain=writer.drain
        )
        await streams_chat(1)(e, received, open_ended)
        await asyncio.Event().wait()

    async with before(tmp_path, never_ends, limits=HASTY) as (agent, _):
        assert is_complete((await chat(agent)).body)
        assert agent.counted() == {"ok": 1}
        assert [endpoint.completions for endpoint in agent.endpoints.every()] == [0, 0]


async def test_a_client_that_leaves_ends_its_continuation(tmp_path: Path) -> None:
    async with before(tmp_path, streams_chat(1, 7), never_responds) as (agent, engines):
        client = await RawClient.connect(agent.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        await until(lambda: all(gpu.requests for gpu in engines))
        client.close()
        await until(lambda: released(agent))
        assert agent.counted() == {"client_left": 1}


async def test_a_deadline_ends_a_continuation(tmp_path: Path) -> None:
    async with before(tmp_path, streams_chat(1, 7), never_responds) as (agent, _):
        answer = await ask(agent, "X-Request-Timeout-Ms: 2000", body=json.dumps(CHAT).encode())
        stream = read_stream(answer.body)
        assert stream.error is not None
        assert stream.error["code"] == "deadline_passed"
        assert agent.counted() == {"expired": 1}


async def test_a_revoked_request_is_not_continued(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def waits(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.transport.abort()

    async with before(tmp_path, streams_chat(1, 7, waits), streams_chat(2), anonymous="personal") as (agent, engines):
        agent.location = Location("DE")
        client = await RawClient.connect(agent.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        policy = agent.config.policy
        forbidding = replace(policy.residency[0], name="elsewhere", allow=frozenset({"eu-es"}))
        agent.config.policy = replace(policy, residency=(forbidding,))
        go_on.set()
        body = b""
        while part := await client.chunk():
            body += part
        stream = read_stream(body)
        assert stream.error is not None
        assert (stream.done, sum(len(gpu.requests) for gpu in engines)) == (False, 1)
        assert agent.counted() == {"revoked": 1}


@pytest.mark.parametrize("displaced", [False, True])
async def test_a_large_body_is_kept_while_its_memory_is_not_needed(tmp_path: Path, displaced: bool) -> None:
    go_on = asyncio.Event()

    async def waits(writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.transport.abort()

    limits = Limits(max_body_bytes=1 << 20, idle_linger_s=0.0)
    async with before(tmp_path, streams_chat(1, 7, waits), streams_chat(2), limits=limits) as (agent, _):
        client = await RawClient.connect(agent.traffic)
        messages = [{"role": "user", "content": "Why does the water flow? " * 1000}]
        body = json.dumps({**CHAT, "messages": messages, "padding": "x" * 100_000}).encode()
        client.send(post(body))
        await client.head()
        bodies = agent.listener.state.bodies
        # What is parsed together with the head is not counted.
        assert len(body) - PARSED_BYTES <= bodies.bytes_kept <= len(body)
        if displaced:
            exchange: Any = next(iter(agent.proxy.active))
            assert exchange.drop_body()
            assert bodies.bytes_kept == 0
        go_on.set()
        received = b""
        while part := await client.chunk():
            received += part
        if displaced:
            error = read_stream(received).error
            assert error is not None
            assert "the request body was not kept" in error["message"]
        else:
            assert is_complete(received)
        await until(lambda: bodies.bytes_kept == 0)
        client.close()


@asynccontextmanager
async def two_regions(directory: Path, home: Script, *away: Script) -> AsyncIterator[tuple[Agent, Agent]]:
    """An origin that forwards its requests to another region, whose engines run the scripts `away` in turn."""
    elsewhere = plan("eu-de", "eu-de+eu-es+us-east", eu_es=1.0)
    async with AsyncExitStack() as stack:
        shared = in_turn(*away)
        engines = [await stack.enter_async_context(engine(shared)) for _ in away]
        near = await stack.enter_async_context(engine(home))
        server = await stack.enter_async_context(
            running_agent(directory / "server", [gpu.address for gpu in engines], region="eu-es", anonymous=None)
        )
        origin = await stack.enter_async_context(
            running_agent(directory / "origin", [near.address], plan=elsewhere, peers={"eu-es": server.peer})
        )
        for agent in (server, origin):
            agent.continue_streams()
        yield origin, server
        await until(lambda: released(origin) and released(server))


async def test_the_origin_continues_a_stream_broken_in_the_serving_region(tmp_path: Path) -> None:
    async with two_regions(tmp_path, answers, streams_chat(1, 7), streams_chat(2)) as (origin, server):
        _, headers, body = await chat(origin)
        assert (headers["x-penstock-region"], is_complete(body)) == ("eu-es", True)
        assert (origin.continued(), server.continued()) == ({"resumed": 1}, {})
        await until(lambda: server.counted() == {"engine_cut": 1, "ok": 1})
        assert origin.counted() == {"ok": 1}


async def test_agents_that_stop_in_the_serving_region_break_no_engine(tmp_path: Path) -> None:
    scripts = streams_chat(1, 7, hangs), streams_chat(2, 7, hangs), streams_chat(3)
    async with two_regions(tmp_path, answers, *scripts) as (origin, server):
        client = await RawClient.connect(origin.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        body = b""
        for delivered in (7, 14):
            while body.count(b'"content":" ') < delivered:
                body += await client.chunk()
            (exchange,) = server.proxy.active
            exchange.shut_down()
        while part := await client.chunk():
            body += part
        assert is_complete(body)
        assert origin.continued() == {"resumed": 2}


@pytest.mark.parametrize(("failure", "continued"), [(dies, "resumed"), (reports_an_error, "over_budget")])
async def test_without_retries_left_only_a_loss_in_the_serving_region_is_continued(
    tmp_path: Path, failure: Failure, continued: str
) -> None:
    async with two_regions(tmp_path, answers, streams_chat(1, 7, failure), streams_chat(2)) as (origin, _):
        while origin.proxy.retry_budget.withdraw(origin.proxy.clock()):
            pass
        await chat(origin)
        assert origin.continued() == {continued: 1}


async def test_a_stream_whose_key_is_revoked_in_the_serving_region_has_one_end(tmp_path: Path) -> None:
    async with two_regions(tmp_path, answers, streams_chat(1, 7, hangs), streams_chat(2)) as (origin, server):
        client = await RawClient.connect(origin.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        body = await client.chunk()
        (exchange,) = server.proxy.active
        exchange.end(Refusal(Reason.INVALID_API_KEY, "the key is revoked"))
        while part := await client.chunk():
            body += part
        assert b'"code":"invalid_api_key"' in body
        client.send(post(json.dumps(CHAT).encode()))
        assert (await client.head())[0] == 200, "nothing precedes the next response"
        while await client.chunk():
            pass
        client.close()


async def is_gone(origin: Agent, server: Agent) -> None:
    origin.peers.addresses.clear()
    server.peer_listener.stop_accepting()
    await server.peer_listener.drain(0.0)


async def fails_silently(origin: Agent, server: Agent) -> None:
    origin.peers.states["eu-es"] = RegionState.FAILED


@pytest.mark.parametrize("lose", [is_gone, fails_silently])
async def test_the_origin_continues_the_stream_of_a_lost_region(
    tmp_path: Path, lose: Callable[[Agent, Agent], Awaitable[None]]
) -> None:
    async with two_regions(tmp_path, streams_chat(2), streams_chat(1, 7, hangs)) as (origin, server):
        client = await RawClient.connect(origin.traffic)
        client.send(post(json.dumps(CHAT).encode()))
        await client.head()
        body = await client.chunk()
        await lose(origin, server)
        while part := await client.chunk():
            body += part
        assert is_complete(body)
        assert origin.counted() == {"ok": 1}


async def test_a_killed_engine_process_loses_and_repeats_no_word(tmp_path: Path) -> None:
    """The engines send several tokens in an event, and the client requests no usage by which to count them."""
    directories = tmp_path / "a", tmp_path / "b"
    fields = {"name": "gpu", "time_scale": 0.5, "stream_interval": 7}
    request = {**CHAT, "max_tokens": 200, "stream_options": None}
    with ExitStack() as stack:
        processes = []
        for directory in directories:
            directory.mkdir()
            processes.append(stack.enter_context(running_engines(directory, fields)))
        addresses = [Address.parse(process.urls["gpu"]) for process in processes]
        async with running_agent(tmp_path, addresses) as agent:
            agent.endpoints.start()
            try:
                await until(lambda: agent.endpoints.pools[MODEL].ready == 2)
                await until(lambda: {endpoint.kind for endpoint in agent.endpoints.every()} == {EngineKind.VLLM})
                agent.continue_streams()
                policy = agent.config.policy
                by_token = replace(policy.models[MODEL], cost=Cost(CostUnit.TOKEN, 0.001, 0.01))
                agent.config.policy = replace(policy, models={MODEL: by_token})
                client = await RawClient.connect(agent.traffic)
                client.send(post(json.dumps(request).encode()))
                _, headers = await client.head()
                body = await client.chunk()
                processes[int(headers["x-penstock-endpoint"].removeprefix("gpu-"))].kill()
                while part := await client.chunk():
                    body += part
                assert is_complete(body, 200)
                assert b'"usage"' not in body
                assert agent.continued() == {"resumed": 1}
                await until(lambda: released(agent))
                assert agent.router.local.chooser.expectations.answer_tokens("open", MODEL, None) == 200
            finally:
                await agent.endpoints.stop()
