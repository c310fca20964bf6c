"""One request of a client on real sockets: its bytes, redirects, and the outcome of each response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

import msgspec
import pytest

from lab.replay.client import Client, Patience
from lab.replay.connection_pool import BadUrl
from lab.replay.entry import Entry
from lab.replay.outcome import Outcome, OutcomeKind, TryResult
from lab.replay.replay_workload import ImageSize, PlannedRequest
from lab.traces.trace import TraceRequest
from tests.support.on_uvloop import on_uvloop
from tests.support.scripted_entry import DONE, Asked, entry, unreachable_port
from tests.support.wait import until


def planned(number: int = 1, hang_up_after_tokens: int | None = None) -> PlannedRequest:
    lengths = TraceRequest(0.0, 100, 8)
    return PlannedRequest(
        f"r-{number}", 0.0, "site", "198.18.1.1", "t", "key", "m", lengths, ("a",), hang_up_after_tokens
    )


class Clock:
    """The client's clock, whose reads show when the client has recorded the first byte and the first token."""

    def __init__(self) -> None:
        self._began_s = monotonic()
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return monotonic() - self._began_s

    async def is_read(self, times: int) -> None:
        """Return once the clock has been read that many times."""
        await until(lambda: self.readings >= times)


async def ask(
    entries: Sequence[Entry],
    patience: Patience | None = None,
    requests: Sequence[PlannedRequest] = (planned(),),
    clock: Clock | None = None,
) -> list[Outcome]:
    """The outcomes of requests sent one after the other."""
    client = Client({"site": entries}, patience or Patience(), clock or Clock())
    try:
        return [await client.perform(request) for request in requests]
    finally:
        await client.close()


async def answer_well(asked: Asked) -> None:
    asked.stream(8, x_penstock_region="eu-de", x_penstock_endpoint="gpu-1")


async def never_end(asked: Asked) -> None:
    asked.open_stream(x_penstock_region="a")
    while True:
        asked.tokens(2)
        await asyncio.sleep(0.01)


async def reset_at_once(asked: Asked) -> None:
    asked.reset()


def results(outcome: Outcome) -> list[tuple[str, TryResult, int]]:
    return [(attempt.region, attempt.result, attempt.status) for attempt in outcome.tries]


@on_uvloop
async def test_a_response_is_recorded_with_times_tokens_and_server() -> None:
    clock = Clock()

    async def in_two_parts(asked: Asked) -> None:
        sent = clock.readings
        asked.open_stream(x_penstock_region="eu-de", x_penstock_endpoint="gpu-1")
        asked.piece(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
        await clock.is_read(sent + 1)
        await asyncio.sleep(0.05)
        asked.tokens(3)
        await clock.is_read(sent + 2)
        await asyncio.sleep(0.1)
        asked.tokens(5)
        asked.piece(b'data: {"choices":[],"usage":{"completion_tokens":11}}\n\n' + DONE)
        asked.end_stream()

    async with entry(in_two_parts) as near:
        (outcome,) = await ask([near.at("a")], clock=clock)
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.OK, 200, "")
    assert (outcome.region, outcome.endpoint, outcome.tokens) == ("eu-de", "gpu-1", 11)
    assert results(outcome) == [("a", TryResult.ANSWERED, 200)]
    assert outcome.sent_s is not None
    assert outcome.first_token_s is not None
    assert 0 <= outcome.started_s <= outcome.sent_s <= outcome.first_token_s - 0.045
    assert outcome.first_token_s <= outcome.end_s - 0.095
    (asked,) = near.asked
    assert asked.headers["x-request-id"] == "r-1"
    assert asked.headers["x-forwarded-for"] == "198.18.1.1"
    assert asked.headers["authorization"] == "Bearer key"
    assert asked.headers["x-lab-residency"] == "a"


@on_uvloop
async def test_connections_are_kept_for_the_next_request() -> None:
    async with entry(answer_well) as near:
        outcomes = await ask([near.at("a")], requests=[planned(1), planned(2), planned(3)])
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.OK] * 3
    assert [asked.connection for asked in near.asked] == [1, 1, 1]


@on_uvloop
async def test_a_closed_keep_alive_connection_is_replaced_at_the_same_entry() -> None:
    both_asked = asyncio.Event()

    async def die_on_kept_connections_at_the_third(asked: Asked) -> None:
        if asked.headers["x-request-id"] == "r-3" and asked.connection <= 2:
            asked.reset()
            return
        if len(near.asked) == 2:
            both_asked.set()
        await both_asked.wait()
        await answer_well(asked)

    async with entry(die_on_kept_connections_at_the_third) as near, entry(answer_well) as far:
        client = Client({"site": [near.at("a"), far.at("b")]}, Patience(), lambda: 0.0)
        await asyncio.gather(client.perform(planned(1)), client.perform(planned(2)))
        third = await client.perform(planned(3))
        await client.close()
    assert results(third) == [("a", TryResult.ANSWERED, 200)]
    assert near.asked[2].connection in (1, 2)
    assert near.asked[3].connection == 3
    assert far.asked == []


@on_uvloop
async def test_refused_then_reset_then_served_with_the_same_request_id() -> None:
    with unreachable_port() as held:
        gone = Entry("a", f"http://127.0.0.1:{held.getsockname()[1]}")
        async with entry(reset_at_once) as resetting, entry(answer_well) as good:
            (outcome,) = await ask([gone, resetting.at("b"), good.at("c")])
    assert outcome.kind is OutcomeKind.OK
    assert results(outcome) == [
        ("a", TryResult.UNREACHABLE, 0),
        ("b", TryResult.BROKEN, 0),
        ("c", TryResult.ANSWERED, 200),
    ]
    assert resetting.asked[0].headers["x-request-id"] == good.asked[0].headers["x-request-id"] == "r-1"
    assert outcome.tries[0].at_s <= outcome.tries[0].ended_s <= outcome.tries[1].at_s <= outcome.tries[2].at_s


@on_uvloop
async def test_a_close_without_a_response_is_retried_at_another_entry() -> None:
    async def close(asked: Asked) -> None:
        asked.writer.close()

    async with entry(close) as closing, entry(answer_well) as good:
        (outcome,) = await ask([closing.at("a"), good.at("b")])
    assert results(outcome) == [("a", TryResult.BROKEN, 0), ("b", TryResult.ANSWERED, 200)]


@on_uvloop
async def test_each_entry_is_tried_once_then_it_has_failed() -> None:
    async with entry(reset_at_once) as near, entry(reset_at_once) as far:
        (outcome,) = await ask([near.at("a"), far.at("b")])
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.FAILED, 0, "reset")
    assert results(outcome) == [("a", TryResult.BROKEN, 0), ("b", TryResult.BROKEN, 0)]
    assert (len(near.asked), len(far.asked)) == (1, 1)


@pytest.mark.parametrize("how", ["after the head", "after a token", "without [DONE]", "with an error event"])
@on_uvloop
async def test_a_started_response_is_never_retried(how: str) -> None:
    clock = Clock()

    async def start_and_stop(asked: Asked) -> None:
        sent = clock.readings
        asked.open_stream(x_penstock_region="a")
        if how != "after the head":
            asked.tokens(2)
        if how == "with an error event":
            asked.piece(b'data: {"error": {"message": "gone", "type": "server_error", "code": "engine_failed"}}\n\n')
        if how in ("without [DONE]", "with an error event"):
            asked.end_stream()
            return
        # A reset discards bytes that the client has not read yet.
        await clock.is_read(sent + (1 if how == "after the head" else 2))
        asked.reset()

    async with entry(start_and_stop) as near, entry(answer_well) as far:
        (outcome,) = await ask([near.at("a"), far.at("b")], clock=clock)
    code = {"without [DONE]": "the stream ended without [DONE]", "with an error event": "engine_failed"}.get(
        how, "reset"
    )
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.FAILED, 200, code)
    assert results(outcome) == [("a", TryResult.ANSWERED, 200)]
    assert outcome.tokens == (0 if how == "after the head" else 2)
    assert far.asked == []


@on_uvloop
async def test_a_misdirected_request_follows_the_redirect_only() -> None:
    async def send_away(asked: Asked) -> None:
        body = b'{"error": {"message": "no", "code": "misdirected"}}'
        asked.answer(421, body, x_penstock_regions="c, b,unknown")

    async with entry(send_away) as a, entry(answer_well) as b, entry(reset_at_once) as c, entry(answer_well) as d:
        (outcome,) = await ask([a.at("a"), d.at("d"), b.at("b"), c.at("c")])
    assert outcome.kind is OutcomeKind.OK
    assert results(outcome) == [
        ("a", TryResult.REDIRECTED, 421),
        ("c", TryResult.BROKEN, 0),
        ("b", TryResult.ANSWERED, 200),
    ]
    assert d.asked == []


@on_uvloop
async def test_a_misdirected_request_without_another_entry_is_refused() -> None:
    async def send_away(asked: Asked) -> None:
        asked.answer(421, b'{"error": {"code": "misdirected"}}', x_penstock_regions="x")

    async with entry(send_away) as a, entry(answer_well) as b:
        (outcome,) = await ask([a.at("a"), b.at("b")])
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.REFUSED, 421, "misdirected")
    assert b.asked == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (429, b'{"error": {"code": "saturated"}}', OutcomeKind.REFUSED, "saturated"),
        (451, b'{"error": {"code": "no_permitted_region"}}', OutcomeKind.REFUSED, "no_permitted_region"),
        (401, b"", OutcomeKind.REFUSED, "http_401"),
        (503, b'{"error": {"code": "none_ready"}}', OutcomeKind.REFUSED, "none_ready"),
        (503, b'{"error": {"code": 503}}', OutcomeKind.FAILED, "http_503"),
        (503, b"<html>", OutcomeKind.FAILED, "http_503"),
        (502, b'{"error": {"code": "engine_failed"}}', OutcomeKind.FAILED, "engine_failed"),
        (500, b"\xff" * 200_000, OutcomeKind.FAILED, "http_500"),
    ],
)
@on_uvloop
async def test_answers_other_than_200_are_final(status: int, body: bytes, kind: OutcomeKind, code: str) -> None:
    async def refuse(asked: Asked) -> None:
        asked.answer(status, body, retry_after="0")

    async with entry(refuse) as near, entry(answer_well) as far:
        (outcome,) = await ask([near.at("a"), far.at("b")])
    assert (outcome.kind, outcome.status, outcome.code) == (kind, status, code)
    assert far.asked == []


@on_uvloop
async def test_a_retry_after_within_patience_is_honoured_once() -> None:
    async def busy(asked: Asked) -> None:
        asked.answer(429, b'{"error": {"code": "saturated"}}', retry_after="0.05")

    async def busy_at_first(asked: Asked) -> None:
        await (busy(asked) if len(near.asked) == 1 else answer_well(asked))

    for patience_s, script, kind, tries in [
        (1.0, busy_at_first, OutcomeKind.OK, [TryResult.ASKED_TO_WAIT, TryResult.ANSWERED]),
        (1.0, busy, OutcomeKind.REFUSED, [TryResult.ASKED_TO_WAIT, TryResult.ANSWERED]),
        (0.01, busy_at_first, OutcomeKind.REFUSED, [TryResult.ANSWERED]),
    ]:
        async with entry(script) as near:
            (outcome,) = await ask([near.at("a")], Patience(retry_after_s=patience_s))
        assert outcome.kind is kind
        assert [done.result for done in outcome.tries] == tries


@on_uvloop
async def test_a_silent_entry_is_left_for_the_next() -> None:
    async def stay_silent(asked: Asked) -> None:
        await asyncio.Event().wait()

    async with entry(stay_silent) as silent, entry(answer_well) as good:
        (outcome,) = await ask([silent.at("a"), good.at("b")], Patience(first_byte_s=1.0))
        async with asyncio.timeout(60):
            await silent.left.wait()
    assert results(outcome) == [("a", TryResult.SILENT, 0), ("b", TryResult.ANSWERED, 200)]


@on_uvloop
async def test_the_total_timeout_ends_a_stream_that_never_ends() -> None:
    async with entry(never_end) as near:
        (outcome,) = await ask([near.at("a")], Patience(whole_s=1.5))
        async with asyncio.timeout(60):
            await near.left.wait()
    assert (outcome.kind, outcome.status, outcome.code, outcome.region) == (OutcomeKind.FAILED, 200, "timeout", "a")
    assert outcome.tokens > 0
    assert results(outcome) == [("a", TryResult.ANSWERED, 200)]


@on_uvloop
async def test_a_disconnect_counts_as_cancelled_and_reaches_the_server() -> None:
    async with entry(never_end) as near:
        (outcome,) = await ask([near.at("a")], requests=[planned(hang_up_after_tokens=5)])
        async with asyncio.timeout(60):
            await near.left.wait()
    assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.CANCELLED, 200, "")
    assert outcome.tokens == 5


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n200000\r\ndata: " + b"x" * 0x200000,
    ],
)
@on_uvloop
async def test_a_malformed_response_is_a_failure_with_a_reason(said: bytes) -> None:
    async def respond(asked: Asked) -> None:
        asked.send(said)
        await asyncio.Event().wait()

    async with entry(respond) as near:
        (outcome,) = await ask([near.at("a")], Patience(whole_s=20.0))
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.code in {"what came is not HTTP", "the head is too long", "an event is too long"}


@on_uvloop
async def test_reads_a_stream_that_ends_with_its_connection_and_skips_interim_answers() -> None:
    async def old_style(asked: Asked) -> None:
        asked.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        asked.send(b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices":[{"delta":{"content":"w"}}]}\n\n' + DONE)
        asked.writer.close()

    async with entry(old_style) as near:
        (outcome,) = await ask([near.at("a")])
    assert (outcome.kind, outcome.tokens) == (OutcomeKind.OK, 1)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1", "http://", "http://h:x", "http://h:1/path"])
def test_an_invalid_url_is_named(url: str) -> None:
    with pytest.raises(BadUrl, match="is not a URL like"):
        Client({"site": [Entry("a", url)]}, Patience(), monotonic)


@on_uvloop
async def test_an_image_request_has_one_whole_response() -> None:
    answers = [
        (200, b'{"images":["aGk="],"parameters":{},"info":"{}"}', OutcomeKind.OK, ""),
        (200, b'{"images":[]}', OutcomeKind.FAILED, "the answer has no image"),
        (200, b"<html>", OutcomeKind.FAILED, "the answer is not that of a text-to-image service"),
        (503, b'{"status":503,"code":"saturated"}', OutcomeKind.REFUSED, "saturated"),
    ]
    asked: list[Asked] = []

    async def in_turn(request: Asked) -> None:
        status, body, _, _ = answers[len(asked)]
        asked.append(request)
        request.answer(status, body, x_penstock_region="eu-de")

    images = [
        msgspec.structs.replace(planned(number), image=ImageSize(512, 768, 20)) for number, _ in enumerate(answers)
    ]
    async with entry(in_turn) as way:
        outcomes = await ask([way.at("eu-de")], requests=images)
    assert [(outcome.kind, outcome.code) for outcome in outcomes] == [(kind, code) for _, _, kind, code in answers]
    assert (outcomes[0].region, outcomes[0].first_token_s) == ("eu-de", None)
    body = msgspec.json.decode(asked[0].body)
    assert (body["width"], body["height"], body["steps"]) == (512, 768, 20)
    assert body["override_settings"] == {"sd_model_checkpoint": "m"}
    assert asked[0].headers["x-lab-residency"] == "a"


@on_uvloop
async def test_an_embedding_has_one_whole_response() -> None:
    answers = [
        (b'{"object":"list","data":[{"index":0,"embedding":[0.5]}]}', OutcomeKind.OK, ""),
        (b'{"data":[]}', OutcomeKind.FAILED, "the answer has no vector"),
        (b"[]", OutcomeKind.FAILED, "the answer is not that of an embedding service"),
    ]
    asked: list[Asked] = []

    async def in_turn(request: Asked) -> None:
        asked.append(request)
        request.answer(200, answers[len(asked) - 1][0])

    texts = [msgspec.structs.replace(planned(number), embedding=True) for number, _ in enumerate(answers)]
    async with entry(in_turn) as way:
        outcomes = await ask([way.at("eu-de")], requests=texts)
    assert [(outcome.kind, outcome.code) for outcome in outcomes] == [(kind, code) for _, kind, code in answers]
    body = msgspec.json.decode(asked[0].body)
    assert (body["model"], len(body["input"])) == ("m", 400)
