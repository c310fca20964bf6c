"""The identifier of a created object is found in any split of a response, and nothing else is taken for it."""

from __future__ import annotations

import json

import pytest

from penstock.routes.object_id_scanner import MAX_SCANNED_BYTES, MAX_SCANS, ObjectIdScanner

BODY = json.dumps(
    {
        "object": "response",
        "tags": ["id", "x", {"id": "inner"}],
        "text": 'a "id": "quoted" {[',
        "model": "id",
        "id": "resp_1",
        "output": [{"id": "msg_1"}],
    }
).encode()
EVENT = {"type": "response.created", "response": {"metadata": {"id": "no"}, "id": "resp_1"}, "sequence_number": 0}
EVENTS = b": hello\r\n\r\nevent: response.created\r\ndata: %b\r\n\r\n" % json.dumps(EVENT).encode()


def found(pointer: str, *parts: bytes, events: bool = False) -> str | None:
    """The first identifier that the scanner finds."""
    scanner = ObjectIdScanner(pointer, is_event_stream=events)
    return next((object_id for part in parts if (object_id := scanner.feed(part)) is not None), None)


@pytest.mark.parametrize(("body", "events"), [(BODY, False), (EVENTS, True)], ids=["whole", "events"])
def test_it_is_found_wherever_the_response_is_split(body: bytes, events: bool) -> None:
    for at in range(len(body)):
        assert found("/id", body[:at], body[at:], events=events) == "resp_1", body[:at]


@pytest.mark.parametrize(
    ("pointer", "body", "expected"),
    [
        ("/prompt_id", b'{"prompt_id": "a-b", "number": 1}', "a-b"),
        ("/job/id", b'{"id": "x", "job": {"id": "j\\u0031"}}', "j1"),
        ("/id", b'{"id": 5, "name": "x"}', None),
        ("/id", b'{"id": ["x"], "name": "x"}', None),
        ("/id", b'{"id": {"a": "x"}, "name": "x"}', None),
        ("/id", b'[{"id": "x"}]', None),
        ("/id", b'{"id": "\\q"}', None),
        ("/id", b'{"id": "\xff"}', None),
        ("/id", b'}}{"id": "x"}', "x"),
        ("/id", b'"id": "x"', None),
        ("/id", b"no JSON", None),
    ],
)
def test_only_a_string_at_the_pointer_counts(pointer: str, body: bytes, expected: str | None) -> None:
    assert found(pointer, body) == expected


def test_the_first_event_with_an_identifier_counts() -> None:
    assert found("/id", b'data: {"id": "a"}\n\n', b'data: {"id": "b"}\n\n', events=True) == "a"
    assert found("/id", b"data: [DONE]\n\n", events=True) is None
    assert found("/id", b'{"response": {"id": "a"}}') is None, "only events have the object in a member"


def test_a_long_response_is_given_up() -> None:
    scanner = ObjectIdScanner("/id", is_event_stream=False)
    assert scanner.feed(b'{"a": "' + b"x" * MAX_SCANNED_BYTES + b'"') is None
    assert scanner.gave_up
    assert scanner.feed(b', "id": "late"}') is None
    scanner = ObjectIdScanner("/id", is_event_stream=False)
    for _ in range(MAX_SCANS):
        assert not scanner.gave_up
        scanner.feed(b" ")
    assert scanner.gave_up
    assert scanner.feed(b'{"id": "late"}') is None
