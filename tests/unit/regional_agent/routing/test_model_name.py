from __future__ import annotations

import gzip
import json

import pytest

from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.routing.body_checks import JsonCheck
from regional_agent.routing.model_name import named_model, request_fields

OPENAI = {route.path.encode(): route for route in OPENAI_ROUTES}
UPLOAD = b"/v1/images/edits"


def request(body: bytes, *headers: tuple[bytes, bytes], target: bytes = UPLOAD, whole: bool = False) -> Request:
    made = Request()
    made.path = target.partition(b"?")[0]
    made.route = OPENAI.get(made.path)
    made.body, made.target, made.whole = body, target, whole
    made.headers = list(headers)
    return made


FORM = (b"content-type", b'multipart/form-data; charset=utf-8; boundary="b-1"')


def part(name: str, value: bytes) -> bytes:
    return b'--b-1\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model": "m", "messages": [', "m"),
        (b'{"messages": [{"role": "no"}], "model": "m", "x": "', "m"),
        (b'{"messages": [{"model": "no"}], "model": "m", "x": "', None),
        (b'{"mod\\u0065l": "no", "model": "m", "x": "', None),
        ('{"a": "x"'.encode("utf-16"), None),
        (b'{"a": "\\"model\\": \\"no\\"", "model" : "m"', "m"),
        (b'{"a": {"model": "no"}, "b": [', None),
        (b'{"a": "model", "b": "', None),
        (b'{"model": "half', None),
        (b'{"x": ' + b"[" * 100_000, None),
        (b'"model": "m"', None),
        (json.dumps({"x": "é\\" * 1000, "model": "m"}).encode()[:-1], "m"),
    ],
)
def test_the_top_level_model_of_json_that_is_not_whole(body: bytes, model: str | None) -> None:
    assert named_model(request(body)) == model


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (part("model", b"m") + part("file", b"x"), "m"),
        (part("file", b"name=model\r\n\r\nno") + part("model", b"m") + b"--b-1--", "m"),
        (part("models", b"no") + part("file", b""), None),
        (part("model", b"half")[:-2], None),
        (part("model", b"m")[:-10], None),
        (b"", None),
    ],
)
def test_the_model_field_of_a_form(body: bytes, model: str | None) -> None:
    assert named_model(request(body, FORM)) == model


@pytest.mark.parametrize(
    ("query", "model"),
    [
        (b"model=a%20b", "a b"),
        (b"model=%C3%A9", "\u00e9"),
        (b"model=%ff", "\ufffd"),
        (b"model=a&model=b", None),
        pytest.param(b"x=1&" * 65 + b"model=a", None, id="too-many"),
        (b"model", None),
    ],
)
def test_a_query_names_one_model_or_none(query: bytes, model: str | None) -> None:
    asked = request(b"RIFF", (b"content-type", b"audio/wav"), target=UPLOAD + b"?" + query)
    assert named_model(asked) == model


def test_the_model_in_the_body_precedes_other_fields() -> None:
    beside = (b"x-model", b"header")
    assert named_model(request(part("model", b"form") + b"--b-1--", FORM, beside)) == "form"
    assert (
        named_model(request(b"RIFF", (b"content-type", b"audio/wav"), target=UPLOAD + b"?a=1&model=query")) == "query"
    )
    whole = request_fields(request(b'{"model": "body"}', beside, whole=True))
    assert not isinstance(whole, Refusal)
    assert whole.model == "body"


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([b"a"], b"?model=b"),
        ([b"a", b"b"], b""),
        ([b"a", b"b"], b"?model=a"),
    ],
)
def test_names_beside_a_body_have_to_agree(headers: list[bytes], query: bytes) -> None:
    names = [(b"x-model", name) for name in headers]
    upload = request(b"RIFF", (b"content-type", b"audio/wav"), *names, target=UPLOAD + query)
    assert isinstance(named_model(upload), Refusal)
    tunnel = request(b"", *names, target=b"/v1/realtime" + query)
    tunnel.upgrade = b"websocket"
    assert isinstance(request_fields(tunnel), Refusal)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b", "x": "',
        b'{"x": "y", "model": "b',
        b'{"metadata": {"model": "a"}, "x": "',
        b'{"a": [' + b"[]," * 60_000 + b'[]], "model": "b", "x": "',
        b'\xef\xbb\xbf{"model": "b", "x": "',
        '{"model": "b", "x": "'.encode("utf-16-le"),
        '{"model": "b", "x": "'.encode("utf-16-be"),
        '{"model": "b", "x": "'.encode("utf-16"),
        ' {"model": "b", "x": "'.encode("utf-32"),
    ],
)
def test_a_header_does_not_route_a_body_that_may_name_another_model(body: bytes) -> None:
    refusal = request_fields(request(body, (b"x-model", b"header"), target=b"/v1/chat/completions"))
    assert isinstance(refusal, Refusal)


def test_a_header_routes_a_body_without_a_model() -> None:
    early = request(b'{"messages": [', (b"x-model", b"header"), target=b"/v1/chat/completions")
    fields = request_fields(early)
    assert not isinstance(fields, Refusal)
    assert fields.model == "header"
    assert early.body_check is not None
    assert early.body_check.feed(b'], "model": "b"}')


def test_nothing_named_is_refused_with_a_remedy() -> None:
    refusal = request_fields(request(b"RIFF", (b"content-type", b"audio/wav"), whole=True))
    assert isinstance(refusal, Refusal)
    assert "x-model" in refusal.detail


def test_bodies_made_to_be_slow_are_given_up_soon() -> None:
    assert named_model(request(b'{"a":[' + b"[]," * 3_000_000)) is None
    assert named_model(request(b'{"a":"' + b'\\"' * 3_000_000)) is None
    assert named_model(request(b'{"a"' + b" " * 3_000_000)) is None
    assert named_model(request(b'{"a":"' + b'"a" :"' * 1_000_000)) is None
    assert isinstance(named_model(request(b"--b-1\r\n\r\n\r\n" * 1_000_000, FORM)), Refusal)


@pytest.mark.parametrize("kind", [b"application/octet-stream", b"multipart/form-data; boundary=b", b"image/png"])
def test_a_content_type_cannot_hide_the_model_that_an_engine_reads(kind: bytes) -> None:
    headers = ((b"content-type", kind), (b"x-model", b"another"))
    asked = request_fields(request(b'{"model": "body"}', *headers, target=b"/v1/chat/completions", whole=True))
    assert not isinstance(asked, Refusal)
    assert asked.model == "body"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "messages": [], "model": "a"}',
        b'{"model": "a", "\\u006dodel": "b"}',
        b'{"m\\u006Fdel": "a", "model": "b"}',
        b'{"model": "a"' + b', "model": "a"' * 1_000_000 + b"}",
    ],
)
def test_of_two_models_engines_would_read_different_ones_so_neither_is_taken(body: bytes) -> None:
    refusal = request_fields(request(body, target=b"/v1/chat/completions", whole=True))
    assert isinstance(refusal, Refusal)
    assert "repeated" in refusal.detail


@pytest.mark.parametrize(
    "again", [b'"model": "b"}', b'"mod\\u0065l": "b"}', b'"\\u006D\\u006f\\u0064\\u0065\\u006C":1}']
)
def test_a_second_model_in_the_part_that_arrives_after_routing_is_found(again: bytes) -> None:
    early = request(b'{"model": "a", "x": "', target=b"/v1/chat/completions")
    fields = request_fields(early)
    assert not isinstance(fields, Refusal)
    check = early.body_check
    assert check is not None
    rest = b'\\"model\\": model", ' + again
    assert any(check.feed(rest[at : at + 1]) for at in range(len(rest)))
    assert not JsonCheck(early.body).feed(rest.replace(again, b"}"))


@pytest.mark.parametrize("cut", range(1, len('"model"')))
def test_a_second_model_across_the_end_of_the_routed_part_is_found(cut: int) -> None:
    body = b'{"model": "a", "x": "y", "model": "b"}'
    end = body.rindex(b'"model"') + cut
    early = request(body[:end], target=b"/v1/chat/completions")
    fields = request_fields(early)
    assert not isinstance(fields, Refusal)
    assert fields.model == "a"
    check = early.body_check
    assert check is not None
    assert check.feed(body[end:])


def test_a_model_at_the_end_of_the_routed_part_is_not_found_again() -> None:
    early = request(b'{"x": "y", "model": "a"', target=b"/v1/chat/completions")
    assert not isinstance(request_fields(early), Refusal)
    check = early.body_check
    assert check is not None
    assert not check.feed(b', "messages": []}')


def test_a_model_deeper_in_the_body_is_another_matter() -> None:
    body = b'{"tools": [{"type": "image_generation", "model": "b"}], "model": "a", "metadata": {"model": "c"}}'
    asked = request_fields(request(body, target=b"/v1/responses", whole=True))
    assert not isinstance(asked, Refusal)
    assert asked.model == "a"


def test_a_body_that_is_packed_is_refused_with_a_remedy() -> None:
    packed = (b"content-encoding", b"gzip")
    refusal = request_fields(request(gzip.compress(b'{"model": "a"}'), packed, target=b"/v1/responses", whole=True))
    assert isinstance(refusal, Refusal)
    assert "Content-Encoding" in refusal.detail


def test_what_openai_calls_nullable_may_be_null() -> None:
    asked = request_fields(request(b'{"model": "m", "stream": null, "max_tokens": null}', target=b"/v1/x", whole=True))
    assert not isinstance(asked, Refusal)
    assert not asked.stream


def test_a_name_that_no_model_has_is_not_repeated() -> None:
    refusal = request_fields(request(b'{"model": "' + b"x" * 100_000 + b'"}', whole=True))
    assert isinstance(refusal, Refusal)
    assert len(refusal.detail) < 200
