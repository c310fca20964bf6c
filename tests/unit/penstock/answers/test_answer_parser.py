"""The answer parser: facts by place, in any chunking, whatever stands beside them."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from typing import Any

import brotli
import msgspec
import pytest

from penstock.answers.answer_errors import ErrorCause
from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.held_text import MAX_HELD_BYTES
from penstock.answers.json_reducer import MAX_KEPT_BYTES, JsonReducer
from penstock.answers.token_counts import Usage
from penstock.answers.values import MAX_ID_RECORDS
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import Route
from tests.support.codings import gzipped

CHAT, RESPONSES, MESSAGES, TGI, SGLANG, OLLAMA = (
    next(route for route in preset_routes(preset) if route.name == name)
    for preset, name in (
        ("openai", "openai-chat-completions"),
        ("openai", "openai-responses"),
        ("anthropic", "anthropic-messages"),
        ("tgi", "tgi-generate-stream"),
        ("sglang", "sglang-generate"),
        ("ollama", "ollama-chat"),
    )
)
USAGE = {
    "prompt_tokens": 12,
    "total_tokens": 40,
    "completion_tokens": 28,
    "prompt_tokens_details": {"cached_tokens": 8},
}
READ = Usage(12, 28, 8)


def parser(route: Route = CHAT, kind: int = EVENTS, coding: bytes = b"", *, hides: bool = False) -> AnswerParser:
    return AnswerParser(AnswerFormat(route), kind, coding, hides)


def event(data: Any, end: str = "\n\n") -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}{end}".encode()


def delta(text: str = "x", **choice: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


def stream(*events: Any, end: str = "\n\n") -> bytes:
    return b"".join(event(each, end) for each in events)


WHOLE = stream(delta(""), delta("a"), delta("b"), delta("", finish_reason="stop"), {"choices": [], "usage": USAGE})
DONE = event("[DONE]")


def read(data: bytes, size: int, reader: AnswerParser, *, complete: bool = True) -> bytes:
    forwarded = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return forwarded + reader.finish(complete=complete)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize(
    "tail",
    [b"", b": ping\n\n", b"\n\n", b"event: end\n\n", b": a\n\n: b\n\n"],
    ids=["none", "comment", "blank", "name", "2"],
)
def test_usage_before_the_end_is_read_in_any_chunking(size: int, end: str, tail: bytes) -> None:
    events = (
        delta(""),
        delta("a"),
        delta("b"),
        delta("", finish_reason="stop"),
        {"choices": [], "usage": USAGE},
        "[DONE]",
    )
    reader = parser()
    data = stream(*events, end=end) + tail
    assert read(data, size, reader) == data
    assert (reader.usage, reader.usage_is_final, reader.ended) == (READ, True, True)
    assert (reader.delivered, reader.finish_reason, reader.error) == (2, "stop", None)


@pytest.mark.parametrize("reason", ["abort", "cancelled", "error", "stop", "tool_calls", None])
@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize("spaces", [False, True])
def test_an_answer_that_its_engine_aborted_is_cut(reason: str | None, size: int, *, spaces: bool) -> None:
    text = 'quotes "finish_reason": "abort" in what a model writes'
    streamed, whole = parser(), parser(kind=JSON)
    read(
        stream(delta(""), delta(text), delta("", finish_reason=reason), {"choices": [], "usage": USAGE}), size, streamed
    )
    answer = {"choices": [{"message": {"content": text}, "finish_reason": reason, "logprobs": None}], "usage": USAGE}
    separators = (", ", ": ") if spaces else (",", ":")
    read(json.dumps(answer, separators=separators).encode(), size, whole)
    for reader in (streamed, whole):
        assert (reader.finish_reason, reader.usage) == (reason or "", READ)
        assert reader.is_cut is (reason in ("abort", "cancelled", "error"))


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        (b"", True),
        (b" \n", True),
        (b"null", True),
        (b' "a" ', True),
        (b"-1.5", True),
        (b"\n\n[1]\n", True),
        (b"\xef\xbb\xbf{}", True),
        (b'{"a": NaN}', True),
        (b'{"a": "\xff"}', True),
        (b'{"a": 1} \n', True),
        (b'{"a": 1}{', False),
        (b'{"a": 1}\0', False),
        (b'{"a": "%b"}' % (b"x" * 2 * MAX_HELD_BYTES), True),
        (b'{"a": "%b"' % (b"x" * 2 * MAX_HELD_BYTES), False),
        (b'{"a": 1', False),
        (b"[{}", False),
        (b"not found", False),
        (b"Internal Server Error", False),
        (b"\n<html>", False),
    ],
)
def test_a_whole_response_that_must_be_json_and_is_not_is_an_error(text: bytes, size: int, *, is_json: bool) -> None:
    if size == 1 and len(text) > MAX_HELD_BYTES:
        pytest.skip("takes long")
    reader = parser(kind=JSON)
    reader.needs_json = True
    read(text, size, reader)
    assert (reader.error is None) == is_json
    loose = parser(kind=JSON)
    read(text, size, loose)
    assert loose.error is None


def test_the_terminator_may_come_in_writes_of_its_own() -> None:
    reader = parser()
    for part in (WHOLE, b"data:", b" [DONE]", b"\n", b"\n"):
        reader.feed(part)
    assert (reader.usage, reader.ended) == (READ, True)


@pytest.mark.parametrize("size", [5, 4096, 10_000_000])
@pytest.mark.parametrize("beside", [100, 3 * MAX_HELD_BYTES])
def test_large_members_around_the_usage_do_not_matter(size: int, beside: int) -> None:
    if size == 5 and beside > 100:
        pytest.skip("takes long")
    logprobs = [{"token": 'a"}]', "top": [1, 2, {"usage": {"prompt_tokens": 1}}]}] * (beside // 50)
    answer = {"id": "c", "logprobs": logprobs, "usage": USAGE, "more": logprobs, "text": "y" * beside}
    whole = parser(kind=JSON)
    read(json.dumps(answer).encode(), size, whole)
    assert (whole.usage, whole.ended) == (READ, True)
    streamed = parser()
    read(stream(delta(), {"choices": [], **answer}) + DONE, size, streamed)
    assert (streamed.usage, streamed.ended) == (READ, True)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": '"usage":{"prompt_tokens":1}', "tool_calls": [{"usage": USAGE}]}}]},
        {"tools": [{"parameters": {"properties": {"usage": USAGE}}}]},
        {"metadata": {"usage": USAGE}},
        {"response": {"usage": USAGE}},
        {"usage": None},
        {"usage": [USAGE]},
        {"usage": {"prompt_tokens": 10**30, "completion_tokens": "5"}},
        {"usage": {"prompt_tokens": -5, "completion_tokens": 1.5}},
        {"usage": {"prompt_tokens": True, "completion_tokens": None}},
        {"usage": {"prompt_tokens_details": {"cached_tokens": 5}}},
        [1, 2],
        "text",
    ],
)
def test_a_member_at_another_place_and_a_number_out_of_range_are_no_usage(answer: Any) -> None:
    reader = parser(kind=JSON)
    read(json.dumps(answer).encode(), 1000, reader)
    assert (reader.usage, reader.ended) == (None, True)
    reader = parser()
    read(stream(delta(), answer) + DONE, 1000, reader)
    assert reader.usage is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"x":NaN,"usage":%b}',
        b'{"x":"\xff\xfe","usage":%b}',
        b'{"x":Infinity,"usage":%b,"y":[NaN]}',
        b'\xef\xbb\xbf {"usage":%b}'[3:],
    ],
)
def test_what_engines_send_that_is_no_json_beside_the_usage_does_not_matter(data: bytes) -> None:
    reader = parser(kind=JSON)
    read(data % json.dumps(USAGE).encode(), 9, reader)
    assert reader.usage == READ


def test_numbers_with_a_fraction_of_zero_are_whole() -> None:
    reader = parser(kind=JSON)
    reader.feed(b'{"usage":{"prompt_tokens":12.0,"completion_tokens":28}}')
    reader.finish(complete=True)
    assert reader.usage == Usage(12, 28)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br"])
@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_an_encoded_answer_is_read_and_forwarded_as_it_is(coding: bytes, size: int) -> None:
    encode = {b"gzip": gzipped, b"deflate": zlib.compress, b"br": brotli.compress}[coding]
    for data, kind in ((WHOLE + DONE, EVENTS), (json.dumps({"usage": USAGE, "x": "y" * 5000}).encode(), JSON)):
        reader, sent = parser(kind=kind, coding=coding, hides=True), encode(data)
        assert read(sent, size, reader) == sent
        assert (reader.usage, reader.ended) == (READ, True)


@pytest.mark.parametrize("coding", [b"gzip", b"br"])
def test_a_decompression_bomb_ends_the_reading_only(coding: bytes) -> None:
    padded = b'{"pad":"%b","usage":%b}' % (b"a" * 20_000_000, json.dumps(USAGE).encode())
    bomb = (gzipped if coding == b"gzip" else brotli.compress)(padded)
    reader = parser(kind=JSON, coding=coding)
    assert read(bomb, 65536, reader) == bomb
    assert reader.usage is None


def test_an_unknown_or_broken_coding_ends_the_reading_only() -> None:
    for coding in (b"zstd", b"gzip", b"br"):
        reader = parser(kind=JSON, coding=coding)
        assert read(b'{"usage":{}}' * 10, 7, reader) == b'{"usage":{}}' * 10
        assert (reader.usage, reader.ended, reader.undecided) == (None, False, False)


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
OUTPUTS = [{"content": "a"}, {"reasoning": "a"}, {"tool_calls": [{"index": 0}]}, {"refusal": "a"}]


@pytest.mark.parametrize(
    ("route", "announced", "then"),
    [
        (CHAT, [ROLE], delta()),
        (CHAT, [{"choices": []}], delta()),
        (MESSAGES, [{"type": "message_start"}, {"type": "content_block_start"}], {"type": "content_block_delta"}),
        (
            RESPONSES,
            [{"type": f"response.{kind}", "response": {"id": "r"}} for kind in ("created", "in_progress")],
            {"type": "response.output_text.delta"},
        ),
        (CHAT, [ROLE], {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        (CHAT, [ROLE], "[DONE]"),
        (CHAT, [], {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
        *((CHAT, [], {"choices": [{"index": 0, "delta": {"role": "assistant", **output}}]}) for output in OUTPUTS),
        (CHAT, [], {"choices": [{"index": 0, "text": "a"}]}),
        (CHAT, [], {"type": "progress"}),
        (CHAT, [], "no JSON"),
    ],
)
def test_events_that_only_announce_an_answer_decide_nothing(route: Route, announced: list[Any], then: Any) -> None:
    reader = parser(route)
    for each in announced:
        reader.feed(event(each))
        assert reader.undecided
    assert not reader.delivered
    reader.feed(event(then))
    assert not reader.undecided
    assert reader.error is None


def test_anthropic_counts_cached_tokens_as_input_and_the_last_output() -> None:
    usage = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 1}
    events = (
        {"type": "message_start", "message": {"id": "m", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}} for _ in range(5)),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
    )
    for size in (1, 40, 100_000):
        reader = parser(MESSAGES)
        read(stream(*events), size, reader)
        assert (reader.usage, reader.finish_reason, reader.delivered) == (Usage(100, 15, 60), "end_turn", 5)
        assert (reader.usage_is_final, reader.ended) == (True, False)
        reader.feed(event({"type": "message_stop"}))
        assert reader.ended
    whole = parser(MESSAGES, JSON)
    read(json.dumps({"type": "message", "usage": {**usage, "cache_creation_input_tokens": 5}}).encode(), 50, whole)
    assert whole.usage == Usage(105, 1, 60)


RESPONSE = {
    "id": "resp_1",
    "usage": {"input_tokens": 36, "output_tokens": 87, "input_tokens_details": {"cached_tokens": 3}},
}


@pytest.mark.parametrize(
    ("route", "kind", "data", "usage", "finish"),
    [
        (
            RESPONSES,
            EVENTS,
            stream(
                {"type": "response.created", "response": {"id": "resp_1", "usage": None, "error": None}},
                {"type": "response.output_text.delta", "delta": "x"},
                {"type": "response.completed", "response": {**RESPONSE, "error": None, "tools": [{"usage": 1}] * 99}},
            ),
            Usage(36, 87, 3),
            "",
        ),
        (
            RESPONSES,
            JSON,
            json.dumps({**RESPONSE, "status": "completed", "error": None}).encode(),
            Usage(36, 87, 3),
            "",
        ),
        (
            TGI,
            EVENTS,
            stream(
                {"token": {"text": "x"}, "generated_text": None, "details": None},
                {
                    "token": {"text": "y"},
                    "generated_text": "xy",
                    "details": {"finish_reason": "length", "generated_tokens": 20, "input_length": 5},
                },
            ),
            Usage(5, 20),
            "length",
        ),
        (
            SGLANG,
            EVENTS,
            stream(
                {"text": "x", "meta_info": {"prompt_tokens": 7, "completion_tokens": 1, "finish_reason": None}},
                {
                    "text": "xy",
                    "meta_info": {
                        "prompt_tokens": 7,
                        "completion_tokens": 16,
                        "cached_tokens": 2,
                        "finish_reason": {"type": "length", "length": 16},
                    },
                },
            )
            + DONE,
            Usage(7, 16, 2),
            "length",
        ),
        (
            OLLAMA,
            LINES,
            b'{"message":{"content":"."},"done":false}\n'
            b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":26,"eval_count":259}\n',
            Usage(26, 259),
            "stop",
        ),
        (OLLAMA, JSON, b'{"done":true,"prompt_eval_count":26,"eval_count":259}', Usage(26, 259), ""),
        (
            SGLANG,
            JSON,
            json.dumps([{"meta_info": {"prompt_tokens": 7, "completion_tokens": n}} for n in (5, 6)]).encode(),
            Usage(14, 11),
            "",
        ),
    ],
    ids=["responses", "response", "tgi", "sglang", "ollama", "ollama json", "sglang json"],
)
@pytest.mark.parametrize("size", [1, 33, 100_000])
def test_other_formats(route: Route, kind: int, data: bytes, usage: Usage, finish: str, size: int) -> None:
    reader = parser(route, kind)
    assert read(data, size, reader) == data
    assert (reader.usage, reader.finish_reason, reader.error) == (usage, finish, None)
    assert route is not RESPONSES or reader.ids.object_id == "resp_1"


ERRORS = [
    ({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}, ErrorCause.ENGINE),
    ({"error": "CUDA error", "error_type": "generation"}, ErrorCause.ENGINE),
    ({"error": {"message": "x", "code": "400"}}, ErrorCause.REQUEST),
    ({"error": {"message": "x", "type": "invalid_request_error", "code": None}}, ErrorCause.REQUEST),
    ({"error": {"message": "x", "code": 404}}, ErrorCause.ENGINE),
    ({"error": {"message": "x", "code": 503}}, ErrorCause.BUSY),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, ErrorCause.BUSY),
    ({"type": "error", "error": {"type": "api_error", "message": "x"}}, ErrorCause.ENGINE),
    ({"type": "error", "code": "server_error", "message": "x"}, ErrorCause.ENGINE),
    ({"object": "error", "message": "x", "code": 400, "type": "BadRequestError"}, ErrorCause.REQUEST),
    ({"object": "error", "message": "x", "code": 50000}, ErrorCause.ENGINE),
    ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}, ErrorCause.ENGINE),
    ({"id": "gen-" + 60 * "0", "model": "m", "choices": [], "error": {"code": 502, "message": "x"}}, ErrorCause.ENGINE),
    ({"request_id": "req_" + 60 * "0", "type": "error", "error": {"type": "api_error"}}, ErrorCause.ENGINE),
]


@pytest.mark.parametrize(("error", "cause"), ERRORS)
@pytest.mark.parametrize("size", [1, 20, 80, 10_000])
def test_errors_in_a_response_with_status_200(error: dict[str, Any], cause: ErrorCause, size: int) -> None:
    text = json.dumps(error).encode()
    for kind, data in ((EVENTS, b"data: " + text + b"\n\n"), (LINES, text + b"\n"), (JSON, text)):
        reader = parser(kind=kind)
        for at in range(0, len(data), size):
            assert reader.undecided
            reader.feed(data[at : at + size])
        assert reader.undecided == (kind == JSON), "what may be an error is not forwarded"
        reader.finish(complete=True)
        assert reader.error is not None
        assert reader.error.cause is cause
        later = parser(kind=kind)
        if kind != JSON:
            later.feed((b"data: {}\n\n" if kind == EVENTS else b"{}\n") + data)
            assert not later.undecided
            assert later.error is not None


def test_a_named_error_event_is_an_error_whatever_its_data() -> None:
    reader = parser()
    reader.feed(b"event: error\ndata: boom\n\n")
    assert reader.error is not None


@pytest.mark.parametrize(
    "answer",
    [
        {"error": None, "choices": []},
        {"error": {}},
        {"choices": [{"message": {"content": "error", "error": {"message": "x"}}}]},
        {"status": "failed"},
        {"type": "message"},
        {"object": "chat.completion"},
    ],
)
def test_what_is_no_error(answer: dict[str, Any]) -> None:
    for kind, data in ((EVENTS, event(answer)), (JSON, json.dumps(answer).encode())):
        reader = parser(kind=kind)
        reader.feed(data)
        reader.finish(complete=True)
        assert reader.error is None


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("route", [CHAT, MESSAGES, RESPONSES, TGI])
@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"event: error\n\n", ErrorCause.ENGINE),
        (b"event: error\ndata:\n\n", ErrorCause.ENGINE),
        (b'event: error\ndata: {"message": "m", "status": 422}\n\n', ErrorCause.REQUEST),
        (b'{"error": {"message": "m", "code": "429"}}', ErrorCause.BUSY),
        (b'{"object": "error", "message": "m", "code": 400}\n', ErrorCause.REQUEST),
        (b'{\n  "error": "m"\n}\n\n', ErrorCause.ENGINE),
    ],
)
def test_an_error_of_another_form_than_the_events_is_found(
    data: bytes, cause: ErrorCause, route: Route, size: int
) -> None:
    output = {CHAT: delta(), MESSAGES: {"type": "content_block_delta"}, TGI: {"token": {"text": "x"}}}
    for begun in (stream(output.get(route, {"type": "response.output_text.delta"})) * 2, b""):
        reader = parser(route)
        reader.needs_event = True
        assert read(begun + data, size, reader) == begun + data
        assert reader.error is not None
        assert (reader.error.cause, reader.delivered) == (cause, begun.count(b"data:"))
        assert reader.is_finished


@pytest.mark.parametrize("response", [{"status": "failed"}, {"error": None}, {"error": {"message": "m"}}])
def test_a_response_that_failed_is_an_error_whatever_it_states(response: dict[str, Any]) -> None:
    for begun in (stream({"type": "response.output_text.delta"}) * (MAX_ID_RECORDS + 1), b""):
        reader = parser(RESPONSES)
        for part in (begun, event({"type": "response.failed", "response": response})):
            reader.feed(part)
        reader.finish(complete=True)
        assert (reader.error is not None, reader.ended) == (True, True)


@pytest.mark.parametrize("padding", ["", "y" * MAX_HELD_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("name", ["openai-responses", "openai-response", "openai-response-cancel"])
def test_the_failure_of_a_stored_response_is_that_of_its_request_alone(name: str, padding: str) -> None:
    stored = {"id": "r", "status": "failed", "error": {"message": "m"}, "output": [], "text": padding}
    for kind, data, is_error in (
        (JSON, json.dumps(stored).encode(), name == "openai-responses"),
        (EVENTS, event({"type": "response.failed", "response": stored}), name == "openai-responses"),
        (JSON, json.dumps({"error": {"message": "m"}, "text": padding}).encode(), True),
        (EVENTS, event({"type": "error", "message": "m"}), True),
    ):
        reader = parser(PRESET_ROUTES[name], kind)
        read(data, 100_000, reader)
        assert (reader.error is not None) == is_error


@pytest.mark.parametrize("data", [b'event: ping\ndata: {"type": "ping"}\n\n', DONE])
def test_pings_and_an_end_are_no_answer(data: bytes) -> None:
    reader = parser(MESSAGES)
    reader.needs_event = True
    reader.feed(data)
    assert reader.undecided
    reader.finish(complete=True)
    assert reader.error is not None


def test_comments_are_undecided_and_large_beginnings_are_not() -> None:
    reader = parser()
    reader.feed(b": ping\n\n")
    assert reader.undecided
    reader.feed(b"data: " + b"x" * 100_000)
    assert not reader.undecided


@pytest.mark.parametrize("size", [1, 17, 100_000])
def test_the_event_that_only_the_agent_asked_for_is_hidden(size: int) -> None:
    reader = parser(hides=True)
    hidden = event({"choices": [], "usage": USAGE})
    assert read(WHOLE + DONE, size, reader) == WHOLE.removesuffix(hidden) + DONE
    assert reader.usage == READ


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_event_that_only_the_agent_asked_for_is_hidden_at_an_end_without_an_empty_line(end: str) -> None:
    reader = parser(hides=True)
    shown = stream(delta("a"), delta("", finish_reason="stop"))
    assert read(shown + event({"choices": [], "usage": USAGE}, end), 9, reader) == shown
    assert reader.usage == READ


@pytest.mark.parametrize("number", [None, -7, 7.5, "7", 2**63, [7]])
def test_a_last_report_that_does_not_state_the_output_is_not_that_of_the_whole_answer(number: Any) -> None:
    reader = parser()
    usage = {"prompt_tokens": 12, "completion_tokens": number}
    read(stream(delta("a"), delta("b"), {"choices": [], "usage": usage}, "[DONE]"), 30, reader)
    unknown = Usage(12, 0, answer_is_known=False)
    assert (reader.usage, reader.usage_is_final, reader.delivered) == (unknown, False, 2)


def test_an_answer_without_output_has_its_usage() -> None:
    reader = parser()
    empty = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 0}}
    read(stream(delta(""), {**delta("", finish_reason="stop"), "usage": empty["usage"]}, "[DONE]"), 30, reader)
    assert (reader.usage, reader.usage_is_final, reader.delivered) == (Usage(12, 0), True, 0)


def test_usage_in_the_finish_chunk_is_not_hidden() -> None:
    data = stream(delta("a"), {**delta("", finish_reason="stop"), "usage": USAGE}, "[DONE]")
    reader = parser(hides=True)
    assert read(data, 30, reader) == data
    assert reader.usage == READ


def test_continuous_usage_is_that_of_the_last_event() -> None:
    events = [{**delta(), "usage": {"prompt_tokens": 12, "completion_tokens": n}} for n in range(1, 30)]
    reader = parser()
    read(stream(*events), 100, reader, complete=False)
    assert (reader.usage, reader.usage_is_final, reader.delivered) == (Usage(12, 29), False, 29)


def test_an_event_without_end_is_bounded_and_forwarded() -> None:
    for kind, begin in ((EVENTS, b"data: "), (LINES, b"")):
        reader, part = parser(kind=kind), b"x" * 65536
        forwarded = len(reader.feed(begin))
        for _ in range(256):
            forwarded += len(reader.feed(part))
        assert forwarded + len(reader.finish(complete=False)) == len(begin) + 256 * 65536
        assert len(reader._splitter.rest) < 1_000_000


def test_a_relayed_chunk_is_counted_by_its_framing() -> None:
    reader = parser()
    reader.feed(event(delta("")))
    body = event(delta("a"))
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    assert reader.skim_chunk(chunk, chunk.find(b"\n") + 1)
    assert reader.delivered == 1
    for other in (
        b": ping\n\n",
        b"event: error\ndata: x\n\n",
        body + b"\n\n",
        body[:-1],
        DONE,
        event({"choices": [], "usage": USAGE}),
        event({"error": {}}),
    ):
        size_line = b"%x\r\n" % len(other)
        assert not reader.skim_chunk(size_line + other + b"\r\n", len(size_line))


@pytest.mark.parametrize("member", ["object", "type"])
def test_a_part_that_differs_in_a_member_that_may_announce_an_error_is_parsed(member: str) -> None:
    reader = parser()
    events = [event({"choices": [{"delta": {"content": "a"}}], "message": "b", member: kind}) for kind in "xyz"]
    for body in (*events, event({"choices": [{"delta": {"content": "a"}}], "message": "b", member: "error"})):
        reader.feed(body)
    assert reader.error is not None


@pytest.mark.parametrize("size", [1, 9, 100_000])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
def test_only_events_with_data_are_output(size: int, end: str) -> None:
    beside = f": ping{end}{end}event: ping{end}:{end}".encode()
    reader = parser()
    read(stream(delta(""), delta("a"), end=end) + (beside + event(delta("b"), end)) * 3, size, reader, complete=False)
    assert reader.delivered == 4
    lines = parser(OLLAMA, LINES)
    read(b'{"message":{"content":"x"}}\n\n\r\n' * 4, size, lines, complete=False)
    assert lines.delivered == 4


@pytest.mark.parametrize("size", [1, 9, 100_000])
@pytest.mark.parametrize("form", ["event: error\ndata: %s\n\n", "data: %s\nevent:error\n\n", "error: %s\n\n"])
def test_an_event_named_error_is_an_error_at_any_place(size: int, form: str) -> None:
    reader = parser()
    failure = (form % json.dumps({"message": "x", "type": "InternalServerError"})).encode()
    for part in (stream(delta("")), stream(delta("a"), delta("b"))):
        reader.feed(part)
    read(failure, size, reader)
    assert reader.error is not None
    assert reader.delivered <= 3


@pytest.mark.parametrize("size", [1, 9, 100_000])
def test_a_byte_order_mark_is_skipped(size: int) -> None:
    reader = parser()
    data = "\ufeff".encode() + event({"error": {"message": "x", "code": 500}})
    assert read(data, size, reader) == data
    assert reader.error is not None
    whole = parser(kind=JSON)
    read("\ufeff".encode() + json.dumps({"usage": USAGE}).encode(), size, whole)
    assert (whole.usage, whole.ended) == (READ, True)


@pytest.mark.parametrize("done", ["data: [DONE] \n\n", "data:[DONE]\t\n\n", "data: [DONE]\r\n\n", "data:[DONE]\r\r"])
def test_white_space_after_the_terminator(done: str) -> None:
    reader = parser()
    read(WHOLE + done.encode(), 100_000, reader)
    assert reader.ended


def test_an_event_with_usage_and_an_error_is_not_hidden() -> None:
    failure = event({"choices": [], "usage": USAGE, "error": {"message": "x", "code": 500}})
    reader = parser(hides=True)
    assert read(WHOLE + failure, 30, reader).endswith(failure)
    assert reader.error is not None


@pytest.mark.parametrize("size", [1, 30, 100_000])
def test_usage_before_the_output_is_not_that_of_the_whole_answer(size: int) -> None:
    early = event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 0}})
    reader = parser(hides=True)
    read(early + stream(delta("a"), delta("b")), size, reader, complete=False)
    assert (reader.usage, reader.usage_is_final, reader.delivered) == (Usage(12, 0), False, 2)
    for again in (WHOLE, WHOLE + event({"choices": [], "usage": USAGE}), WHOLE + DONE):
        reader = parser()
        read(early + again, size, reader)
        assert (reader.usage, reader.usage_is_final) == (READ, True)


def test_generated_text_that_looks_like_a_field_is_no_field() -> None:
    reader = parser()
    read(stream(delta(""), delta("a"), delta("say data: x", finish_reason="stop")) + DONE, 100_000, reader)
    assert (reader.finish_reason, reader.delivered) == ("stop", 2)


def test_long_arrays_of_answers_are_added_up_or_not_final() -> None:
    for count, is_final in ((1000, True), (5000, False)):
        reader = parser(SGLANG, JSON)
        answer = {"meta_info": {"prompt_tokens": 7, "completion_tokens": 2}}
        read(json.dumps([answer] * count).encode(), 100_000, reader)
        assert reader.usage_is_final == is_final
        assert not is_final or reader.usage == Usage(7 * count, 2 * count)


def test_answers_with_long_members_are_added_up_or_not_final() -> None:
    for size, is_final in ((1000, True), (70_000, False)):
        reader = parser(SGLANG, JSON)
        answer = {"meta_info": {"prompt_tokens": 7, "completion_tokens": 2, "logprobs": "y" * size}}
        read(json.dumps([answer] * 200 + [{"text": "y" * MAX_HELD_BYTES}]).encode(), 100_000, reader)
        assert (reader.usage_is_final, reader.ended) == (is_final, True)
        assert not is_final or reader.usage == Usage(7 * 200, 2 * 200)


@pytest.mark.parametrize("kind", [JSON, EVENTS, LINES])
@pytest.mark.parametrize("size", [1000, 10_000_000])
@pytest.mark.parametrize(
    "text", ["y" * 600_000, {"message": "y" * 600_000}, {"message": "m", "param": ["y"] * 200_000}]
)
def test_an_error_is_an_error_however_long_it_is(text: Any, size: int, kind: int) -> None:
    data = {JSON: "%s", EVENTS: "data: %s\n\n", LINES: "%s\n"}[kind] % json.dumps({"error": text})
    reader = parser(OLLAMA, kind)
    read(data.encode(), size, reader)
    assert reader.error is not None


@pytest.mark.parametrize("part", [b"[", b"{},", b'{"meta_info":1},', b'{"meta_info":1,"text":[]},', b"[[],"])
def test_what_is_kept_of_an_endless_answer_is_bounded(part: bytes) -> None:
    reducer = JsonReducer(AnswerFormat(SGLANG).wanted)
    reducer.feed(b"[" + part * (2 * MAX_KEPT_BYTES // len(part)))
    tracemalloc.start()
    reducer.feed(part * 1000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000 + 1000 * len(part)
    assert reducer.is_partial
    assert len(reducer.result()) < 2 * MAX_KEPT_BYTES


@pytest.mark.parametrize("coding", [b"zstd", b"gzip"])
def test_an_encoded_stream_that_cannot_be_read_is_decided(coding: bytes) -> None:
    reader = parser(coding=coding)
    assert reader.feed(b"no such coding") == b"no such coding"
    assert not reader.undecided


def test_an_encoded_chunk_that_looks_like_an_event_is_decoded() -> None:
    one = parser(coding=b"gzip")
    data = gzipped(WHOLE)
    middle = len(data) - 8
    one.feed(data[:middle])
    assert one.begun
    assert not one.skim_chunk(b"2\r\n\n\n\r\n", 3)


def test_a_gzip_answer_of_several_members() -> None:
    reader = parser(coding=b"gzip")
    members = b"".join(gzipped(part) for part in (WHOLE[:50], b"", WHOLE[50:], DONE))
    assert read(members, 7, reader) == members
    assert (reader.usage, reader.ended) == (READ, True)


def test_a_long_event_of_a_stream_with_cr_ends() -> None:
    reader = parser()
    long = delta("x" * 600_000)
    read(stream(delta(""), long, delta("b"), {"choices": [], "usage": USAGE}, "[DONE]", end="\r\r"), 50_000, reader)
    assert (reader.usage, reader.ended) == (READ, True)


def test_many_small_parts_take_no_more_memory_than_their_bytes() -> None:
    text = json.dumps({"x": "y" * 200_000, "usage": USAGE}).encode()
    parts = [text[at : at + 2] for at in range(0, len(text), 2)]
    reader = parser(kind=JSON)
    tracemalloc.start()
    try:
        for part in parts:
            reader.feed(part)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()
    reader.finish(complete=True)
    assert reader.usage == READ


@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        (({"completion_tokens": 30},), Usage(12, 30, 8)),
        (({"completion_tokens": 30, "prompt_tokens": None},), Usage(12, 30, 8)),
        (({"prompt_tokens": 12, "completion_tokens": 30},), Usage(12, 30, 8)),
        (({"prompt_tokens": 20},), Usage(20, 28, 8)),
        (({"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 1}},), Usage(12, 30, 8)),
        (({"completion_tokens": 29}, {"completion_tokens": 31, "total_tokens": 43}), Usage(12, 31, 8)),
        (({"completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 2}},), Usage(12, 30, 2)),
        (({"completion_tokens": 30.0},), Usage(12, 30, 8)),
    ],
)
def test_numbers_that_a_later_report_omits_stay(
    size: int, reports: tuple[dict[str, Any], ...], expected: Usage
) -> None:
    events = [{"choices": [], "usage": usage} for usage in (USAGE, *reports)]
    for before in ((), ({"choices": [], "usage": {"prompt_tokens": 12.0}},)):
        reader = parser()
        read(stream(delta(), delta("", finish_reason="stop"), *before, *events) + DONE, size, reader)
        assert (reader.usage, reader.usage_is_final) == (expected, True)


def test_the_delta_of_a_message_adds_to_its_start() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 40, "cache_read_input_tokens": 60}}}
    reader = parser(MESSAGES)
    read(stream(start, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}}), 9, reader)
    assert reader.usage == Usage(100, 7, 60)


@pytest.mark.parametrize("choices", [b"[]", b"[ ]", b"[\t ]", b"null"])
@pytest.mark.parametrize("extra", [b"", b',"usage_details":1', b',"error":null'])
def test_an_event_with_usage_and_no_choice_is_hidden(choices: bytes, extra: bytes) -> None:
    words = stream(delta("a"), delta("", finish_reason="stop"))
    reader = parser(hides=True)
    report = b'data: {"choices": %b, "usage": %b%b}\n\n' % (choices, json.dumps(USAGE).encode(), extra)
    assert read(words + report + DONE, 9, reader) == words + DONE
    assert (reader.usage, reader.usage_is_final) == (READ, True)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"error": "too long", "error_type": "validation"}, ErrorCause.REQUEST),
        ({"error": "no template", "error_type": "template_error"}, ErrorCause.REQUEST),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, ErrorCause.BUSY),
        ({"error": "CUDA error", "error_type": "generation"}, ErrorCause.ENGINE),
        ({"status": 400, "error": "Bad Request", "path": "/"}, ErrorCause.REQUEST),
        ({"status": 503, "error": "Service Unavailable"}, ErrorCause.BUSY),
        ({"status": 500, "error": "Internal Server Error"}, ErrorCause.ENGINE),
        ({"error": True, "code": 422}, ErrorCause.REQUEST),
        ({"error": {"message": "x"}, "code": 400}, ErrorCause.REQUEST),
        ({"error": {"message": "x", "code": 500}, "status": 400}, ErrorCause.ENGINE),
        ({"error": {"error": {"message": "x"}, "type": "overloaded_error"}}, ErrorCause.BUSY),
        ({"error": "x"}, ErrorCause.ENGINE),
    ],
)
@pytest.mark.parametrize("kind", [JSON, EVENTS])
def test_the_cause_of_an_error_may_stand_beside_it(data: dict[str, Any], cause: ErrorCause, kind: int) -> None:
    reader = parser(TGI, kind)
    read(json.dumps(data).encode() if kind == JSON else event(data), 1000, reader)
    assert reader.error is not None
    assert reader.error.cause is cause


RESPONSE = {"type": "response.output_text.delta", "delta": "x"}
CREATED = {"type": "response.created", "response": {"id": "r", "instructions": "i" * 99, "usage": None}}
COMPLETED = {"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": None}}
STARTED = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
TEXT = {"type": "content_block_delta", "delta": {"text": "x"}}
STOPPED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
LINE = {"model": "m", "message": {"content": "x"}, "done": False}
TOKEN = {"token": {"text": "x"}, "generated_text": None, "details": None}
SAMPLE = {"text": "x", "meta_info": {"id": "s", "finish_reason": None, "prompt_tokens": 3, "completion_tokens": 1}}
SAMPLED = {"text": "x", "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, "completion_tokens": 1}}
BEGUN_BY_CLOSE = [
    (CHAT, [delta(), delta()], [delta("", finish_reason="stop")]),
    (CHAT, [delta(), delta()], ["[DONE]"]),
    (CHAT, [{"choices": [], "prompt_filter_results": []}, delta()], [delta(finish_reason="length"), {"choices": []}]),
    (CHAT, [{"choices": [{"text": "x", "finish_reason": None}]}], [{"choices": [], "usage": USAGE}, "[DONE]"]),
    (RESPONSES, [CREATED, RESPONSE], [COMPLETED]),
    (RESPONSES, [CREATED | {"tools": "t" * 600_000}, RESPONSE], [{**COMPLETED, "type": "response.incomplete"}]),
    (MESSAGES, [STARTED, TEXT], [STOPPED]),
    (MESSAGES, [STARTED, TEXT], [{"type": "message_stop"}]),
    (OLLAMA, [LINE, LINE], [{**LINE, "done": True}]),
    (OLLAMA, [{"response": "x", "done": False}], [{"response": "", "done": True, "eval_count": 3}]),
    (TGI, [TOKEN, TOKEN], [{**TOKEN, "generated_text": "xx"}]),
    (TGI, [TOKEN], [{**TOKEN, "details": {"finish_reason": "length", "generated_tokens": 1}}]),
    (SGLANG, [SAMPLE, SAMPLE], [SAMPLED]),
]


@pytest.mark.parametrize(("route", "begin", "end"), BEGUN_BY_CLOSE)
@pytest.mark.parametrize("cut", ["record", 7, 1 << 20])
def test_a_stream_that_a_close_ends_is_whole_with_the_end_of_its_format(
    route: Route, begin: list[Any], end: list[Any], cut: str | int
) -> None:
    def is_short(*records: Any, tail: bytes = b"", needs_end: bool = True, is_framed: bool = False) -> bool:
        lines = route is OLLAMA
        parts = [json.dumps(record).encode() + b"\n" if lines else event(record) for record in records] + [tail]
        if isinstance(cut, int):
            text = b"".join(parts)
            size = cut if len(text) < 100_000 else len(text)
            parts = [text[at : at + size] for at in range(0, len(text), size)]
        read = parser(route, LINES if lines else EVENTS)
        read.needs_end, read.is_framed = needs_end, is_framed
        for part in parts:
            read.feed(part)
        read.finish(complete=True)
        return read.is_short

    assert is_short(*begin)
    assert is_short(*begin, tail=b'{"response": "x' if route is OLLAMA else b'data: {"choices": [{"del')
    assert not is_short(*begin, needs_end=False), "no end is expected"
    states_end = route is not CHAT or "finish_reason" in json.dumps(begin[0])
    assert is_short(*begin, is_framed=True) == states_end, "a proxy may end the chunks of a broken stream in order"
    for is_framed in (False, True):
        assert not is_short(*begin, *end, is_framed=is_framed)
    assert not is_short(*begin, {"choices": [], "usage": USAGE}, is_framed=True) or route is not CHAT
    assert not is_short(*begin, {"error": {"message": "x", "code": 500}}), "it is an error, and no cut"


@pytest.mark.parametrize(
    "text",
    [
        b"data: 1\n\ndata: 2\n\n",
        b"data: hello\n\ndata: {half",
        event({"status": "pulling manifest"}) * 2,
        event({"type": "transcript.text.delta", "delta": "x"}),
        event({"type": "image_generation.partial_image"}),
        event({"done": False}),
        event({"token": 1}),
        event({"meta_info": {}}),
        event([1]),
        b": comment\n\n",
        b"",
    ],
)
@pytest.mark.parametrize("kind", [EVENTS, LINES])
def test_a_stream_of_another_format_has_no_end_that_is_known(text: bytes, kind: int) -> None:
    read = parser(CHAT, kind)
    read.needs_end = True
    read.feed(text if kind == EVENTS else text.replace(b"data: ", b"").replace(b"\n\n", b"\n"))
    read.finish(complete=True)
    assert not read.is_short


def test_an_end_without_usage_is_no_output() -> None:
    for route, kind, text, expected in (
        (OLLAMA, LINES, b'{"response": "x", "done": false}\n{"response": "", "done": true}\n', 1),
        (RESPONSES, EVENTS, stream(CREATED, RESPONSE, COMPLETED), 1),
    ):
        read = parser(route, kind)
        read.feed(text)
        for _ in range(2):
            read.finish(complete=True)
            assert (read.delivered, read.ended) == (expected, True)


@pytest.mark.parametrize("size", [1, 30, 100_000])
@pytest.mark.parametrize(
    "late",
    [{"choices": [], "usage": {"prompt_tokens": 999, "completion_tokens": 999}}, {"error": {"code": 500}}, delta("x")],
)
def test_what_follows_the_end_is_no_part_of_the_answer(late: dict[str, Any], size: int) -> None:
    reader = parser()
    read(WHOLE + DONE + event(late), size, reader)
    assert (reader.usage, reader.usage_is_final, reader.error, reader.ended) == (READ, True, None, True)


@pytest.mark.parametrize("size", [1, 30, 100_000])
@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("kind", [EVENTS, JSON])
def test_one_of_two_answers_that_the_engine_cut_makes_the_whole_a_cut(cut: int, size: int, kind: int) -> None:
    reasons = ["abort" if index == cut else "stop" for index in range(2)]
    ends = [{"index": index, "delta": {}, "finish_reason": reason} for index, reason in enumerate(reasons)]
    report = {"choices": [], "usage": USAGE}
    text = stream(delta("a"), delta("b", index=1), *({"choices": [end]} for end in ends), delta(index=1), report) + DONE
    reader = parser(kind=kind)
    reader.choices = 2
    read(text if kind == EVENTS else json.dumps({**report, "choices": ends}).encode(), size, reader)
    assert (reader.is_cut, reader.usage) == (True, READ)


PRESET_ROUTES = {route.name: route for preset in PRESETS for route in preset_routes(preset)}
WITH_FORM = sorted(name for name, route in PRESET_ROUTES.items() if AnswerFormat(route).members)


@pytest.mark.parametrize("size", [100, 100_000], ids=["short", "long"])
@pytest.mark.parametrize("name", WITH_FORM)
def test_the_answers_of_a_preset_have_a_member_of_its_api(name: str, size: int) -> None:
    route = PRESET_ROUTES[name]
    answer_format = AnswerFormat(route)
    member = min(answer_format.members)
    padding = {"padding": "y" * (6 * size)}
    for text, is_answer in (
        ({member: [1], **padding}, True),
        ({**padding, member: 0}, True),
        ({member: [1] * size, "error": None}, True),
        ({member: None, **padding}, False),
        ({"foo": {member: 1}, **padding}, False),
        ({"response": {member: 1}, **padding}, "response" in answer_format.members),
        ([[], padding], False),
        ([{member: 1}, padding], answer_format.is_list([b'{"%b": 1}' % member.encode()])),
        ([{"foo": [{member: 1}]}, padding], False),
        ("y" * size, answer_format.may_be_text),
    ):
        reader = parser(route, JSON)
        reader.needs_answer = reader.needs_json = True
        read(json.dumps(text).encode(), size, reader)
        assert (reader.error is None) == is_answer, str(text)[:100]
    assert not AnswerFormat(msgspec.structs.replace(route, source="routes.yaml:1")).members


SUBTITLES = b"1\n00:00:00,000 --> 00:00:01,000\nhello\n"


@pytest.mark.parametrize(
    ("name", "text", "is_answer"),
    [
        # vLLM, Jina and Cohere; SGLang and TEI
        ("vllm-rerank", b'{"id": "r", "results": [{"index": 0, "relevance_score": 0.9}], "usage": {}}', True),
        ("vllm-rerank-v1", b'[{"score": 0.9, "document": "d", "index": 0, "meta_info": {}}]', True),
        ("vllm-rerank-v2", b'{"detail": "no"}', False),
        ("vllm-score", b'{"object": "list", "data": [{"index": 0, "object": "score", "score": 1}]}', True),
        ("vllm-score-v1", b'{"scores": [[0.1, 0.9]], "object": "scoring"}', True),
        ("vllm-pooling", b'{"request_id": "p", "created_at": 1, "data": {"a": 1}}', True),
        ("vllm-tokenize", b'{"count": 1, "max_model_len": 8, "tokens": [1], "token_strs": null}', True),
        ("vllm-detokenize", b'{"prompt": "a"}', True),
        ("vllm-detokenize", b'{"text": "a"}', True),
        ("vllm-detokenize", b'{"content": "a"}', True),
        ("tgi-tokenize", b'[{"id": 4, "text": "test", "start": 0, "stop": 2}]', True),
        ("openai-audio-transcriptions", b'{"text": "hello", "usage": {"type": "duration", "seconds": 2}}', True),
        ("openai-audio-transcriptions", b'{"task": "transcribe", "duration": 1, "segments": [], "text": ""}', True),
        ("openai-audio-translations", b'"hello"', True),
        ("openai-audio-translations", b'{"detail": "busy"}', False),
        ("openai-audio-transcriptions", SUBTITLES, True),
        ("openai-audio-transcriptions", b"WEBVTT\n\n00:00.000 --> 00:01.000\nhello\n", True),
        ("openai-audio-transcriptions", SUBTITLES * 20_000, True),
        ("openai-audio-transcriptions", b"42", True),
        ("openai-audio-transcriptions", b"", True),
        ("kserve-generate", b'{"model_name": "m", "model_version": "1", "text_output": "a"}', True),
        ("kserve-generate", b'{"model_name": "m", "model_version": "1", "OUTPUT0": [1]}', True),
        ("kserve-version-generate", b'{"detail": "no"}', False),
        ("automatic1111-txt2img", b'{"images": ["aW1n"], "parameters": {}, "info": "{}"}', True),
        ("automatic1111-img2img", b'{"images": ["' + b"a" * 3_000_000 + b'"], "info": "{}"}', True),
        ("automatic1111-txt2img", b'{"detail": "' + b"a" * 3_000_000 + b'"}', False),
        ("comfyui-prompt", b'{"prompt_id": "p", "number": 1, "node_errors": {}}', True),
    ],
)
def test_the_answers_of_engines_have_the_form_of_their_api(name: str, text: bytes, *, is_answer: bool) -> None:
    reader = parser(PRESET_ROUTES[name], JSON)
    reader.needs_answer = True
    read(text, 1000, reader)
    assert (reader.error is None) == is_answer


@pytest.mark.parametrize("member", ["model_name", "text_output"])
@pytest.mark.parametrize("name", ["kserve-generate-stream", "kserve-version-generate-stream"])
def test_streams_of_triton_have_events_of_its_api(name: str, member: str) -> None:
    for text, is_answer in (
        (stream({member: "a"}, {member: "b"}), True),
        (stream({"foo": 1}), False),
        (stream({"error": "no slots"}), False),
        (stream({member: "a"}, {"error": "no slots"}), False),
    ):
        reader = parser(PRESET_ROUTES[name])
        reader.needs_event = True
        read(text, 1000, reader)
        assert (reader.error is None) == is_answer


@pytest.mark.parametrize("text", [b'{"choices": []}', b"ok", b'{"choices": [' + b"1," * 400_000 + b"1]}"])
def test_a_text_that_is_read_to_its_end_twice_is_not_an_empty_one(text: bytes) -> None:
    reader = parser(CHAT, JSON)
    reader.needs_answer = True
    reader.feed(text)
    for _ in range(2):
        reader.finish(complete=True)
        assert reader.error is None
    empty = parser(CHAT, JSON)
    empty.needs_answer = True
    empty.finish(complete=True)
    assert empty.error is not None


@pytest.mark.parametrize("size", [1, 30, 100_000])
@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("kind", [EVENTS, JSON])
def test_one_of_several_prompts_that_the_engine_cut_makes_the_whole_a_cut(cut: int, size: int, kind: int) -> None:
    def answer(index: int) -> dict[str, Any]:
        reason = {"type": "abort" if index == cut else "stop"}
        return {"index": index, "text": "x", "meta_info": {"prompt_tokens": 6, "finish_reason": reason}}

    begun = [{"index": index, "text": "x", "meta_info": {"prompt_tokens": 6}} for index in range(2)]
    reader = parser(SGLANG, kind)
    reader.needs_answer = kind == JSON
    text = stream(*begun, answer(0), answer(1)) if kind == EVENTS else json.dumps([answer(0), answer(1)]).encode()
    read(text, size, reader)
    unknown = Usage(12, 0, answer_is_known=False)
    assert (reader.is_cut, reader.error, reader.usage) == (True, None, unknown)


def test_a_list_of_other_objects_is_no_list_of_answers() -> None:
    reader = parser(SGLANG, JSON)
    reader.needs_answer = True
    read(b'[{"foo": 1}]', 100, reader)
    assert reader.error is not None
