"""The functions that read one value of an answer at its place, each with the inputs between which it decides."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.answers.answer_errors import ErrorCause, error_in
from penstock.answers.answer_format import AnswerFormat, AnswerFormats
from penstock.answers.answer_usage import IndexedAnswers, read_array
from penstock.answers.event_splitter import event_fields
from penstock.answers.held_text import MAX_UNDECIDED_BYTES, HeldText, begins_json
from penstock.answers.json_reducer import wanted_members
from penstock.answers.openai_answer import usage_of_answer
from penstock.answers.stream_ends import last_record
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import Fields, members_of
from penstock.answers.values import AnswerIds, finish_reason_in, item_ids_in, outputs_in, text_of
from penstock.routes.presets.preset_registry import preset_routes

ROUTES = {route.name: route for preset in ("openai", "sglang") for route in preset_routes(preset)}
ITEM = "msg_0123456789abcdef"


def fields(answer: dict[str, Any]) -> Fields:
    found = members_of(json.dumps(answer).encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (399, ErrorCause.REQUEST),
        (400, ErrorCause.REQUEST),
        (499, ErrorCause.REQUEST),
        (500, ErrorCause.ENGINE),
        (599, ErrorCause.ENGINE),
        (600, ErrorCause.REQUEST),
    ],
)
def test_a_status_of_an_error_precedes_its_type(code: int, cause: ErrorCause) -> None:
    error = error_in(fields({"error": {"code": code, "type": "invalid_request_error"}}))
    assert error is not None
    assert error.cause is cause


@pytest.mark.parametrize("space", ["", " "])
def test_an_event_with_a_field_error_is_an_error(space: str) -> None:
    event = f'error:{space}{{"message":"full"}}\n\n'.encode()
    assert event_fields(event) == (b"error", b'{"message":"full"}')


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("records", [1, 2, 3])
def test_the_last_record_of_a_part_is_found(records: int, end: str) -> None:
    part = "".join(f'data: {{"at": {number}}}{end}{end}' for number in range(records)).encode()
    assert last_record(part, lines=False) == fields({"at": records - 1})


def test_a_text_is_read_up_to_its_bound() -> None:
    assert [text_of(msgspec.Raw(b'"abcd"'), chars) for chars in (3, 4, 5)] == ["", "abcd", "abcd"]


def test_the_identifiers_of_items_are_those_of_an_answer_or_of_its_last_event() -> None:
    output = {"output": [{"id": ITEM}, {"type": "without"}, {"id": "7"}]}
    assert item_ids_in(fields(output)) == item_ids_in(fields({"response": output})) == (ITEM,)
    assert item_ids_in(fields({"id": "resp_1"})) == ()


def test_only_the_first_identifiers_of_an_answer_are_read() -> None:
    ids = AnswerIds((("id",), ("response", "id")), has_items=True)
    assert ids.records_left > 0
    ids.read(fields({"type": "response.created", "response": {"id": "resp_1"}}))
    assert (ids.object_id, ids.records_left, ids.item_ids) == ("resp_1", 0, ())
    ids.read(fields({"id": "resp_2", "output": [{"id": ITEM}]}))
    assert (ids.object_id, ids.item_ids) == ("resp_1", (ITEM,))


@pytest.mark.parametrize(("content", "outputs"), [("word", 1), ("", 0)])
def test_a_record_with_a_message_has_output_if_the_message_has_text(content: str, outputs: int) -> None:
    assert outputs_in(fields({"message": {"role": "assistant", "content": content}, "done": False})) == outputs


def test_a_finish_reason_without_a_type_is_none() -> None:
    assert finish_reason_in(fields({"meta_info": {"finish_reason": {"type": "stop"}}})) == "stop"
    assert finish_reason_in(fields({"meta_info": {"finish_reason": {"matched": 5}}})) == ""


def test_only_answers_that_later_requests_continue_have_items() -> None:
    formats = AnswerFormats()
    responses, chat = ROUTES["openai-responses"], ROUTES["openai-chat-completions"]
    assert [formats.of(route).has_items for route in (responses, chat)] == [True, False]
    without = msgspec.structs.replace(responses, previous_object="")
    assert (AnswerFormat(without).has_items, bool(AnswerFormat(without).id_paths)) == (False, True)


def test_the_format_of_a_route_is_prepared_once_for_each_policy() -> None:
    formats, route = AnswerFormats(), ROUTES["openai-responses"]
    assert formats.of(route) is formats.of(route)
    replaced = msgspec.structs.replace(route, object_id="/key")
    assert formats.of(replaced).route is replaced


def test_the_beginning_of_a_text_shows_whether_it_may_be_json() -> None:
    for begun in (b"{", b" [1", b'"', b"-", b"nu", b"null", b"false", b"NaN", b""):
        assert begins_json(begun), begun
    for begun in (b"hello", b"<html>", b"no", b"x"):
        assert not begins_json(begun), begun


def held(text: bytes) -> HeldText:
    made = HeldText()
    made.add(text, {}, frozenset())
    return made


def test_a_short_text_is_undecided_only_where_it_may_be_an_error() -> None:
    text, media = held(b"Service unavailable"), held(b"\x89PNG")
    assert [text.is_undecided(needs_answer, False) for needs_answer in (True, False)] == [True, False]
    assert [each.is_undecided(True, True) for each in (text, media)] == [True, False]


@pytest.mark.parametrize(("beyond", "undecided"), [(0, True), (1, False)])
def test_a_json_text_is_undecided_up_to_a_size(beyond: int, undecided: bool) -> None:
    begun = b'{"text": "'
    assert held(begun + b"x" * (MAX_UNDECIDED_BYTES - len(begun) + beyond)).is_undecided(True, False) is undecided
    assert [held(b"{" + b"x" * size).is_undecided(False, False) for size in (510, 511)] == [True, False]


def test_wanted_members_share_their_beginning_and_a_whole_member_includes_its_parts() -> None:
    assert wanted_members(["/a/b", "/a/c", "/d"]) == {"a": {"b": None, "c": None}, "d": None}
    assert wanted_members(["/a/b/c", "/a"]) == wanted_members(["/a", "/a/b/c"]) == {"a": None}


def one_pass(answer: dict[str, Any], before: Usage | None = None) -> tuple[Usage, bool] | None:
    return usage_of_answer(json.dumps(answer).encode(), before, generates=True)


def test_an_answer_with_usage_is_read_in_one_pass() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    assert one_pass({"usage": usage, "choices": [{}]}) == (Usage(5, 2), True)
    assert one_pass({"usage": usage, "choices": [], "error": None}) == (Usage(5, 2), False)
    assert one_pass({"usage": {"prompt_tokens": 5}, "choices": []}) == (Usage(5, 0, answer_is_known=False), False)


@pytest.mark.parametrize("other", [{"error": {"message": "full"}}, {"type": "message"}, {"status": "failed"}])
def test_an_answer_of_another_form_is_read_by_place(other: dict[str, Any]) -> None:
    assert one_pass({"usage": {"prompt_tokens": 5, "completion_tokens": 2}, **other}) is None


def test_what_a_later_report_omits_stays_as_it_was() -> None:
    unknown = Usage(5, 0, answer_is_known=False)
    for before, report, usage in (
        (unknown, {"prompt_tokens": 6}, Usage(6, 0, answer_is_known=False)),
        (Usage(5, 2), {"prompt_tokens": 6}, Usage(6, 2)),
        (Usage(5, 2, 1), {"completion_tokens": 3}, Usage(5, 3, 1)),
    ):
        assert one_pass({"usage": report, "choices": []}, before) == (usage, False)
    assert one_pass({"usage": {"completion_tokens": 3}, "choices": []}) is None


def indexed(index: int, reason: str | None = None) -> Fields:
    meta = {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": reason}
    return fields({"index": index, "meta_info": meta})


def test_a_stream_of_several_answers_has_ended_with_all_of_them() -> None:
    answers = IndexedAnswers(AnswerFormat(ROUTES["sglang-generate"]).places)
    reasons = []
    for index, reason in ((0, None), (1, "abort"), (2, "stop"), (0, "length")):
        assert answers.read(indexed(index, reason))
        reasons.append(answers.finish_reason)
    assert reasons == ["", "", "", "abort"]


def test_the_error_of_several_answers_is_the_first() -> None:
    texts = [
        b'{"text": "a"}',
        b'{"error": {"message": "first"}}',
        b'{"error": {"message": "second"}}',
        b'{"text": "b"}',
    ]
    _, error, _ = read_array(texts, AnswerFormat(ROUTES["sglang-generate"]).places)
    assert error is not None
    assert error.message == "first"
