from __future__ import annotations

import json

import pytest

from penstock.routes.classify import RequestFields
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import model_span, named_model, request_fields
from tests.support.codings import gzipped

OPENAI = {route.path.encode(): route for route in OPENAI_ROUTES}
UPLOAD = b"/v1/images/edits"
CHAT = b"/v1/chat/completions"


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
        (b'{"model": "m", "messages": []}', b"m"),
        (b'{"messages": [{"role": "no"}], "model" :\t"m", "x": ""}', b"m"),
        (b'{"messages": [{"model": "no"}], "model": "m", "x": ""}', b"m"),
        (b'{"a": {"model": "no"}, "mod\\u0065l": "m"}', None),
        (b'{"a": "\\"model\\": \\"no\\"", "model" : "m"}', b"m"),
        (b'{"model": "\\u006d"}', None),
        (json.dumps({"x": "é\\" * 1000, "model": "m"}).encode(), b"m"),
        (b'{"a": {"model": "no"}, "b": [' + b"1,[]," * 60_000 + b'1], "model": "m"}', None),
    ],
)
def test_the_place_of_the_top_level_model(body: bytes, model: bytes | None) -> None:
    span = model_span(body)
    assert (None if span is None else body[slice(*span)]) == model


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
        (b"model", None),
        (b"models=a", None),
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
        ([b"a"], b"?model=a&model=a"),
        ([b"a"], b"?model=a&Model=b"),
        ([], b"?model=a&%6dodel=b"),
        ([], b"?x=1;model=b&model=a"),
        ([b"a"], b"?" + b"x=1&" * 65),
    ],
)
def test_names_beside_a_body_have_to_agree(headers: list[bytes], query: bytes) -> None:
    names = [(b"x-model", name) for name in headers]
    upload = request(b"RIFF", (b"content-type", b"audio/wav"), *names, target=UPLOAD + query)
    assert isinstance(named_model(upload), Refusal)
    tunnel = request(b"", *names, target=b"/v1/realtime" + query)
    tunnel.upgrade = b"websocket"
    assert isinstance(request_fields(tunnel), Refusal)


def test_nothing_named_is_refused_with_a_remedy() -> None:
    refusal = request_fields(request(b"RIFF", (b"content-type", b"audio/wav"), whole=True))
    assert isinstance(refusal, Refusal)
    assert "x-model" in refusal.detail


@pytest.mark.parametrize(
    "rest",
    [
        b'"a":[' + b"[]," * 300_000 + b"[]]",
        b'"a":"' + b'\\"' * 3_000_000 + b'"',
        b'"a"' + b" " * 3_000_000 + b":1",
        b",".join(b'"%d":1' % number for number in range(300_000)),
        b'"a":' + b"[" * 3_000_000,
        b'"user":[' + b"[]," * 300_000 + b"[]]",
        b'"max_tokens":' + b"9" * 3_000_000,
    ],
)
def test_bodies_made_to_be_slow_are_read_soon(rest: bytes) -> None:
    for body in (b'{"model":"m",' + rest + b"}", b"{" + rest + b',"model":"m"}'):
        assert isinstance(request_fields(request(body, target=CHAT, whole=True)), RequestFields | Refusal)
        model_span(body)
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
        b'{"model": "a", "Model": "b"}',
        b'{"model": "a", "\\u004dODEL": "b"}',
        b'{"Model": "b"}',
        b'{"model": "a", "model\\u0000": "b"}',
        b'{"model": "a", "Stream": true}',
        b'{"model": "a", "stream": true, "stream": false}',
        b'{"model": "a", "MAX_TOKENS": 1000000}',
        b'{"model": "a", "max_tokens": 1, "max_tokens": 1000000}',
        '{"model": "a", "max_to\u212aens": 1000000}'.encode(),
        '{"model": "a", "\u017ftream": true}'.encode(),
        b'{"model": "a", "Max_Completion_Tokens": 1000000}',
        b'{"model": "a", "N": 100}',
        b'{"model": "a", "USER": "u"}',
        b'{"model": "a", "Prompt_cache_key": "u"}',
        b'{"model": "a", "Previous_Response_Id": "r"}',
        b'{"model": "a", "messages": [], "messages": []}',
        b'{"model": "a", "Stream_options": {}}',
    ],
)
@pytest.mark.parametrize("path", [CHAT, b"/v1/responses", UPLOAD])
def test_what_engines_would_read_differently_is_refused(body: bytes, path: bytes) -> None:
    refusal = request_fields(request(body, target=path, whole=True))
    assert isinstance(refusal, Refusal)
    assert refusal.detail.startswith("the request body is ambiguous: ")
    assert len(refusal.detail) < 250


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "stream": "true"}',
        b'{"model": "a", "stream": 1}',
        b'{"model": "a", "max_tokens": "100"}',
        b'{"model": "a", "max_tokens": 1e999}',
        b'{"model": "a", "max_completion_tokens": true}',
        b'{"model": "a", "n": "2"}',
        b'{"model": "a", "n": [2]}',
        b'{"model": ["a"]}',
        b'{"model": null}',
        b'{"model": 1}',
        b"{}",
        b'["model"]',
        b'"model"',
        b"null",
        b"",
        b'{"model": "a",}',
        b'{"model": "a"}{"model": "b"}',
        b'\xef\xbb\xbf{"model": "a"}',
        b'{"model": "a", "x": "\xff"}',
        '{"model": "a"}'.encode("utf-16"),
    ],
)
def test_what_engines_would_convert_or_refuse_is_refused(body: bytes) -> None:
    refusal = request_fields(request(body, target=CHAT, whole=True))
    assert isinstance(refusal, Refusal)
    assert refusal.detail.startswith("the ")
    assert type(refusal.detail) is str, "the response is encoded by type"


def test_numbers_are_read_in_every_notation() -> None:
    body = b'{"model": "a", "max_tokens": 1e2, "n": 2.0, "x": "\xc3\xa9", "mess\\u0061ges": []}'
    fields = request_fields(request(body, target=CHAT, whole=True))
    assert isinstance(fields, RequestFields)
    assert {pointer: bytes(value) for pointer, value in fields.values.items()} == {
        "/model": b'"a"',
        "/max_tokens": b"1e2",
        "/n": b"2.0",
        "/messages": b"[]",
    }


@pytest.mark.parametrize("content_type", [b"application/json; charset=utf-16", b"text/plain;charset=latin1"])
def test_json_in_another_charset_is_refused(content_type: bytes) -> None:
    declared = (b"content-type", content_type)
    refusal = request_fields(request(b'{"model": "a"}', declared, target=CHAT, whole=True))
    assert isinstance(refusal, Refusal)
    assert "charset" in refusal.detail


def test_a_model_deeper_in_the_body_is_another_matter() -> None:
    body = b'{"tools": [{"type": "image_generation", "model": "b"}], "model": "a", "metadata": {"model": "c"}}'
    asked = request_fields(request(body, target=b"/v1/responses", whole=True))
    assert not isinstance(asked, Refusal)
    assert asked.model == "a"


def test_a_body_that_is_packed_is_refused_with_a_remedy() -> None:
    packed = (b"content-encoding", b"gzip")
    refusal = request_fields(request(gzipped(b'{"model": "a"}'), packed, target=b"/v1/responses", whole=True))
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
