"""A body is rewritten for another model in that field alone, or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.presets.openai import OPENAI_ROUTES
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import replace_model

CHAT = OPENAI_ROUTES[0]


def request(body: bytes, *headers: tuple[bytes, bytes]) -> Request:
    chat = Request()
    chat.method, chat.path = b"POST", b"/v1/chat/completions"
    chat.route = CHAT
    chat.headers = list(headers)
    chat.body, chat.length, chat.whole = body, len(body), True
    return chat


def test_nothing_but_the_name_changes() -> None:
    body = b'{ "messages": [{"model": "not me", "content": "\\"model\\": x"}],\n "model" : "a", "n":1.50 }'
    chat = request(body)
    asked = replace_model(chat, "org/b:1.2")
    assert asked is not None
    assert asked.model == "org/b:1.2"
    assert chat.body == body.replace(b'"a"', b'"org/b:1.2"')
    assert chat.length == len(chat.body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "c"}',
        b'{"mod\\u0065l": "a"}',
        b'{"model": "\\u0061"}',
        b'{"messages": []}',
        b"not json",
        b"",
    ],
)
def test_what_might_be_read_otherwise_is_left_alone(body: bytes) -> None:
    chat = request(body)
    assert replace_model(chat, "b") is None
    assert chat.body == body


def test_uploads_and_what_is_not_whole_are_left_alone() -> None:
    upload = request(b'{"model": "a"}', (b"content-type", b"multipart/form-data; boundary=x"))
    upload.path = b"/v1/images/edits"
    upload.route = next(route for route in OPENAI_ROUTES if route.path == "/v1/images/edits")
    assert replace_model(upload, "b") is None
    coming = request(b'{"model": "a"}')
    coming.whole = False
    assert replace_model(coming, "b") is None


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda x: st.lists(x, max_size=3)
        ),
        max_size=5,
    ),
    st.sampled_from(["a", "org/model-1.5:free"]),
    st.booleans(),
)
def test_all_other_fields_are_unchanged(rest: dict[str, object], model: str, ascii_only: bool) -> None:
    wanted = {**{key: value for key, value in rest.items() if key not in OURS}, "model": "before"}
    chat = request(json.dumps(wanted, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    if replace_model(chat, model) is not None:
        assert json.loads(chat.body) == {**wanted, "model": model}
    else:
        assert json.loads(chat.body) == wanted


OURS = {"model", "stream", "max_tokens", "max_completion_tokens"}
