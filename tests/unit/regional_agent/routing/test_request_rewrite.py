"""The request that an endpoint receives has exactly the changes of the endpoint's entry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import request_fields
from regional_agent.routing.request_rewrite import RequestRewrite, can_rename

OPENAI = {route.path.encode(): route for route in OPENAI_ROUTES}
CHAT = b"/v1/chat/completions"
UPLOAD = b"/v1/audio/transcriptions"
FORM = (b"content-type", b"multipart/form-data; boundary=b-1")
RENAMED = RequestRewrite("", (), {"m": "org/big m"})


def request(
    body: bytes, *headers: tuple[bytes, bytes], target: bytes = CHAT, whole: bool = True, length: int | None = None
) -> Request:
    """A request that admission has read."""
    made = Request()
    made.method, made.path, made.target = b"POST", target.partition(b"?")[0], target
    made.route = OPENAI[made.path]
    made.body, made.whole, made.headers = body, whole, list(headers)
    made.length = len(body) if whole else length
    made.index()
    assert not isinstance(request_fields(made), Refusal)
    return made


def part(name: bytes, value: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b'--b-1\r\nContent-Disposition: form-data; name="%b"\r\n%b\r\n%b\r\n' % (name, lines, value)


letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
other_keys = st.text(letters).filter(lambda key: key.casefold() not in ("model", "n"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("model"), inner, max_size=3),
    max_leaves=10,
)


@given(
    before=st.dictionaries(other_keys, json_values, max_size=3),
    after=st.dictionaries(other_keys, json_values, max_size=3),
    engine_name=st.text(min_size=1, max_size=20),
    ascii_only=st.booleans(),
)
def test_only_the_name_of_the_model_changes(
    before: dict[str, Any], after: dict[str, Any], engine_name: str, ascii_only: bool
) -> None:
    fields = {**before, "model": "m", **{key: value for key, value in after.items() if key not in before}}
    sent = request(json.dumps(fields, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    rewritten = RequestRewrite("", (), {"m": engine_name}).apply(sent, "m")
    assert json.loads(rewritten.body) == {**fields, "model": engine_name}
    assert list(json.loads(rewritten.body)) == list(fields)
    assert rewritten.length == len(rewritten.body)
    assert json.loads(sent.body) == fields, "a retry elsewhere sends the client's request"


def test_a_model_without_another_name_is_sent_as_it_is() -> None:
    sent = request(b'{"model": "other"}')
    assert RENAMED.apply(sent, "other").body == sent.body


@pytest.mark.parametrize(
    "body", [b'{"mod\\u0065l": "m"}', b'{"model": "\\u006d"}', b'{"x": {"model": "n"}, "mod\\u0065l": "m"}']
)
def test_a_name_written_with_escapes_cannot_be_replaced(body: bytes) -> None:
    sent = request(body)
    assert not can_rename(sent)
    with pytest.raises(ValueError, match="cannot be replaced"):
        RENAMED.apply(sent, "m")


def test_a_name_after_a_long_prompt_is_renamed() -> None:
    long = b'{"messages": [' + b'"a", ' * 60_000 + b'"b"], "model": "m"}'
    assert RENAMED.apply(request(long), "m").body == long.replace(b'"m"}', b'"org/big m"}')


def test_a_name_that_may_still_arrive_cannot_be_replaced() -> None:
    late = request(part(b"file", b"x"), FORM, (b"x-model", b"m"), target=UPLOAD, whole=False)
    assert not can_rename(late)


def test_a_form_field_is_renamed() -> None:
    body = part(b"file", b"\0\r\n--b" * 40_000) + part(b"model", b"m") + part(b"temperature", b"0") + b"--b-1--\r\n"
    for whole in (True, False):
        sent = request(body if whole else body[:-9], FORM, target=UPLOAD, whole=whole)
        rewritten = RENAMED.apply(sent, "m")
        assert rewritten.body == bytes(sent.body).replace(part(b"model", b"m"), part(b"model", b"org/big m"))
        assert rewritten.length == (len(rewritten.body) if whole else None)


def test_a_form_field_that_declares_its_length_cannot_be_replaced() -> None:
    body = part(b"model", b"m", b"Content-Length: 1") + b"--b-1--\r\n"
    assert not can_rename(request(body, FORM, target=UPLOAD))


def test_names_beside_the_body_are_renamed() -> None:
    sent = request(b"\0", (b"content-type", b"audio/wav"), (b"x-model", b"m"), target=UPLOAD + b"?a=b&model=m&c=%2F")
    rewritten = RENAMED.apply(sent, "m")
    assert rewritten.target == UPLOAD + b"?a=b&model=org%2Fbig%20m&c=%2F"
    assert (b"x-model", b"org/big m") in rewritten.headers
    assert (rewritten.body, sent.target) == (b"\0", UPLOAD + b"?a=b&model=m&c=%2F")


def test_base_path_and_headers_replace_those_of_the_client() -> None:
    headers = (b"x-api-key", b"client"), (b"x_api_key", b"client"), (b"accept", b"*/*")
    sent = request(b'{"model": "m"}', *headers, target=CHAT + b"?beta=1")
    sent.upstream_lines = b"x-api-key: client\r\n"
    rewrite = RequestRewrite("/llama", ((b"x-api-key", b"secret"), (b"x-team", b"a")), {})
    rewritten = rewrite.apply(sent, "m")
    assert rewritten.target == b"/llama/v1/chat/completions?beta=1"
    assert (rewritten.headers, rewritten.upstream_lines) == ([(b"accept", b"*/*")], b"")
    assert rewrite.header_lines == b"x-api-key: secret\r\nx-team: a\r\n"
    assert sent.headers == list(headers)
