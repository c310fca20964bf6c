"""The flag by which a request asks for the usage of a stream: set where the client does not, and removed again."""

from __future__ import annotations

import json

import pytest

from penstock.answers.stream_usage_flag import UsageRequests, ask_for_usage

REFUSED_FOR_S = 600.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

FLAG = ("stream_options", "include_usage")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"model": "m", "stream": true}', {"include_usage": True}),
        (b'  {"model":"m"}', {"include_usage": True}),
        (b"{}", {"include_usage": True}),
        (b'{"stream_options":null}', {"include_usage": True}),
        (b'{"stream_options":{}}', {"include_usage": True}),
        (b'{"stream_options":{"include_usage":false,"x":1}}', {"include_usage": True, "x": 1}),
        (b'{"stream_options":{"include_usage":null}}', {"include_usage": True}),
        (b'{"tools":[{"stream_options":1}]}', {"include_usage": True}),
        (b'{"x":"\\u0041","model":"m"}', {"include_usage": True}),
        (b'{"\\u0073tream_options":{"y":2}}', {"include_usage": True, "y": 2}),
    ],
)
def test_the_flag_is_set_and_removed(body: bytes, options: dict[str, object]) -> None:
    asked = ask_for_usage(body, FLAG)
    assert asked is not None
    changed, flag = asked
    before, after = json.loads(body), json.loads(changed)
    assert after.pop("stream_options") == options
    assert after == {key: value for key, value in before.items() if key != "stream_options"}
    assert json.loads(flag.removed_from(changed)) == before
    renamed = changed.replace(b'"m"', b'"other"')
    assert json.loads(flag.removed_from(renamed)) == json.loads(body.replace(b'"m"', b'"other"'))


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream_options":{"include_usage":true}}',
        b'{"\\u0073tream_options":{"include_usage":true}}',
        b'{"stream_options":[1]}',
        b'{"stream_options":"x"}',
        b"[]",
        b"",
    ],
)
def test_a_flag_that_the_client_set_and_a_value_that_is_no_object_stay(body: bytes) -> None:
    assert ask_for_usage(body, FLAG) is None


def test_engines_that_refuse_are_not_asked_for_a_time() -> None:
    requests = UsageRequests()
    assert requests.may_ask("m", 0.0)
    requests.refused("m", "gpu-1", 0.0)
    assert not requests.may_ask("m", 1.0, "gpu-1")
    assert requests.may_ask("other", 1.0, "gpu-1")
    assert requests.may_ask("m", REFUSED_FOR_S, "gpu-1")
    assert requests.may_ask("m", 1.0, "gpu-2"), "another engine can give it"
    assert requests.may_ask("m", 1.0)
    requests.accepted("m", 5.0)
    requests.may_have_refused("m", REFUSED_FOR_S)
    assert requests.may_ask("m", REFUSED_FOR_S), "the request was bad"
    requests.may_have_refused("m", REFUSED_FOR_S + 5.0)
    assert not requests.may_ask("m", REFUSED_FOR_S + 6.0)
