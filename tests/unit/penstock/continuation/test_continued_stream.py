"""When a stream can no longer be continued, and which errors of a stream are failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.answers.event_splitter import MAX_EVENT_BYTES
from penstock.continuation.answer_transcript import MAX_TEXT_BYTES
from penstock.continuation.continuable_request import ContinuableRequest
from penstock.continuation.continued_stream import MAX_HELD_EVENTS, ContinuedStream
from penstock.continuation.next_events import MAX_TAKEN

DONE = b"data: [DONE]\n\n"


def stream(max_tokens: int | None = None) -> ContinuedStream:
    return ContinuedStream(ContinuableRequest(True, max_tokens, True))


def event(delta: dict[str, Any], finish_reason: str | None = None, number: int = 1, **choice: Any) -> bytes:
    chunk = {"id": f"answer-{number}", "created": number, "model": "m"}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason} | choice]
    return b"data: %b\n\n" % json.dumps(chunk | {"choices": choices}).encode()


@pytest.mark.parametrize(
    "breaks",
    [
        event({"function_call": {"name": "f"}}),
        event({"reasoning_content": "First,"}),
        event({"reasoning": "First,"}),
        event({"content": "a"}, index=1),
        event({"content": "a"}, logprobs={"content": []}),
        b"event: ping\ndata: {}\n\n",
        b"data: 1\n\n",
        b"data: {\n\n",
        b"data: a\ndata: b\n\n",
    ],
)
def test_an_answer_that_is_more_than_text_is_passed_on_and_not_continued(breaks: bytes) -> None:
    answer = stream()
    first = event({"role": "assistant", "content": "a"})
    assert answer.feed(first + breaks[:7]) == first
    rest = event({"content": "b"}) + b"data: hal"
    relayed = answer.feed(breaks[7:] + rest)
    assert answer.problem
    error = b'f\n\ndata: {"error": {"code": 500}}\n\n'
    assert relayed + answer.feed(error) == breaks + rest + error
    assert (answer.failure, answer.end()) == ("", b"")


def of_vllm(text: str, tokens: int) -> bytes:
    """An event as vLLM sends it, with the usage so far."""
    used = {"prompt_tokens": 11, "total_tokens": 11 + tokens, "completion_tokens": tokens}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(chunk | {"usage": used}, separators=(",", ":"), ensure_ascii=False).encode()


def taken(answer: ContinuedStream, part: bytes) -> bytes:
    """What the client receives of a chunk that is relayed; empty if it must be fed."""
    return answer.next_events.take(b"%x\r\n%b\r\n" % (len(part), part), len(b"%x\r\n" % len(part)))


@pytest.mark.parametrize("wants_all", [False, True])
def test_events_that_differ_in_text_and_one_token_are_taken_and_count_like_others(wants_all: bool) -> None:
    request = ContinuableRequest(True, 99, wants_all, wants_all)
    answer, fed = ContinuedStream(request), ContinuedStream(request)
    texts = [" Take", " the", "\u00fc", " ", "0", " content", " "]
    events = [of_vllm(text, number) for number, text in enumerate(texts, 1)]
    received = answer.feed(events[0])
    for each in events[1:]:
        sent = taken(answer, each)
        assert sent
        received += sent
    assert answer.catch_up() == events[-1]
    assert received == b"".join(map(fed.feed, events))
    assert answer.next_body(b'{"messages": []}') == fed.next_body(b'{"messages": []}')
    for field in ("records", "generated_tokens", "usage_event", "has_text"):
        assert getattr(answer, field) == getattr(fed, field)


@pytest.mark.parametrize(
    "other",
    [
        of_vllm(" b", 3),
        of_vllm(" b", 2).replace(b'"prompt_tokens":11', b'"prompt_tokens":12'),
        of_vllm(" b", 2).replace(b"null}", b'"stop"}'),
        of_vllm(" b", 2).replace(b'{"content"', b'{"reasoning":"c","content"'),
        of_vllm(" b", 2).replace(b'"model":"m"', b'"model":"n"'),
        of_vllm('"}}', 2),
        of_vllm("\n", 2),
        of_vllm("", 2),
        of_vllm(" b", 2).replace(b" b", b"\xff"),
        of_vllm(" b", 2).replace(b" b", b"\x01"),
        of_vllm(" b", 2)[:-1],
        of_vllm(" b", 2) * 2,
        b": comment\n\n",
        DONE,
    ],
)
def test_an_event_that_differs_otherwise_is_decoded(other: bytes) -> None:
    answer = stream()
    answer.feed(of_vllm(" a", 1))
    assert taken(answer, of_vllm(" b", 2)[:-2] + b" \n\n") == b""
    assert taken(answer, other) == b""
    assert taken(answer, of_vllm(" b", 2))


def test_a_text_that_is_too_long_is_not_kept_where_its_events_are_taken() -> None:
    answer = stream()
    answer.feed(of_vllm(" a", 1))
    word, tokens = "x" * 1024, 1
    while not answer.problem and tokens <= 300:
        tokens += 1
        assert taken(answer, of_vllm(word, tokens))
        answer.catch_up()
    assert answer.problem == f"the answer is longer than {MAX_TEXT_BYTES} bytes"
    assert tokens == MAX_TEXT_BYTES // 1024 + 1
    assert not taken(answer, of_vllm(word, tokens + 1)), "a stream that is not continued is not recorded"


def with_parts(event: bytes, *parts: tuple[bytes, bytes]) -> bytes:
    for old, new in parts:
        assert old in event
        event = event.replace(old, new)
    return event


def with_text_elsewhere(other: bytes, tokens: int) -> bytes:
    return with_parts(of_vllm(" a", tokens), (b'{"content":" a"}', b'{"content": \t" a","x":{"content":"%b"}}' % other))


def with_tokens_elsewhere(tokens: int) -> bytes:
    elsewhere = b'"x":{"completion_tokens":%d},"usage":{' % tokens
    own = b'"completion_tokens":%d' % tokens, b'"completion_tokens":1'
    return with_parts(of_vllm(" a", tokens), own, (b'"usage":{', elsewhere))


@pytest.mark.parametrize(
    ("first", "following"),
    [
        (with_text_elsewhere(b" a", 1), with_text_elsewhere(b" b", 2)),
        (with_tokens_elsewhere(1), with_tokens_elsewhere(2)),
        [with_parts(of_vllm(" a", 1), (b'"completion_tokens":1', b'"completion_tokens":null'))] * 2,
    ],
)
def test_what_is_found_in_an_event_must_be_its_text_and_its_tokens(first: bytes, following: bytes) -> None:
    answer = stream()
    assert answer.feed(first)
    assert taken(answer, following) == b""


@pytest.mark.parametrize("ends", ["half", "gives up", "must call", "continues"])
def test_no_event_is_taken_where_each_must_be_read(ends: str) -> None:
    answer = ContinuedStream(ContinuableRequest(True, None, True, must_call=ends == "must call"))
    answer.feed(of_vllm(" " if ends == "must call" else " a", 1))
    if ends == "half":
        answer.feed(b"data: {")
    elif ends == "gives up":
        answer.give_up("the body is gone")
    elif ends == "continues":
        answer.next_stream()
        answer.feed(of_vllm(" a", 1))
    assert taken(answer, of_vllm(" b", 2)) == b""


def test_texts_are_kept_of_a_bounded_number_of_events() -> None:
    answer = stream()
    answer.feed(of_vllm(" a", 1))
    number = 2
    while taken(answer, of_vllm(" a", number)):
        number += 1
    assert number - 2 == MAX_TAKEN
    answer.catch_up()
    answer.feed(of_vllm(" a", number))
    assert answer.generated_tokens == number
    assert taken(answer, of_vllm(" a", number + 1))


@pytest.mark.parametrize("is_continuation", [False, True])
def test_an_event_that_is_no_text_is_malformed_wherever_its_bytes_stand(is_continuation: bool) -> None:
    answer = ContinuedStream(ContinuableRequest(True, None, False))
    if is_continuation:
        answer.feed(of_vllm(" a", 1))
        answer.next_stream()
    assert answer.feed(of_vllm(" b", 1).replace(b'"object"', b'"\xdd"')) == b""
    answer.feed(of_vllm(" c", 2))
    assert "malformed" in answer.problem


def test_usage_that_the_client_did_not_request_is_left_out_of_what_is_not_continued() -> None:
    answer = ContinuedStream(ContinuableRequest(True, None, False))
    called = event({"reasoning": "First,"})
    used = b', "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    relayed = answer.feed(called[:-3] + used + b'data: {"choices": []' + used + DONE)
    assert json.loads(relayed.removesuffix(DONE).removeprefix(b"data: ")) == json.loads(called.removeprefix(b"data: "))
    assert answer.problem
    assert b'"completion_tokens": 1' in answer.usage_event


@pytest.mark.parametrize("before", [event({"content": "a"}), event({"reasoning": "First,"})])
@pytest.mark.parametrize("is_continuation", [False, True])
def test_the_client_receives_the_usage_once_wherever_the_engine_reports_it(
    before: bytes, is_continuation: bool
) -> None:
    used = b', "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    finish, only_usage = event({}, "stop")[:-3] + used, b'data: {"choices": []' + used
    for end in ((finish,), (finish, only_usage)):
        answer = stream()
        if is_continuation:
            answer.feed(event({"role": "assistant", "content": "b"}))
            answer.next_stream()
        relayed = b"".join([answer.feed(part) for part in (before, *end)]) + answer.feed(DONE)
        assert relayed.count(b'"stop"') == 1
        reported = [part for part in relayed.split(b"\n\n") if b'"usage"' in part]
        assert len(reported) == 1
        assert (b'"stop"' in reported[0]) is (len(end) == 1)


@pytest.mark.parametrize("value", [0.12, False, "", {}])
def test_a_member_named_error_that_states_none_is_no_failure(value: Any) -> None:
    answer = stream()
    chunk = b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": "a"}}], "error": value}).encode()
    assert (answer.feed(chunk), answer.failure, answer.error) == (chunk, "", None)


def test_a_comment_is_passed_on() -> None:
    answer = stream()
    assert answer.feed(b": ping\n\n" + event({"content": "a"})) == b": ping\n\n" + event({"content": "a"})
    assert answer.problem == ""


def test_a_long_answer_is_not_continued() -> None:
    answer, part = stream(), event({"content": "a" * 1000})
    for _ in range(MAX_TEXT_BYTES // 1000 + 2):
        assert answer.feed(part) == part
    assert "longer" in answer.problem


def test_a_long_event_is_not_held() -> None:
    answer, part = stream(), b"data: " + b"a" * MAX_EVENT_BYTES
    assert answer.feed(part) == part
    assert "too long" in answer.problem


def test_an_answer_that_is_given_up_loses_no_byte() -> None:
    answer = stream()
    assert answer.feed(b"data: ha") == b""
    answer.give_up("no memory")
    assert answer.feed(b"lf") + answer.end() == b"data: half"


def test_an_endless_end_is_not_held() -> None:
    answer, finish = stream(), event({}, "stop")
    assert answer.feed(finish * MAX_HELD_EVENTS) == b""
    assert answer.feed(finish) == finish * (MAX_HELD_EVENTS + 1)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ({"message": "EngineCore died", "type": "InternalServerError", "code": 500}, "EngineCore died"),
        ({"message": "broke off", "type": "server_error", "code": "engine_failed"}, "broke off"),
        ({"message": "broke off", "code": "stream_stalled"}, "broke off"),
        ("died", "died"),
        ({"message": "too long", "type": "BadRequestError", "code": 400}, ""),
        ({"message": "too many", "type": "RateLimitError", "code": "429"}, ""),
        ({"message": "odd", "code": "\u00b2"}, ""),
        ({"message": "odd", "code": "4" * 5000}, "odd"),
        ({"message": "revoked", "code": "residency_denied"}, ""),
        ({"message": "late", "code": "deadline_passed"}, ""),
    ],
)
@pytest.mark.parametrize("form", [b'data: {"error": %b}\n\n', b"event: error\ndata: %b\n\n", b"error: %b\n\n"])
def test_an_error_of_the_engine_is_a_failure_and_one_of_the_request_is_not(
    error: Any, failure: str, form: bytes
) -> None:
    answer, first = stream(), event({"content": "a"})
    last = form % json.dumps(error).encode()
    assert answer.feed(first + last + DONE) == (first if failure else first + last + DONE)
    assert answer.failure == failure
    assert (answer.end(), bool(answer.failure)) == (b"", bool(failure))


def test_the_errors_of_earlier_versions_of_vllm_are_recognised() -> None:
    answer = stream()
    error = {"object": "error", "message": "died", "type": "InternalServerError", "param": None, "code": 500}
    assert answer.feed(b"data: %b\n\n" % json.dumps(error).encode()) == b""
    assert answer.failure == "died"


def test_half_an_event_before_a_failure_is_left_out() -> None:
    answer, first = stream(), event({"content": "a"})
    error = b'data: {"error": {"message": "broke off", "code": "engine_failed"}}\n\n'
    assert answer.feed(first + first[:30] + b"\n\n" + error) == first
    assert (answer.failure, answer.problem) == ("broke off", "")


def test_an_end_without_a_finish_reason_is_a_failure() -> None:
    answer = stream()
    answer.feed(event({"content": "a"}))
    assert answer.end() == b""
    assert answer.failure


def test_an_end_without_done_is_passed_on() -> None:
    answer, finish = stream(), event({}, "stop")
    assert (answer.feed(finish), answer.end(), answer.failure) == (b"", finish, "")


def test_a_continuation_that_calls_a_tool_keeps_the_identity() -> None:
    answer = stream()
    answer.feed(event({"role": "assistant", "content": "a"}))
    answer.next_stream()
    call = event({"role": "assistant", "tool_calls": [{"index": 0}]}, number=2)
    finish = event({}, "tool_calls", number=2)
    parts = answer.feed(call[:30]) + answer.feed(call[30:] + finish + DONE[:9]) + answer.feed(DONE[9:])
    data, _, done = parts.split(b"\n\n", 2)
    chunk = json.loads(data.removeprefix(b"data: "))
    assert (chunk["id"], chunk["choices"][0]["delta"]) == ("answer-1", {"tool_calls": [{"index": 0}]})
    assert (done, answer.done) == (DONE, True)


def test_a_continuation_has_the_role_that_was_in_a_lost_tool_call() -> None:
    answer = stream()
    assert answer.feed(event({"role": "assistant", "tool_calls": [{"index": 0}]})) == b""
    assert (answer.end(), bool(answer.failure)) == (b"", True)
    answer.next_stream()
    events = answer.feed(event({"role": "assistant", "content": "a"}, number=2) + event({"content": "b"}, number=2))
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in events.split(b"\n\n") if each]
    assert [each["choices"][0]["delta"] for each in chunks] == [{"role": "assistant", "content": "a"}, {"content": "b"}]


def test_repeated_white_space_is_left_out() -> None:
    answer = stream()
    answer.feed(event({"role": "assistant", "content": "a:"}) + event({"content": " \n"}))
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    assert json.loads(answer.next_body(body) or b"")["messages"][-1]["content"] == "a:"
    answer.next_stream()
    assert answer.feed(event({"content": " "}, number=2)) == b""
    assert b'"content":"\\tb"' in answer.feed(event({"content": "\n\tb"}, number=2))


def test_an_answer_at_its_limit_is_finished() -> None:
    answer = stream(max_tokens=2)
    answer.feed(event({"role": "assistant"}) + event({"content": "a"}) + event({"content": "b"}))
    assert answer.next_body(b"{}") is None
    finish, done = answer.finish_at_limit().split(b"\n\n", 1)
    assert json.loads(finish.removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert done == DONE
