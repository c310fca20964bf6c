"""What the agent concludes from responses: usage, outcomes, and whose fault they are; engines on raw sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import brotli
import httpx
import pytest
from msgspec.structs import replace

from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, AnswerParser
from penstock.answers.held_text import MAX_UNDECIDED_BYTES
from penstock.health.failure_attribution import JUDGED_AFTER_S
from penstock.health.region_health import RegionState
from penstock.http.answer_intake import HOLD_S, AnswerIntake
from penstock.policy.kinds.models import UNSTATED_COST, Cost, CostUnit
from penstock.retries.retry_rules import MAX_ATTEMPTS
from penstock.routes.presets.preset_registry import preset_routes
from regional_agent.http.limits import Limits
from regional_agent.telemetry.access_log import AccessLog
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, as_own, ask, chunk, code, post
from tests.support.codings import gzipped
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, Script, ScriptedEngine, engine
from tests.support.streamed_chats import in_turn
from tests.support.wait import until

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = {"choices": [{"x": "y" * 99}], "usage": USAGE}
PLAIN = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 100}]}
STREAM = {**PLAIN, "stream": True}
ASKED = {**STREAM, "stream_options": {"include_usage": True}}


def event(data: Any) -> bytes:
    return b"data: %b\n\n" % (data if isinstance(data, bytes) else json.dumps(data).encode())


def delta(text: str, finish: str | None = None) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


WORDS = (delta(""), delta("a"), delta("b"), delta("c"), delta("", "stop"))
REPORT = event({"id": "c", "choices": [], "usage": USAGE})
DONE = event(b"[DONE]")


def streams(*parts: bytes, ends: bool = True) -> Script:
    """An engine that writes each part as a chunk of its own."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
            await asyncio.sleep(0)
        if ends:
            writer.write(b"0\r\n\r\n")
        else:
            await asyncio.Event().wait()

    return script


def responds(body: bytes, *lines: bytes, head: bytes = HEAD) -> Script:
    """An engine that responds with a whole body."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        extra = b"".join(line + b"\r\n" for line in lines)
        writer.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (head, extra, len(body), body))

    return script


def body_of(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()


def metered(agent: Agent) -> tuple[int, int, int, int]:
    """Input, cached and output tokens, and requests with estimated usage."""
    found = [series for _, _, series in agent.metrics.usage.series()]
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "estimated")
    a, b, c, d = (sum(getattr(series, name) for series in found) for name in names)
    return a, b, c, d


TOKENS = Cost(CostUnit.TOKEN, 0.001, 0.01)


def meter(agent: Agent, cost: Cost = TOKENS) -> None:
    """Set the cost of the model, by default of tokens, and count the usage of the tenant."""
    policy = agent.config.policy
    model = replace(policy.models[MODEL], cost=cost)
    agent.config.policy = replace(policy, models={**policy.models, MODEL: model})
    agent.metrics.usage.use_names(["open"], {MODEL: 1.0})


@pytest.mark.parametrize(
    "tail",
    [(DONE,), (b": ping\n\n", DONE), (b"\n\n", DONE), (b"data: [DO", b"NE]\n", b"\n"), (b"data: [DONE]\r\n\r\n",), ()],
    ids=["done", "comment", "blank", "split", "crlf", "none"],
)
@pytest.mark.parametrize("cut", [None, 1, 7])
async def test_the_usage_of_a_stream_is_metered_exactly(tmp_path: Path, tail: Sequence[bytes], cut: int | None) -> None:
    parts = [*WORDS, REPORT, *tail]
    if cut is not None:
        whole = b"".join(parts)
        parts = [whole[at : at + cut] for at in range(0, len(whole), cut)]
    async with engine(streams(*parts)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        answer = await ask(agent, body=body_of(ASKED))
        assert answer.body == b"".join([*WORDS, REPORT, *tail])
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


@pytest.mark.parametrize("coding", ["gzip", "br", ""])
@pytest.mark.parametrize("streamed", [True, False])
async def test_encoded_and_large_answers_are_metered_exactly(tmp_path: Path, coding: str, streamed: bool) -> None:
    encode = {"gzip": gzipped, "br": brotli.compress, "": bytes}[coding]
    extra = {"logprobs": [{"usage": {"prompt_tokens": 1}}] * 40_000, "tools": [{"usage": USAGE}]}
    if streamed:
        body = encode(b"".join(WORDS) + event({"choices": [], "usage": USAGE, **extra}) + DONE)
    else:
        body = encode(json.dumps({"id": "c", "choices": [], "usage": USAGE, **extra}).encode())
    kind = b"text/event-stream" if streamed else b"application/json"
    lines = [b"Content-Encoding: " + coding.encode()] if coding else []
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % kind
    async with (
        engine(responds(body, *lines, head=head)) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        meter(agent)
        answer = await ask(agent, body=body_of(ASKED if streamed else PLAIN))
        assert answer.body == body
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


@pytest.mark.parametrize(
    "stated",
    [b"", b"text/plain", b"Text/Event-Stream;Charset=UTF-8", b"application/octet-stream", b"application/json"],
)
@pytest.mark.parametrize("asked", [True, False])
async def test_streams_of_any_content_type_are_metered(tmp_path: Path, stated: bytes, asked: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Type: %b\r\n" % stated if stated else b"")
    body = b"".join([*WORDS, REPORT, DONE])
    async with (
        engine(responds(body, head=head)) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        meter(agent)
        answer = await ask(agent, body=body_of(ASKED if asked else STREAM))
        assert answer.body == (body if asked else b"".join(WORDS) + DONE)
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("stated", [b"", b"text/plain", b"application/json"])
async def test_whole_answers_of_any_content_type_are_metered(tmp_path: Path, stated: bytes, streamed: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Type: %b\r\n" % stated if stated else b"")
    async with engine(responds(body_of(WHOLE), head=head)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED if streamed else PLAIN))).body == body_of(WHOLE)
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


@pytest.mark.parametrize("coding", ["deflate", "zlib", "gzip, identity", "zstd"])
async def test_other_codings_are_metered_or_estimated(tmp_path: Path, coding: str) -> None:
    body = b"".join([*WORDS, REPORT, DONE])
    raw = zlib.compressobj(wbits=-15)
    encoded = {
        "deflate": raw.compress(body) + raw.flush(),
        "zlib": zlib.compress(body),
        "gzip, identity": gzipped(body),
        "zstd": b"\x28\xb5\x2f\xfd" + bytes(200),
    }[coding]
    stated = b"Content-Encoding: " + coding.replace("zlib", "deflate").encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    script = responds(encoded, stated, head=head)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED))).body == encoded
        inputs, cached, outputs, estimated = metered(agent)
        if coding == "zstd":
            assert (cached, estimated) == (0, 1)
            assert min(inputs, outputs) > 20, "what the agent cannot read is estimated like a whole answer"
        else:
            assert (inputs, cached, outputs, estimated) == (12, 8, 3, 0)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("words", [40, 4000])
async def test_a_whole_answer_without_usage_has_the_tokens_of_its_size(tmp_path: Path, coding: str, words: int) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "abc " * words}, "finish_reason": "stop"}
    body = body_of({"id": "c", "object": "chat.completion", "choices": [choice]})
    encoded = gzipped(body) if coding == "gzip" else body
    script = responds(encoded, b"Content-Encoding: " + coding.encode())
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(PLAIN))).body == encoded
        _, _, outputs, estimated = metered(agent)
        assert (outputs, estimated) == (pytest.approx(words, abs=20), 1)


async def test_a_message_whose_last_report_is_missing_is_metered_as_delivered(tmp_path: Path) -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 12, "output_tokens": 1}}}
    text = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}})
    message = (event(start), *[text] * 5, event({"type": "message_stop"}))
    async with engine(streams(*message)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        agent.config.policy = replace(agent.config.policy, routes=tuple(preset_routes("anthropic")))
        assert (await ask(agent, body=body_of(STREAM), path="/v1/messages")).status == 200
        await until(lambda: agent.counted() == {"ok": 1})
        assert metered(agent) == (12, 0, 5, 1)


@pytest.mark.parametrize("number", ["5.9", '"7"', "-5", "1e30", "true", "NaN"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_number_of_tokens_that_is_no_count_is_estimated(tmp_path: Path, number: str, *, streamed: bool) -> None:
    whole, report = (
        text.replace(b'"completion_tokens": 3', b'"completion_tokens": ' + number.encode())
        for text in (body_of(WHOLE), REPORT)
    )
    script = streams(*WORDS, report, DONE) if streamed else responds(whole)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED if streamed else PLAIN))).status == 200
        inputs, cached, outputs, estimated = metered(agent)
        assert (agent.counted(), estimated) == ({"ok": 1}, 1)
        assert outputs == 3 if streamed else outputs > 3
        assert (inputs, cached) == (12, 8) or number == "NaN"


@pytest.mark.parametrize(
    "stated", [{}, {"completion_tokens": 0}, {"completion_tokens": 1}, {"completion_tokens": None}]
)
@pytest.mark.parametrize("choices", [[], [{"index": 0, "delta": {"role": "assistant", "content": ""}}]])
@pytest.mark.parametrize("asked", [STREAM, ASKED])
async def test_usage_before_the_output_is_exact_for_the_input_alone(
    tmp_path: Path, stated: dict[str, Any], choices: list[Any], asked: dict[str, Any]
) -> None:
    usage = {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 8}, **stated}
    first = event({"id": "c", "choices": choices, "usage": usage})
    script, log = streams(first, *WORDS[1:], DONE), AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(asked))).status == 200
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 1), {"ok": 1})
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["input_tokens"], "input_estimated" in line, line["output_estimated"]) == (12, False, True)


async def test_what_clients_send_and_engines_echo_is_not_metered(tmp_path: Path) -> None:
    echoed = {"choices": [{"message": {"content": 'x "usage":{"prompt_tokens":9} '}}], "tools": [{"usage": USAGE}]}
    async with engine(responds(body_of(echoed))) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        await ask(agent, body=body_of(PLAIN))
        assert metered(agent)[3] == 1, "the agent estimates"
        assert metered(agent)[1] == 0


async def test_the_agent_asks_for_usage_and_hides_it(tmp_path: Path) -> None:
    async with engine(streams(*WORDS, REPORT, DONE)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        answer = await ask(agent, body=body_of(STREAM))
        assert answer.body == b"".join(WORDS) + DONE
        assert json.loads(gpu.requests[0].body) == ASKED
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})
        await ask(agent, body=body_of(PLAIN))
        assert gpu.requests[1].body == body_of(PLAIN)


async def test_usage_beside_the_finish_reason_stays(tmp_path: Path) -> None:
    last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE})
    async with engine(streams(*WORDS[:-1], last, DONE)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(STREAM))).body == b"".join(WORDS[:-1]) + last + DONE
        assert metered(agent) == (12, 8, 3, 0)


async def test_an_engine_that_refuses_the_flag_gets_the_request_again(tmp_path: Path) -> None:
    async def strict(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in received.body:
            writer.write(b"HTTP/1.1 422 Unprocessable\r\nContent-Length: 2\r\n\r\n{}")
        else:
            await streams(*WORDS, DONE)(e, received, writer)

    async with engine(strict) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        for _ in range(2):
            answer = await ask(agent, body=body_of(STREAM))
            assert (answer.status, answer.body) == (200, b"".join(WORDS) + DONE)
        assert [b"stream_options" in request.body for request in gpu.requests] == [True, False, False]
        assert gpu.requests[1].body == body_of(STREAM)
        inputs, cached, outputs, estimated = metered(agent)
        assert (cached, outputs, estimated) == (0, 6, 2)
        assert inputs > 0
        refused = await ask(agent, body=body_of({**STREAM, "stream_options": {"x": 1}}))
        assert refused.status == 422, "what the client sent is refused to the client"


async def test_an_engine_is_asked_though_its_sibling_refuses(tmp_path: Path) -> None:
    def responds_unless(refuses: bool) -> Script:
        async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            is_asked = b"stream_options" in received.body
            if is_asked and refuses:
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
            else:
                await streams(*WORDS, *([REPORT] if is_asked else []), DONE)(e, received, writer)

        return script

    async with (
        engine(responds_unless(refuses=True)) as old,
        engine(responds_unless(refuses=False)) as new,
        running_agent(tmp_path, [old.address, new.address]) as agent,
    ):
        meter(agent)
        while min(len(old.requests), len(new.requests)) < 4:
            assert (await ask(agent, body=body_of(STREAM))).body == b"".join(WORDS) + DONE
        asked = [[b"stream_options" in request.body for request in gpu.requests] for gpu in (old, new)]
        assert (sum(asked[0]), asked[0][0], asked[1][-1]) == (1, True, True)
        assert metered(agent)[3] <= len(old.requests), "what the other one serves is measured"


@pytest.mark.parametrize("asked", [STREAM, ASKED])
async def test_an_engine_that_refuses_the_usage_of_each_chunk_gets_the_request_again(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    async def strict(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if b"continuous_usage_stats" in received.body:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
        else:
            # The client's own request: whatever the engine reports of it, the client receives.
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(whole) + whole)

    whole = b"".join((*WORDS, REPORT, DONE))
    async with engine(strict) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        for _ in range(2):
            answer = await ask(agent, body=body_of(asked))
            assert (answer.status, answer.body) == (200, whole)
        assert [b"continuous_usage_stats" in request.body for request in gpu.requests] == [True, False, False]
        assert (metered(agent), agent.counted()) == ((24, 16, 6, 0), {"ok": 2})


REASON = event({"choices": [{"index": 0, "delta": {"reasoning_content": "r"}, "finish_reason": None}]})


@pytest.mark.parametrize(
    "parts",
    [
        [b"id: 1\n" + part for part in (*WORDS, REPORT, DONE)],
        [part.replace(b', "usage"', b'\ndata: , "usage"') for part in (*WORDS, REPORT, DONE)],
        [*WORDS, event({"choices": [], "x": ["y"] * 80_000, "usage": USAGE}), DONE],
        [*WORDS, REPORT[:-2]],
    ],
    ids=["fields", "lines", "long", "no-blank-line"],
)
async def test_a_stream_that_could_be_continued_is_metered_like_any(tmp_path: Path, parts: Sequence[bytes]) -> None:
    async with engine(streams(*parts)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED))).body == b"".join(parts)
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


async def test_reasoning_that_a_client_received_before_it_left_is_metered(tmp_path: Path) -> None:
    script = streams(WORDS[0], REASON, REASON, REASON, ends=False)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(STREAM)))
        await client.head()
        received = b""
        while received.count(REASON) < 3:
            received += await client.chunk()
        client.close()
        await until(lambda: agent.counted() == {"client_left": 1})
        assert metered(agent)[1:] == (0, 3, 1)


async def test_a_continuable_request_with_a_body_of_known_length_shows_no_usage_that_was_not_asked_for(
    tmp_path: Path,
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    script = responds(b"".join([*WORDS, REPORT, DONE]), head=head)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        assert (await ask(agent, body=body_of(STREAM))).body == b"".join([*WORDS, DONE])
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})


@pytest.mark.parametrize("obeys", [True, False], ids=["by-request", "always"])
@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_the_usage_that_the_agent_asks_for_is_hidden_from_clients_that_accept_a_coding(
    tmp_path: Path, coding: str, obeys: bool
) -> None:
    """The event could not be removed from an encoded stream, so the agent asks for an unencoded one."""
    encode = {"gzip": gzipped, "br": brotli.compress}[coding]

    async def encodes(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        parts = [*WORDS, *([REPORT] if b"include_usage" in received.body else []), DONE]
        if obeys and coding not in (received.header("accept-encoding") or ""):
            await streams(*parts)(e, received, writer)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: %b\r\n" % coding.encode()
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        body = encode(b"".join(parts))
        writer.write(chunk(body[:20]) + chunk(body[20:]) + b"0\r\n\r\n")

    async with engine(encodes) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        for _ in range(3):
            body = body_of(STREAM)
            answer = await ask(agent, "Accept-Encoding: br, gzip", body=body)
            text = answer.body
            if not obeys:
                text = gzip.decompress(text) if coding == "gzip" else brotli.decompress(text)
            assert text == b"".join(WORDS) + DONE
        assert agent.counted() == {"ok": 3}
        inputs, _, outputs, estimated = metered(agent)
        assert (inputs == 36, outputs, estimated) == (obeys, 9, 0 if obeys else 3)
        assert agent.held() == 0
        asked = body_of(ASKED)
        compressed = await ask(agent, "Accept-Encoding: br, gzip", body=asked)
        assert gpu.requests[-1].header("accept-encoding") == "br, gzip", "what the client asked for stays"
        assert compressed.body == encode(b"".join([*WORDS, REPORT, DONE]))


@pytest.mark.parametrize(
    ("accepted", "passes"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br"),
        ("zstd;q=1.0, GZIP;q=0.8, *;q=0.1", "GZIP;q=0.8"),
        ("zstd", "identity"),
        ("*", "identity"),
        ("compress, x-gzip", "x-gzip"),
    ],
)
async def test_no_coding_is_asked_for_that_could_not_be_metered(tmp_path: Path, accepted: str, passes: str) -> None:
    async def encodes(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        asked = (received.header("accept-encoding") or "").lower()
        coding = next((each for each in ("zstd", "gzip") if each in asked or "*" in asked), "identity")
        text = body_of(WHOLE)
        text = {"zstd": b"(\xb5/\xfd" + text, "gzip": gzipped(text), "identity": text}[coding]
        lines = b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding.encode(), len(text))
        writer.write(HEAD + lines + text)

    async with engine(encodes) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        for number in range(1, 4):
            client.send(post(body_of(PLAIN), f"Accept-Encoding: {accepted}"))
            assert (await client.answer()).status == 200
            assert gpu.requests[-1].header("accept-encoding") == passes
            assert metered(agent) == (12 * number, 8 * number, 3 * number, 0)
        client.close()


@pytest.mark.parametrize("has_cost", [True, False])
async def test_a_client_that_leaves_is_charged_what_it_received(tmp_path: Path, *, has_cost: bool) -> None:
    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with (
        engine(streams(*WORDS[:3], ends=False)) as gpu,
        running_agent(tmp_path, [gpu.address], access_log=log) as agent,
    ):
        meter(agent, TOKENS if has_cost else UNSTATED_COST)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(STREAM)))
        await client.head()
        received = b""
        while received != b"".join(WORDS[:3]):
            received += await client.chunk()
        client.close()
        await until(lambda: agent.counted() == {"client_left": 1})
        inputs, _, outputs, estimated = metered(agent)
        assert (outputs, estimated) == (2, 1)
        assert 50 <= inputs <= 500
    log.close()
    line = json.loads((tmp_path / "access.log").read_text())
    assert (line["output_tokens"], line["usage_estimated"]) == (2, True)


async def leave_after(agent: Agent, parts: Sequence[bytes]) -> None:
    """Close the connection of a chat as soon as `parts` have arrived."""
    client = await RawClient.connect(agent.traffic)
    client.send(post(body_of(ASKED)))
    await client.head()
    received = b""
    while received != b"".join(parts):
        received += await client.chunk()
    client.close()


@pytest.mark.parametrize(
    ("parts", "usage"),
    [((*WORDS, REPORT, DONE), (12, 8, 3, 0)), ((*WORDS, REPORT), (12, 8, 3, 0))],
    ids=["done", "report"],
)
async def test_a_client_that_closes_at_the_end_of_the_answer_has_it(
    tmp_path: Path, parts: Sequence[bytes], usage: tuple[int, ...]
) -> None:
    async with engine(streams(*parts, ends=False)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        await leave_after(agent, parts)
        await until(lambda: agent.counted() == {"ok": 1})
        assert metered(agent) == (12, 8, 3, 0)


ERROR = {"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}
BUSY = {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}
INVALID = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}


@pytest.mark.parametrize("failing", [ERROR, BUSY], ids=["error", "busy"])
@pytest.mark.parametrize("form", ["event", "split", "after a comment", "json", "slow json"])
async def test_an_error_with_status_200_is_retried_elsewhere(
    tmp_path: Path, failing: dict[str, Any], form: str
) -> None:
    text = json.dumps(failing).encode()
    scripts = {
        "event": streams(event(text), DONE),
        "split": streams(*(event(text)[at : at + 5] for at in range(0, len(event(text)), 5))),
        "after a comment": streams(b": ping\n\n", event(text)),
        "json": responds(text),
        "slow json": streams(*(text[at : at + 9] for at in range(0, len(text), 9))),
    }
    streamed = "json" not in form
    script = scripts[form]
    if form == "slow json":

        async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(text), 9):
                writer.write(chunk(text[at : at + 9]))
                await writer.drain()
            writer.write(b"0\r\n\r\n")

    good = (
        streams(*WORDS, REPORT, DONE) if streamed else responds(body_of({"choices": [{"x": "y" * 99}], "usage": USAGE}))
    )
    request = body_of(ASKED if streamed else PLAIN)
    async with (
        engine(script) as bad,
        engine(good) as other,
        running_agent(tmp_path, [bad.address, other.address]) as agent,
    ):
        meter(agent)
        for _ in range(12):
            answer = await ask(agent, body=request)
            assert (answer.status, b"rror" in answer.body) == (200, False)
        assert agent.counted() == {"ok": 12}
        assert metered(agent) == (144, 96, 36, 0)
        assert agent.held() == 0
        assert bad.requests
        if failing is ERROR:
            assert len(bad.requests) <= 4, "the endpoint is charged, and ejected"
            assert [endpoint.ejection.is_ejected for endpoint in agent.endpoints.every()].count(True) == 1


@asynccontextmanager
async def full_engines(directory: Path, max_wait_s: float) -> AsyncIterator[tuple[Agent, list[ScriptedEngine]]]:
    """An agent whose three engines state that they are full, for which a request waits `max_wait_s` (s)."""
    async with (
        engine(streams(event(BUSY))) as a,
        engine(streams(event(BUSY))) as b,
        engine(streams(event(BUSY))) as c,
        running_agent(directory, [a.address, b.address, c.address]) as agent,
    ):
        model = agent.config.policy.models[MODEL]
        model = replace(model, queueing=replace(model.queueing, max_wait_s=max_wait_s, wait_is_set=True))
        agent.config.policy = replace(agent.config.policy, models={MODEL: model})
        yield agent, [a, b, c]
        await until(lambda: agent.held() == agent.waiting() == 0)
        assert not any(endpoint.ejection.is_ejected for endpoint in agent.endpoints.every())


async def test_a_request_whose_engines_state_that_they_are_full_is_refused_after_its_wait(tmp_path: Path) -> None:
    async with full_engines(tmp_path, 1.5) as (agent, _):
        answer = await ask(agent, body=body_of(ASKED))
        assert (answer.status, code(answer.body)) == (429, "saturated")
        assert agent.counted() == {"refused": 1}


async def test_a_request_whose_engines_state_that_they_are_full_is_tried_while_it_waits(tmp_path: Path) -> None:
    async with full_engines(tmp_path, 60.0) as (agent, engines):
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await until(lambda: sum(len(each.requests) for each in engines) > MAX_ATTEMPTS)
        assert agent.counted() == {}
        client.close()


OTHERS = (b'{"foo": 1}', b"{}", b"null", b'"busy"', b"5", b"[]", b'[{"choices": []}]', b'{"choices": null}', b"")
"""Bodies that are JSON, or none, and no answer to a chat."""

FOREIGN = (
    (event({"foo": 1}), event({"bar": 2}), DONE),
    (event({"detail": "no"}),),
    (event({"id": "c", "choices": []}), event({"id": "c", "choices": []}), DONE),
)
"""Streams without an event of a chat."""


OTHER_HEAD = b"HTTP/1.1 200 OK\r\n%b"
KINDS = (b"", b"Content-Type: application/octet-stream\r\n", b"Content-Type: image/png\r\n")

PAGE = b"<!doctype html><title>Sign in</title>"
PAGE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


@pytest.mark.parametrize(
    ("script", "asked", "status", "of_own_route"),
    [
        (responds(b"not found"), PLAIN, 502, 502),
        (responds(body_of(WHOLE)[:60]), PLAIN, 502, 502),
        (responds(body_of({**WHOLE, "x": "y" * 1000})[:900]), PLAIN, 502, 200),
        (responds(PAGE, head=PAGE_HEAD), PLAIN, 502, 200),
        (responds(b"busy", head=PAGE_HEAD.replace(b"html", b"plain")), PLAIN, 502, 200),
        (responds(PAGE, head=PAGE_HEAD), STREAM, 502, 200),
        (responds(b"not found"), STREAM, 502, 502),
        *((responds(b"busy", head=OTHER_HEAD % kind), asked, 502, 200) for kind in KINDS for asked in (PLAIN, STREAM)),
        *((responds(body), PLAIN, 502, 200) for body in OTHERS),
        *((responds(body), STREAM, 502, 200 if body[:1] in b"{[" and body else 502) for body in OTHERS),
        (responds(b'{"foo": 1}', head=b"HTTP/1.1 202 Accepted\r\n"), PLAIN, 502, 202),
        (responds(b'{"foo": 1}', head=b"HTTP/1.1 206 Partial Content\r\n"), PLAIN, 502, 206),
        (responds(body_of(WHOLE)[:60], head=HEAD.replace(b"200", b"206")), PLAIN, 502, 206),
        (responds(b"", head=b"HTTP/1.1 205 Reset Content\r\n"), PLAIN, 502, 205),
        (responds(body_of({"foo": "y" * 1000})), PLAIN, 502, 200),
        (responds(body_of({"foo": "y" * 70_000})), PLAIN, 200, 200),
        (responds(body_of({"foo": "y" * 600_000})), PLAIN, 200, 200),
        (responds(b'["' + b"y" * 600_000 + b'"]'), PLAIN, 200, 200),
        *((streams(*parts), STREAM, 502, 200) for parts in FOREIGN),
    ],
)
async def test_what_is_no_answer_is_an_error_of_the_engine(
    tmp_path: Path, script: Script, asked: dict[str, Any], status: int, of_own_route: int
) -> None:
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        answer = await ask(agent, body=body_of(asked))
        assert (answer.status, metered(agent)) == (status, (0, 0, 0, 0))
        assert agent.counted() == {"engine_error": 1}
        (endpoint,) = agent.endpoints.every()
        agent.endpoints.failures.check(endpoint.now() + JUDGED_AFTER_S)
        assert endpoint.ejection.failures == 1
        as_own(agent)
        assert (await ask(agent, body=body_of(asked))).status == of_own_route


@pytest.mark.parametrize(
    ("head", "body", "outcome"),
    [
        (HEAD, b'{"text": "hello"}', "ok"),
        (HEAD, b'{"detail": "busy"}', "engine_error"),
        (HEAD, b"", "engine_error"),
        (PAGE_HEAD.replace(b"html", b"plain"), b"hello", "ok"),
        (PAGE_HEAD.replace(b"html", b"plain"), b"", "ok"),
        (PAGE_HEAD.replace(b"html", b"vtt"), b"WEBVTT\n", "ok"),
        (PAGE_HEAD, PAGE, "engine_error"),
    ],
)
async def test_transcriptions_are_any_text_but_pages(tmp_path: Path, head: bytes, body: bytes, outcome: str) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n' % MODEL.encode()
    kind = "Content-Type: multipart/form-data; boundary=b"
    async with engine(responds(body, head=head)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, kind, body=form, path="/v1/audio/transcriptions")
        assert (answer.status, agent.counted()) == (200 if outcome == "ok" else 502, {outcome: 1})


AUDIO = b"RIFF\x24\x00\xff\x7fWAVE"


@pytest.mark.parametrize(
    ("body", "is_audio"),
    [
        (AUDIO, True),
        (b"{" + AUDIO, True),
        (b"\x00" * 600_000, True),
        *((body, False) for body in (*OTHERS, b"busy", b'{"error": {"message": "x"}}', b'["' + b"x" * 600_000 + b'"]')),
    ],
)
@pytest.mark.parametrize("stated", [b"", b"application/octet-stream", b"audio/wav", b"application/json", b"text/plain"])
async def test_speech_is_no_text(tmp_path: Path, body: bytes, stated: bytes, *, is_audio: bool) -> None:
    spoken = body_of({"model": MODEL, "input": "hello", "voice": "a"})
    head = OTHER_HEAD % (b"Content-Type: %b\r\n" % stated if stated else b"")
    async with engine(responds(body, head=head)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=spoken, path="/v1/audio/speech")
        is_ok = is_audio and stated not in (b"application/json", b"text/plain")
        assert agent.counted() == {"ok" if is_ok else "engine_error": 1}
        if is_ok:
            assert (answer.status, answer.body) == (200, body)
        elif len(body) < MAX_UNDECIDED_BYTES:
            assert answer.status == 502


@pytest.mark.parametrize("parts", [(AUDIO, b"ok", b'{"error": "x"}', bytes(70_000)), (b"RI", b"FF" + AUDIO), ()])
@pytest.mark.parametrize("stated", [b"audio/wav", b"application/octet-stream", b""])
async def test_speech_in_chunks_is_read_until_it_is_no_text(
    tmp_path: Path, parts: Sequence[bytes], stated: bytes
) -> None:
    async def speaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        lines = b"Content-Type: %b\r\n" % stated if stated else b""
        writer.write(OTHER_HEAD % lines + b"Transfer-Encoding: chunked\r\n\r\n")
        writer.write(b"".join(chunk(part) for part in parts) + b"0\r\n\r\n")

    spoken = body_of({"model": MODEL, "input": "hello", "voice": "a", "stream": True})
    async with engine(speaks) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=spoken, path="/v1/audio/speech")
        assert (answer.status, agent.counted()) == ((200, {"ok": 1}) if parts else (502, {"engine_error": 1}))
        assert not parts or answer.body == b"".join(parts)


@pytest.mark.parametrize("stated", [b"application/json", b"text/plain", b"application/x-ndjson"])
@pytest.mark.parametrize("form", ["lines", "whole", "pretty", "text"])
async def test_json_lines_of_any_content_type_are_metered(tmp_path: Path, stated: bytes, form: str) -> None:
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 3}
    records = [{"message": {"content": "a"}, "done": False}] * 3 if form == "lines" else []
    body = b"".join(body_of(each) + b"\n" for each in [*records, end])
    if form == "pretty":
        body = json.dumps(end, indent=2).encode()
    elif form == "text":
        body = b"busy"
    script = responds(body, head=b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % stated)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        agent.config.policy = replace(agent.config.policy, routes=tuple(preset_routes("ollama")))
        answer = await ask(agent, body=body_of(PLAIN), path="/api/chat")
        if form == "text":
            assert (answer.status, agent.counted(), metered(agent)) == (502, {"engine_error": 1}, (0, 0, 0, 0))
            return
        assert answer.body == body
        is_read = form != "pretty" or stated != b"application/x-ndjson"
        assert (agent.counted(), metered(agent)[3]) == ({"ok": 1}, 0 if is_read else 1)
        assert not is_read or metered(agent) == (12, 0, 3, 0)


ROLE = event({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
NO_CHOICE = event({"id": "c", "choices": []})
BEGUN = b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}\n\n'
ANNOUNCED = event({"type": "response.created", "response": {"id": "r"}})


@pytest.mark.parametrize("end", [event(ERROR), b"", None], ids=["error", "end", "broken"])
@pytest.mark.parametrize("parts", [(ROLE,), (NO_CHOICE,), (BEGUN,), (ANNOUNCED,)])
async def test_an_error_after_events_that_only_announce_an_answer_is_retried_elsewhere(
    tmp_path: Path, parts: Sequence[bytes], end: bytes | None
) -> None:
    async def fails(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(chunk(part) for part in parts))
        await writer.drain()
        await asyncio.sleep(0)
        if end is None:
            writer.transport.abort()
        else:
            writer.write((chunk(end) if end else b"") + b"0\r\n\r\n")

    async with (
        engine(fails) as bad,
        engine(streams(ROLE, *WORDS, REPORT, DONE)) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        meter(agent)
        for _ in range(3):
            assert (await ask(agent, body=body_of(ASKED))).body == b"".join([ROLE, *WORDS, REPORT, DONE])
        assert bad.requests
        assert (agent.counted(), metered(agent)[:3]) == ({"ok": 3}, (36, 24, 9))


@pytest.mark.parametrize("path", ["event", "clock"])
async def test_events_that_only_announce_an_answer_are_held_for_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.05)

    async def is_slow(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if path == "event":
            await asyncio.sleep(0.1)
        writer.write(SSE_HEAD + chunk(ROLE))
        await asyncio.Event().wait()

    async with engine(is_slow) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        assert await client.chunk() == ROLE
        client.close()


async def test_the_first_event_is_forwarded_at_once_if_it_has_output(tmp_path: Path) -> None:
    first = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]})
    async with (
        engine(streams(first, ends=False)) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        agent.proxy.clock = lambda: 0.0  # so that nothing is ever held for long
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        assert await client.chunk() == first
        client.close()


async def test_the_table_decides_whether_an_error_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(RULES[Outcome.ENGINE_ERROR], may_retry=False)
    monkeypatch.setitem(RULES, Outcome.ENGINE_ERROR, rules)
    async with (
        engine(responds(body_of(ERROR))) as one,
        engine(responds(body_of(ERROR))) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        assert b"rror" in (await ask(agent, body=body_of(PLAIN))).body
        assert len(one.requests) + len(two.requests) == 1


async def test_the_table_decides_whether_an_error_charges_its_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = replace(RULES[Outcome.ENGINE_ERROR], charges_endpoint=False)
    monkeypatch.setitem(RULES, Outcome.ENGINE_ERROR, rules)
    async with (
        engine(responds(body_of(ERROR))) as one,
        engine(responds(body_of(WHOLE))) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        for _ in range(12):
            await ask(agent, body=body_of(PLAIN))
        assert one.requests
        assert not any(endpoint.ejection.is_ejected for endpoint in agent.endpoints.every())


async def test_a_result_named_error_is_no_error(tmp_path: Path) -> None:
    body = json.dumps({"error": 0.12, "choices": []}).encode()
    async with engine(responds(body)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=body_of(PLAIN))
        assert (answer.status, answer.body) == (200, body)
        await until(lambda: agent.counted() == {"ok": 1})


@pytest.mark.parametrize("sent", [event(INVALID) + DONE, body_of(INVALID), body_of(INVALID) + b"\n\n"])
async def test_an_error_that_the_request_causes_is_the_clients(tmp_path: Path, sent: bytes) -> None:
    async with (
        engine(streams(sent)) as one,
        engine(streams(sent)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        for _ in range(10):
            assert (await ask(agent, body=body_of(ASKED))).body == sent
        assert agent.counted() == {"client_error": 10}
        assert len(one.requests) + len(two.requests) == 10
        assert not any(endpoint.ejection.is_ejected for endpoint in agent.endpoints.every())
        assert agent.tally.report().ended == 0


@pytest.mark.parametrize("last", [event(ERROR), b"event: error\n" + event({"message": "CUDA error"})])
@pytest.mark.parametrize("may_continue", [False, True])
async def test_an_error_after_the_first_event_is_the_engines(
    tmp_path: Path, last: bytes, *, may_continue: bool
) -> None:
    async with engine(streams(*WORDS[:3], last)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        if may_continue:
            agent.continue_streams()
        for _ in range(3):
            body = (await ask(agent, body=body_of(ASKED))).body
            assert (body.count(b"CUDA error"), body.endswith(last)) == (1, not may_continue)
            assert body.startswith(b"".join(WORDS[:3]))
        assert agent.counted() == {"engine_error": 3}
        assert metered(agent)[:3] == (0, 0, 0), "overhead of the fleet, and not the tenant's"
        assert agent.tally.report().failed == 3
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures > 0 or endpoint.ejection.is_ejected


@pytest.mark.parametrize("last", [event(ERROR), b"event: error\n" + event({"message": "CUDA error"})])
async def test_a_client_that_leaves_at_an_error_leaves_its_engine_charged(tmp_path: Path, last: bytes) -> None:
    parts = (*WORDS[:3], last)
    async with engine(streams(*parts, ends=False)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        for number in range(1, 3):
            await leave_after(agent, parts)
            await until(lambda: agent.counted() == {"engine_error": number})  # noqa: B023
        assert (metered(agent)[:3], agent.held()) == ((0, 0, 0), 0)
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures == 2


async def test_a_lone_engine_that_fails_with_status_200_is_502(tmp_path: Path) -> None:
    async with engine(streams(event(ERROR))) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        answer = await ask(agent, body=body_of(ASKED))
        assert (answer.status, code(answer.body)) == (502, "engine_failed")
        assert agent.held() == 0


def with_presets(agent: Agent, *names: str) -> None:
    routes = tuple(route for name in names for route in preset_routes(name))
    agent.config.policy = replace(agent.config.policy, routes=routes)


def aborted(reason: Any, **members: Any) -> dict[str, Any]:
    return {**WHOLE, "choices": [{"index": 0, "message": {"content": "a" * 900}, "finish_reason": reason}], **members}


NATIVE = {"text": "a" * 900, "meta_info": {"finish_reason": {"type": "abort", "message": "bye"}}}
ABORTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *((PLAIN, aborted(reason), "/v1/chat/completions") for reason in ("abort", "cancelled", "error")),
    (
        PLAIN,
        aborted("abort", usage={"prompt_tokens": 12, "completion_tokens": 8, "padding": "p" * 20_000}),
        "/v1/chat/completions",
    ),
    ({"text": "hello"}, NATIVE, f"/generate?model={MODEL}"),
    (
        {"model": MODEL, "prompt": "hello", "stream": False},
        {"response": "a", "done": True, "done_reason": "abort"},
        "/api/generate",
    ),
]


@pytest.mark.parametrize(("asked", "answer", "path"), ABORTS)
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_aborted_whole_answer_is_sent_elsewhere_and_charged(
    tmp_path: Path, asked: dict[str, Any], answer: dict[str, Any], path: str, *, chunked: bool
) -> None:
    text = body_of(answer)

    async def aborts(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if not chunked:
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
            return
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(text[:-30]))
        await writer.drain()
        writer.write(chunk(text[-30:]) + b"0\r\n\r\n")

    whole = text.replace(b"abort", b"stop").replace(b"cancelled", b"stop").replace(b'"error"', b'"stop"')
    async with (
        engine(aborts) as bad,
        engine(responds(whole)) as good,
        running_agent(tmp_path / "1", [bad.address, good.address]) as agent,
    ):
        with_presets(agent, "openai", "sglang", "ollama")
        for _ in range(12):
            received = await ask(agent, body=body_of(asked), path=path)
            assert (received.status, received.body) == (200, whole)
        assert (agent.counted(), agent.held()) == ({"ok": 12}, 0)
        assert 1 <= len(bad.requests) <= 6, "the endpoint is charged, and ejected"
    async with engine(aborts) as gpu, running_agent(tmp_path / "2", [gpu.address]) as agent:
        with_presets(agent, "openai", "sglang", "ollama")
        meter(agent)
        received = await ask(agent, body=body_of(asked), path=path)
        assert (received.status, agent.counted(), agent.held()) == (502, {"engine_error": 1}, 0)
        assert metered(agent)[:3] == (0, 0, 0)


async def test_a_stream_whose_first_output_is_an_abort_is_sent_elsewhere(tmp_path: Path) -> None:
    begin = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    end = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]})
    async with (
        engine(streams(begin, end, DONE)) as bad,
        engine(streams(*WORDS, REPORT, DONE)) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent, body=body_of(ASKED))).body == b"".join((*WORDS, REPORT, DONE))
        assert (agent.counted(), agent.held()) == ({"ok": 12}, 0)
        assert 1 <= len(bad.requests) <= 6


@pytest.mark.parametrize(
    "answer",
    [
        aborted("stop"),
        aborted("length"),
        {
            **aborted("abort"),
            "choices": [
                {"index": number, "message": {"content": "a"}, "finish_reason": reason}
                for number, reason in ((0, "stop"), (1, "abort"))
            ],
        },
    ],
)
async def test_an_answer_that_is_not_wholly_aborted_is_sent_once(tmp_path: Path, answer: dict[str, Any]) -> None:
    several = "abort" in json.dumps(answer)
    asked = {**PLAIN, "n": 2} if several else PLAIN
    text = body_of(answer)
    async with (
        engine(responds(text)) as one,
        engine(responds(text)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        received = await ask(agent, body=body_of(asked))
        assert (received.status, received.body) == (200, text)
        assert (agent.counted(), agent.held()) == ({"engine_cut" if several else "ok": 1}, 0)
        assert len(one.requests) + len(two.requests) == 1


async def test_a_json_text_that_a_route_of_policy_streams_is_forwarded_as_it_arrives(tmp_path: Path) -> None:
    first, rest = b'[{"text": "%b"},' % (b"a" * 600), b'{"text": "b"}]'

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(first))
        await received_first.wait()
        writer.write(chunk(rest) + b"0\r\n\r\n")

    received_first = asyncio.Event()
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        as_own(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(PLAIN)))
        assert (await client.reader.readuntil(first)).startswith(b"HTTP/1.1 200 ")
        received_first.set()
        assert rest in await client.reader.readuntil(b"\r\n0\r\n\r\n")
        client.close()
        await until(lambda: agent.counted() == {"ok": 1})


@pytest.mark.parametrize("named", [{"rid": "a"}, {"request_id": "a"}])
async def test_an_answer_that_its_client_may_have_aborted_is_sent_once(tmp_path: Path, named: dict[str, str]) -> None:
    text = body_of(aborted("abort"))
    async with (
        engine(responds(text)) as one,
        engine(responds(text)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        assert (await ask(agent, body=body_of({**PLAIN, **named}))).body == text
        assert len(one.requests) + len(two.requests) == 1


async def test_an_abort_for_which_sglang_states_no_status_may_be_the_clients(tmp_path: Path) -> None:
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    text = body_of({**NATIVE, "meta_info": {"finish_reason": reason}})
    async with (
        engine(responds(text)) as one,
        engine(responds(text)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        with_presets(agent, "openai", "sglang")
        asked = body_of({"text": "hello", "rid": "a"})
        assert (await ask(agent, body=asked, path=f"/generate?model={MODEL}")).body == text
        assert len(one.requests) + len(two.requests) == 1
        assert (agent.counted(), agent.held()) == ({"engine_cut": 1}, 0)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("status", "outcome"), [(400, "client_error"), (500, "engine_error")])
async def test_an_abort_of_sglang_states_whose_fault_it_is(
    tmp_path: Path, status: int, outcome: str, *, streamed: bool
) -> None:
    reason = {"type": "abort", "message": "Input is too long", "status_code": status, "err_type": "X"}
    answer = {
        "text": "",
        "meta_info": {"id": "a", "finish_reason": reason, "prompt_tokens": 12, "completion_tokens": 0},
    }
    script = streams(event(answer), DONE) if streamed else responds(body_of(answer))
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        with_presets(agent, "sglang")
        meter(agent)
        asked = {"text": "hello", "stream": streamed}
        received = await ask(agent, body=body_of(asked), path=f"/generate?model={MODEL}")
        assert received.status == (200 if status == 400 else 502)
        assert agent.counted() == {outcome: 1}
        (endpoint,) = agent.endpoints.every()
        assert status == 500 or endpoint.ejection.failures == 0


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_engine_that_differs_from_the_one_that_serves_is_charged(tmp_path: Path, status: int) -> None:
    missing = responds(
        b'{"error":"no such model"}', head=b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\n" % status
    )
    good = responds(body_of(WHOLE))
    async with (
        engine(missing) as bad,
        engine(good) as other,
        running_agent(tmp_path, [bad.address, other.address]) as agent,
    ):
        for _ in range(12):
            assert (await ask(agent, body=body_of(PLAIN))).status == 200
        assert agent.counted() == {"ok": 12}
        assert 1 <= len(bad.requests) <= 4
    async with (
        engine(missing) as bad,
        engine(missing) as other,
        running_agent(tmp_path, [bad.address, other.address]) as agent,
    ):
        for _ in range(5):
            assert (await ask(agent, body=body_of(PLAIN))).status == status
        assert agent.counted() == {"client_error": 5}
        assert not any(endpoint.ejection.is_ejected for endpoint in agent.endpoints.every())


@pytest.mark.parametrize("begun", [b'data: {"choi', b'{"id": "c"'], ids=["event", "json"])
async def test_a_response_that_stops_within_its_beginning_stalls(tmp_path: Path, begun: bytes) -> None:
    streamed = begun.startswith(b"data")
    head = SSE_HEAD if streamed else HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head + chunk(begun))
        await asyncio.Event().wait()

    limits = Limits(stall_timeout_s=0.3, idle_linger_s=0.0)
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        answer = await ask(agent, body=body_of(ASKED if streamed else PLAIN))
        assert (answer.status, code(answer.body)) == (504, "engine_timeout")
        assert (agent.counted(), agent.held()) == ({"stalled": 1}, 0)


async def test_a_tool_call_may_be_held_back_for_longer_than_other_output(tmp_path: Path) -> None:
    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(WORDS[1]))
        await goes_on.wait()
        writer.write(chunk(WORDS[-1]) + chunk(REPORT) + chunk(DONE) + b"0\r\n\r\n")

    goes_on, limits = asyncio.Event(), Limits(stall_timeout_s=0.3, idle_linger_s=0.0)
    asked = {**ASKED, "tools": [{"type": "function", "function": {"name": "write_file"}}]}
    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address], limits=limits) as agent:
        calls = asyncio.create_task(ask(agent, body=body_of(asked)))
        await until(lambda: agent.held() == 1)
        assert b'"stream_stalled"' in (await ask(agent, body=body_of(ASKED))).body
        goes_on.set()
        assert (await calls).body == WORDS[1] + WORDS[-1] + REPORT + DONE
        assert (agent.counted(), agent.held()) == ({"stalled": 1, "ok": 1}, 0)


async def test_the_event_that_only_the_agent_asked_for_is_hidden_in_a_body_of_known_length(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    gpu_script = responds(b"".join([*WORDS, REPORT, DONE]), head=head)
    async with engine(gpu_script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            client.send(post(body_of(STREAM)))
            assert (await client.answer()).body == b"".join(WORDS) + DONE
        client.send(post(body_of(ASKED)))
        assert (await client.answer()).body == b"".join([*WORDS, REPORT, DONE])
        client.close()
        assert (metered(agent), agent.counted()) == ((36, 24, 9, 0), {"ok": 3})


async def test_the_beginning_of_a_broken_response_is_in_no_other_response(tmp_path: Path) -> None:
    begun: list[ScriptedEngine] = []

    async def breaks_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        begun.append(e)
        if len(begun) == 1:
            writer.write(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nX-Engine: first\r\n\r\n") + chunk(b": ping\n\n"))
            await writer.drain()
            writer.transport.abort()
            return
        # Longer than comments are held: a comment of the first response would be forwarded meanwhile.
        await asyncio.sleep(2 * HOLD_S)
        if len(begun) == 2:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")
        else:
            await streams(*WORDS, REPORT, DONE)(e, received, writer)

    async with (
        engine(breaks_once) as one,
        engine(breaks_once) as two,
        engine(breaks_once) as three,
        running_agent(tmp_path, [gpu.address for gpu in (one, two, three)]) as agent,
    ):
        meter(agent)
        answer = await ask(agent, body=body_of(ASKED))
        assert (answer.status, answer.body) == (200, b"".join([*WORDS, REPORT, DONE]))
        assert "x-engine" not in answer.headers
        assert (len(begun), agent.counted(), metered(agent)) == (3, {"ok": 1}, (12, 8, 3, 0))
        assert agent.held() == 0


@pytest.mark.parametrize(
    ("head", "ping", "answer"),
    [
        (SSE_HEAD, b": ping\n\n", [*WORDS, REPORT, DONE]),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"\n" * 65, [json.dumps(WHOLE).encode()]),
    ],
    ids=["comment", "blank lines"],
)
async def test_what_keeps_a_connection_open_is_not_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, ping: bytes, answer: list[bytes]
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    go_on = asyncio.Event()

    async def keeps_open(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head + chunk(ping))
        await go_on.wait()
        await asyncio.sleep(0.5)
        writer.write(b"".join(map(chunk, answer)) + b"0\r\n\r\n")

    log = AccessLog(tmp_path / "access.log", 1.0, Random(1))
    async with engine(keeps_open) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        meter(agent)
        for leaves in (True, False):
            client = await RawClient.connect(agent.traffic)
            client.send(post(body_of(ASKED)))
            await client.head()
            assert await client.chunk() == ping
            if leaves:
                client.close()
                await until(lambda: agent.counted() == {"client_left": 1})
            else:
                go_on.set()
                while await client.chunk():
                    pass
                client.close()
    log.close()
    left, whole = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    assert "ttft_ms" not in left
    assert whole["ttft_ms"] > 500.0
    assert (whole["input_tokens"], whole["output_tokens"]) == (12, 3)


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize(
    "then",
    [None, b"0\r\n\r\n", chunk(event(ERROR)), chunk(event(BUSY)), b"!"],
    ids=["broken", "end", "error", "busy", "framing"],
)
async def test_the_answer_of_another_engine_follows_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: bytes | None, continues: bool
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    forwarded, seen = asyncio.Event(), []

    async def pings(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        seen.append(e)
        if len(seen) > 1:
            await streams(ROLE, *WORDS, REPORT, DONE)(e, received, writer)
            return
        writer.write(SSE_HEAD + chunk(b": ping\n\n"))
        await forwarded.wait()
        if then is None:
            writer.transport.abort()
        else:
            writer.write(then)

    async with (
        engine(pings) as one,
        engine(pings) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        if continues:
            agent.continue_streams()
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        assert (await client.head())[0] == 200
        assert await client.chunk() == b": ping\n\n"
        forwarded.set()
        received = b""
        while part := await client.chunk():
            received += part
        client.close()
        assert received == b"".join([ROLE, *WORDS, REPORT, DONE])
        await until(lambda: agent.counted() == {"ok": 1})
        assert (metered(agent), len(seen), agent.held()) == ((12, 8, 3, 0), 2, 0)
        assert agent.continued() == {}


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("last", [b"", b": ping\n\n"], ids=["status", "no event"])
async def test_comments_are_followed_by_an_error_if_no_engine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bytes, continues: bool
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    forwarded = asyncio.Event()

    async def pings(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if forwarded.is_set():
            bad = b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}"
            writer.write(SSE_HEAD + chunk(last) + b"0\r\n\r\n" if last else bad)
            return
        writer.write(SSE_HEAD + chunk(b": ping\n\n"))
        await forwarded.wait()
        writer.transport.abort()

    async with (
        engine(pings) as one,
        engine(pings) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        if continues:
            agent.continue_streams()
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        assert await client.chunk() == b": ping\n\n"
        forwarded.set()
        if last:
            assert await client.chunk() == last
        error = await client.chunk()
        assert b'"engine_failed"' in error
        assert b"continued" not in error
        assert await client.chunk() == b""
        client.close()
        await until(lambda: agent.counted() == ({"engine_error": 1} if last else {"engine_cut": 1}))
        # A status 400 may be because of the agent's flag.
        expected = 3 if continues and not last else 2
        assert (len(one.requests) + len(two.requests), agent.held(), agent.continued()) == (expected, 0, {})


async def test_a_stream_of_comments_alone_states_that_the_agent_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    async with (
        engine(streams(b": ping\n\n", ends=False)) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        agent.continue_streams()
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        assert await client.chunk() == b": ping\n\n"
        (exchange,) = agent.proxy.active
        exchange.shut_down()
        assert b'"message":"the agent stops","type":"server_error","param":null,"code":"shutting_down"' in (
            await client.chunk()
        )
        client.close()
        assert (agent.counted(), agent.held(), agent.continued()) == ({"shutdown": 1}, 0, {})


async def test_another_region_answers_after_the_comments_of_one_that_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.answer_intake.HOLD_S", 0.0)
    forwarded = asyncio.Event()

    async def pings(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b": ping\n\n"))
        await forwarded.wait()
        writer.transport.abort()

    async with (
        engine(pings) as bad,
        engine(streams(ROLE, *WORDS, REPORT, DONE)) as good,
        running_agent(tmp_path / "es", [bad.address], region="eu-es") as es,
        running_agent(tmp_path / "us", [good.address], region="us-east") as us,
        running_agent(tmp_path / "de", [], peers={"eu-es": es.peer}) as agent,
    ):
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        assert await client.chunk() == b": ping\n\n"
        agent.peers.addresses["us-east"] = us.peer
        agent.peers.states["us-east"] = RegionState.HEALTHY
        forwarded.set()
        received = b""
        while part := await client.chunk():
            received += part
        client.close()
        assert received == b"".join([ROLE, *WORDS, REPORT, DONE])
        await until(lambda: agent.counted() == {"ok": 1})
        await until(lambda: es.held() == us.held() == 0)
        assert (es.counted(), us.counted()) == ({"engine_cut": 1}, {"ok": 1})


async def test_a_fallback_model_that_continues_streams_hides_what_the_client_did_not_ask_for(tmp_path: Path) -> None:
    seen: list[ScriptedEngine] = []

    async def busy_once(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        seen.append(e)
        if len(seen) == 1:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")
        else:
            await streams(*WORDS, REPORT, DONE)(e, received, writer)

    async with (
        engine(busy_once) as one,
        engine(busy_once) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        agent.continue_streams()
        meter(agent)
        known = agent.config.policy.models
        former = replace(known[MODEL], name="former", continue_streams=False, fallback=MODEL)
        agent.config.policy = replace(agent.config.policy, models={**known, "former": former})
        answer = await ask(agent, body=body_of({**STREAM, "model": "former"}))
        assert (answer.status, answer.body) == (200, b"".join(WORDS) + DONE)
        assert (len(seen), metered(agent), agent.counted()) == (2, (12, 8, 3, 0), {"ok": 1})


THOUGHT = event({"id": "c", "choices": [{"index": 0, "delta": {"reasoning": "First,"}, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [((event(INVALID), DONE), "client_error"), ((*WORDS[:2], THOUGHT, event(ERROR)), "engine_error")],
    ids=["invalid", "failed"],
)
async def test_an_error_in_a_stream_that_is_not_continued_is_no_success(
    tmp_path: Path, parts: Sequence[bytes], outcome: str
) -> None:
    async with engine(streams(*parts)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED))).body == b"".join(parts)
        assert agent.counted() == {outcome: 1}
        assert metered(agent)[:3] == (0, 0, 0) or outcome == "client_error"
        (endpoint,) = agent.endpoints.every()
        assert (endpoint.ejection.failures > 0) == (outcome == "engine_error")


@pytest.mark.parametrize("number", [10**30, -5, "7", None, 1.5])
async def test_impossible_usage_of_a_continued_stream_is_not_metered(tmp_path: Path, number: Any) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": number}
    parts = [event({**json.loads(word[6:]), "usage": usage}) for word in WORDS[:3]]
    async with engine(streams(*parts, ends=False)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.continue_streams()
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        client.send(post(body_of(ASKED)))
        await client.head()
        await client.chunk()
        client.close()
        await until(lambda: agent.counted() == {"client_left": 1})
        assert 0 <= metered(agent)[2] <= 3


async def test_a_response_without_content_uses_no_tokens(tmp_path: Path) -> None:
    async def empty(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with engine(empty) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        as_own(agent)
        assert (await ask(agent, body=body_of(PLAIN))).status == 204
        assert (metered(agent), agent.counted()) == ((0, 0, 0, 0), {"ok": 1})


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/messages/count_tokens", {"input_tokens": 84}),
        ("/tokenize", {"count": 2, "tokens": [1, 2]}),
        (f"/v2/models/{MODEL}", None),
    ],
)
async def test_a_request_that_only_reads_or_counts_tokens_uses_none(tmp_path: Path, path: str, answer: Any) -> None:
    gives = responds(json.dumps(answer or {"name": MODEL}).encode())
    async with engine(gives) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        routes = tuple(route for name in ("anthropic", "kserve", "vllm") for route in preset_routes(name))
        agent.config.policy = replace(agent.config.policy, routes=routes)
        async with httpx.AsyncClient(base_url=f"http://{agent.traffic}") as client:
            response = await (client.post(path, json=PLAIN) if answer else client.get(path))
        assert response.status_code == 200
        await until(lambda: agent.counted() == {"ok": 1})
        assert metered(agent) == (0, 0, 0, 0)


async def test_an_empty_body_uses_no_tokens_and_an_empty_stream_is_an_error(tmp_path: Path) -> None:
    async with engine(responds(b"")) as gpu, running_agent(tmp_path / "whole", [gpu.address]) as agent:
        meter(agent)
        as_own(agent)
        assert (await ask(agent, body=body_of(PLAIN))).status == 200
        assert (metered(agent), agent.counted()) == ((0, 0, 0, 0), {"ok": 1})
    for parts in ((), (b": ping\n\n",)):
        async with engine(streams(*parts)) as gpu, running_agent(tmp_path / "stream", [gpu.address]) as agent:
            answer = await ask(agent, body=body_of(ASKED))
            assert (answer.status, code(answer.body)) == (502, "engine_failed")


def closes_after(body: bytes, media_type: bytes) -> Script:
    """An engine whose close ends the response, as that of servers of HTTP/1.0."""

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: %b\r\n\r\n%b" % (media_type, body))
        await writer.drain()
        writer.close()

    return script


@pytest.mark.parametrize("asked", [PLAIN, ASKED])
async def test_an_answer_that_a_close_ends_is_whole_or_cut(tmp_path: Path, asked: dict[str, Any]) -> None:
    text, media_type = json.dumps({**WHOLE, "fingerprint": "f" * MAX_UNDECIDED_BYTES}).encode(), b"application/json"
    half = text[:-9]
    if "stream" in asked:
        text, media_type = b"".join((*WORDS, REPORT)).rstrip(), b"text/event-stream"
        half = b"".join(WORDS[:-1])
    async with engine(closes_after(text, media_type)) as gpu, running_agent(tmp_path / "1", [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=body_of(asked))).body == text
        assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})
    async with engine(closes_after(half, media_type)) as gpu, running_agent(tmp_path / "2", [gpu.address]) as agent:
        if "stream" in asked:
            body = (await ask(agent, body=body_of(asked))).body
            assert (body.startswith(half), b"engine_failed" in body) == (True, True)
        else:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ask(agent, body=body_of(asked))
        await until(lambda: agent.counted() == {"engine_cut": 1})
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures > 0


async def test_a_broken_stream_whose_chunks_a_proxy_ends_in_order_is_cut(tmp_path: Path) -> None:
    """nginx receives responses by HTTP/1.0 unless it is configured otherwise, and cannot tell a broken one."""
    half = WORDS[:-1]
    bare = tuple(part.replace(b', "finish_reason": null', b"") for part in half)
    for number, parts in enumerate((half, bare, (*half, DONE), (*half, REPORT))):
        async with engine(streams(*parts)) as gpu, running_agent(tmp_path / f"{number}", [gpu.address]) as agent:
            answer = await ask(agent, body=body_of(ASKED))
            assert (b"engine_failed" in answer.body) == (parts is half)
            assert agent.counted() == {"engine_cut" if parts is half else "ok": 1}
            (endpoint,) = agent.endpoints.every()
            assert (endpoint.ejection.failures > 0) == (parts is half)


async def test_a_stream_that_a_close_cuts_within_its_first_event_is_sent_elsewhere(tmp_path: Path) -> None:
    async with (
        engine(closes_after(WORDS[0][:-9], b"text/event-stream")) as bad,
        engine(streams(*WORDS, DONE)) as good,
        running_agent(tmp_path, [bad.address, good.address]) as agent,
    ):
        while not bad.requests:
            assert (await ask(agent, body=body_of(STREAM))).body == b"".join(WORDS) + DONE
        assert set(agent.counted()) == {"ok"}


@pytest.mark.parametrize("count", [1, 2], ids=["continued", "not continuable"])
async def test_a_stream_that_a_close_cuts_is_continued_if_it_can_be(tmp_path: Path, count: int) -> None:
    cut_once = in_turn(closes_after(b"".join(WORDS[:-2]), b"text/event-stream"), streams(*WORDS[-2:], DONE))

    async with (
        engine(cut_once) as one,
        engine(cut_once) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        agent.continue_streams()
        body = (await ask(agent, body=body_of({**STREAM, "n": count}))).body
        assert (b"engine_failed" in body, body.endswith(DONE)) == (count == 2, count == 1)
        assert agent.counted() == {"ok" if count == 1 else "engine_cut": 1}
        assert sum(endpoint.ejection.failures for endpoint in agent.endpoints.every()) > 0


@pytest.mark.parametrize("last", [(), (event({"id": "c", "choices": [], "usage": USAGE}),)], ids=["none", "reported"])
async def test_the_output_of_a_continued_stream_is_counted_where_its_engines_report_none(
    tmp_path: Path, last: Sequence[bytes]
) -> None:
    stated = {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens": 1}
    first = event({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": stated})
    begun = closes_after(b"".join([first, *WORDS[1:-2]]), b"text/event-stream")
    cut_once = in_turn(begun, streams(*WORDS[-2:], *last, DONE))

    async with (
        engine(cut_once) as one,
        engine(cut_once) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        agent.continue_streams()
        meter(agent)
        assert (await ask(agent, body=body_of(ASKED))).body.endswith(DONE)
        inputs, _, outputs, estimated = metered(agent)
        assert (agent.counted(), inputs, estimated) == ({"ok": 1}, 12, 0 if last else 1)
        assert outputs > 3 if last else outputs in (3, 4)


async def test_a_client_of_http_1_0_receives_a_reset_when_a_close_cuts_its_stream(tmp_path: Path) -> None:
    request = post(body_of(STREAM)).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with (
        engine(closes_after(b"".join(WORDS[:-1]), b"text/event-stream")) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        client = await RawClient.connect(agent.traffic)
        client.send(request)
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


@pytest.mark.parametrize("parts", [(*WORDS, REPORT, DONE), (*WORDS, REPORT)])
async def test_a_stream_that_breaks_off_after_its_end_is_whole(tmp_path: Path, parts: Sequence[bytes]) -> None:
    async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, parts)))
        await writer.drain()
        writer.close()

    async with engine(breaks) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        answer = await ask(agent, body=body_of(ASKED))
        if DONE in parts:
            assert answer.body == b"".join(parts)
            assert (metered(agent), agent.counted()) == ((12, 8, 3, 0), {"ok": 1})
        else:
            assert (b"engine_failed" in answer.body, agent.counted()) == (True, {"engine_cut": 1})


LINES_HEAD = SSE_HEAD.replace(b"text/event-stream", b"application/x-ndjson")
LINE = b'{"response":"a","done":false}\n'
TOKEN = {"token": {"id": 1, "text": "a"}, "generated_text": None, "details": None}
CHAT = ("/v1/chat/completions", ASKED, SSE_HEAD)
OLLAMA = ("/api/generate", {"model": MODEL, "prompt": "x"}, LINES_HEAD)
TGI = ("/generate_stream", {"inputs": "x"}, SSE_HEAD)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(
    ("api", "parts", "outcome"),
    [
        (CHAT, (*WORDS, REPORT, DONE), "ok"),
        (CHAT, (*WORDS[:3], event(ERROR)), "engine_error"),
        (CHAT, (*WORDS[:3], event(INVALID)), "client_error"),
        (OLLAMA, (LINE, LINE, b'{"error":"x"}\n'), "engine_error"),
        (OLLAMA, (LINE, LINE, b'{"response":"","done":true}\n'), "ok"),
        (TGI, (event(TOKEN), event(TOKEN | {"generated_text": "aa"})), "ok"),
        (TGI, (event(TOKEN), event({"error": "x", "error_type": "validation"})), "client_error"),
        (TGI, (event(TOKEN), event({"error": "x", "error_type": "generation"})), "engine_error"),
    ],
)
async def test_a_stream_that_breaks_off_after_its_end_or_an_error_is_judged_by_these(
    tmp_path: Path, api: tuple[str, dict[str, Any], bytes], parts: Sequence[bytes], outcome: str, *, resets: bool
) -> None:
    path, asked, head = api
    received = asyncio.Event()

    async def breaks(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"".join(map(chunk, parts)))
        await received.wait()
        writer.transport.abort() if resets else writer.close()

    async with engine(breaks) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        routes = [route for name in ("openai", "ollama", "tgi") for route in preset_routes(name)]
        agent.config.policy = replace(agent.config.policy, routes=tuple(routes))
        (endpoint,) = agent.endpoints.every()
        for number in range(1, 4):
            received.clear()
            client = await RawClient.connect(agent.traffic)
            client.send(post(body_of(asked), f"X-Model: {MODEL}", path=path))
            await client.head()
            body = b""
            while not body.endswith(parts[-1]):
                body += await client.chunk()
            received.set()
            assert await client.chunk() == b"", "no other error follows"
            assert body == b"".join(parts)
            await until(lambda: agent.counted() == {outcome: number})  # noqa: B023
        assert (endpoint.ejection.failures > 0 or endpoint.ejection.is_ejected) is (outcome == "engine_error")
        assert agent.held() == 0


async def test_statuses_in_any_sequence_leave_one_account_for_each_request(tmp_path: Path) -> None:
    statuses = [404, 400, 422, 429, 503, 529, 200, 422, 503, 400, 529, 404, 429, 200]
    turns = iter(statuses * 40)

    async def varies(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        status = next(turns)
        if status == 200:
            await streams(*WORDS, REPORT, DONE)(e, received, writer)
        else:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % status)

    async with (
        engine(varies) as one,
        engine(varies) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        meter(agent)
        client = await RawClient.connect(agent.traffic)
        successes = 0
        for _ in range(40):
            client.send(post(body_of(STREAM)))
            answer = await client.answer()
            successes += answer.status == 200
            assert answer.status != 200 or b'"usage"' not in answer.body
        client.close()
        counted = agent.counted()
        assert (sum(counted.values()), counted.get("ok", 0)) == (40, successes)
        assert metered(agent) == (12 * successes, 8 * successes, 3 * successes, 0)
        assert (agent.held(), agent.waiting()) == (0, 0)


def test_the_held_beginning_of_a_response_is_bounded() -> None:
    for part in (b": ping\n\n" * 100, b"\n\n" * 400, b"id: 1\n\n" * 100):
        intake = AnswerIntake(AnswerParser(AnswerFormat(None), EVENTS, b"", False))
        while not intake.begin(part):
            assert len(intake.held) <= MAX_UNDECIDED_BYTES
    endless = gzipped(b"")[:3] + b"\x08" + bytes(6)  # a file name follows
    intake = AnswerIntake(AnswerParser(AnswerFormat(None), JSON, b"gzip", False))
    while not intake.begin(endless):
        assert len(intake.held) <= MAX_UNDECIDED_BYTES
        endless = b"x" * 1000


FAILED = {"type": "response.failed", "response": {"id": "r", "error": {"code": "server_error", "message": "x"}}}
CREATED = {"type": "response.created", "response": {"id": "resp_1", "usage": None, "error": None}}


@pytest.mark.parametrize("named", [False, True])
async def test_errors_of_routes_that_create_objects(tmp_path: Path, named: bool) -> None:
    failed = b"event: error\ndata: broken\n\n" if named else event(FAILED)
    usage = {"input_tokens": 12, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}
    completed = event({"type": "response.completed", "response": {"id": "resp_1", "usage": usage}})
    request = body_of({"model": MODEL, "input": "hello", "stream": True})
    async with (
        engine(streams(failed)) as bad,
        engine(streams(event(CREATED), completed)) as other,
        running_agent(tmp_path, [bad.address, other.address]) as agent,
    ):
        meter(agent)
        for _ in range(8):
            assert (await ask(agent, body=request, path="/v1/responses")).body == event(CREATED) + completed
        assert (agent.counted(), metered(agent)) == ({"ok": 8}, (96, 64, 24, 0))
        assert bad.requests
    begun = event(CREATED), event({"type": "response.output_text.delta", "delta": "a"})
    async with engine(streams(*begun, failed)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        meter(agent)
        assert (await ask(agent, body=request, path="/v1/responses")).body == b"".join(begun) + failed
        assert (agent.counted(), metered(agent)[:3]) == ({"engine_error": 1}, (0, 0, 0))
        assert agent.held() == 0


async def test_who_reads_a_response_that_failed_charges_no_endpoint(tmp_path: Path) -> None:
    created = {"id": "resp_0123456789abcdef", "object": "response", "status": "queued", "error": None, "output": []}
    failed = {**created, "status": "failed", "error": {"code": "server_error", "message": "m"}}

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        body = body_of(created if received.head.startswith(b"POST /v1/responses ") else failed)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async with engine(script) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        request = body_of({"model": MODEL, "input": "hello", "background": True})
        assert (await ask(agent, body=request, path="/v1/responses")).status == 200
        for method, path in (("GET", ""), ("GET", ""), ("POST", "/cancel")):
            client = await RawClient.connect(agent.traffic)
            line = f"{method} /v1/responses/{created['id']}{path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
            client.send(line.encode())
            assert (await client.answer()).body == body_of(failed)
            client.close()
        assert agent.counted() == {"ok": 4}
        (endpoint,) = agent.endpoints.every()
        assert endpoint.ejection.failures == 0


async def test_an_error_of_a_route_that_is_not_repeatable_reaches_the_client(tmp_path: Path) -> None:
    text = json.dumps(ERROR).encode()
    async with (
        engine(responds(text)) as one,
        engine(responds(text)) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        meter(agent)
        routes = agent.config.policy.routes
        once = tuple(replace(route, repeatable=False) for route in routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        assert (await ask(agent, body=body_of(PLAIN))).body == text
        assert len(one.requests) + len(two.requests) == 1
        assert (agent.counted(), metered(agent)[:3]) == ({"engine_error": 1}, (0, 0, 0))


async def test_a_request_of_a_route_that_is_not_repeatable_is_not_sent_again_after_a_cut(tmp_path: Path) -> None:
    async def breaks(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with (
        engine(breaks) as one,
        engine(breaks) as two,
        running_agent(tmp_path, [one.address, two.address]) as agent,
    ):
        once = tuple(replace(route, repeatable=False) for route in agent.config.policy.routes)
        agent.config.policy = replace(agent.config.policy, routes=once)
        answer = await ask(agent, body=body_of(PLAIN))
        assert (answer.status, code(answer.body)) == (502, "engine_failed")
        assert len(one.requests) + len(two.requests) == 1
        assert agent.held() == 0


async def test_the_sizes_of_answered_requests_are_measured_for_the_planner(tmp_path: Path) -> None:
    async with (
        engine(responds(b'{"choices": ["%b"]}' % (b"x" * 4982))) as gpu,
        running_agent(tmp_path, [gpu.address]) as agent,
    ):
        body = body_of(PLAIN)
        for _ in range(2):
            assert (await ask(agent, body=body)).status == 200
        await ask(agent, body=b"{")
        await until(lambda: agent.tally.message_bytes.report() != ())
        (found,) = agent.tally.message_bytes.report()
        assert (found.model, found.requests, found.request_bytes) == (MODEL, 2, len(body))
        assert 5000.0 < found.response_bytes < 5400.0, "with the head"
