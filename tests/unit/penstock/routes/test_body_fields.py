"""Pointers and the values that they denote in a body, against the standard library's parser as reference."""

import json
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.body_fields import MAX_FIELDS, BodyFields
from penstock.routes.body_values import flag_value, is_null, number_value, text_value
from penstock.routes.duplicate_keys import MAX_CACHED
from penstock.routes.json_pointer import MAX_ARRAY_INDEX, array_index, parse_pointer
from penstock.routes.raw_values import NotJson

BLOCK_BYTES = 64 * 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

KEYS = ("a", "model", "", "/", "~", "0", "é")
POINTERS = ["/a", "/a/a", "/a/0", "/model", "/a/model", "/", "/~1", "/~0/a", "/0/0", "/é"]

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3).filter(str.isprintable)
keys = st.sampled_from(KEYS)
"""Objects are generated as text, since a dict cannot repeat a key."""
values = st.recursive(
    scalars.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(keys.map(json.dumps), inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [
        ("", ()),
        ("/", ("",)),
        ("/a~1b/m~0n", ("a/b", "m~n")),
        ("/~01", ("~1",)),
        ("/c%d/ /0", ("c%d", " ", "0")),
    ],
)
def test_parses_pointers_as_rfc_6901_does(pointer: str, tokens: tuple[str, ...]) -> None:
    assert parse_pointer(pointer) == tokens


@pytest.mark.parametrize("pointer", ["model", "/a~", "/a~2", "/a/-", "/" + "x" * 300, "/a" * 9, "/\ud800"])
def test_rejects_pointers_that_cannot_match(pointer: str) -> None:
    with pytest.raises(ValueError, match="pointer"):
        parse_pointer(pointer)


def test_array_indices_are_canonical_and_bounded() -> None:
    assert [array_index(token) for token in ("0", "7", str(MAX_ARRAY_INDEX))] == [0, 7, MAX_ARRAY_INDEX]
    assert {array_index(token) for token in ("", "01", "-1", "+1", "x", "٣", str(MAX_ARRAY_INDEX + 1))} == {None}


def test_the_whole_body_is_no_field() -> None:
    with pytest.raises(ValueError, match="whole body"):
        BodyFields([""])


@given(values)
def test_reads_what_the_reference_parser_reads(text: str) -> None:
    raw_values = BodyFields(POINTERS).read(text.encode())
    if isinstance(raw_values, str):
        assert _repeats(json.loads(text, object_pairs_hook=_Pairs), [parse_pointer(pointer) for pointer in POINTERS])
        return
    expected = {pointer: value for pointer in POINTERS for value in _reference(json.loads(text), pointer)}
    assert {pointer: json.loads(bytes(raw)) for pointer, raw in raw_values.items()} == expected


@given(values, st.lists(st.sampled_from(POINTERS), min_size=1, max_size=3))
def test_refuses_exactly_the_bodies_that_repeat_a_key_on_the_path_of_a_pointer(text: str, pointers: list[str]) -> None:
    result = BodyFields(pointers).read(text.encode())
    if _repeats(json.loads(text, object_pairs_hook=_Pairs), [parse_pointer(pointer) for pointer in pointers]):
        assert isinstance(result, str)
        assert not isinstance(result, NotJson)
    else:
        assert isinstance(result, dict)


@given(st.binary() | values.map(str.encode).flatmap(lambda body: st.integers(0, len(body)).map(lambda end: body[:end])))
def test_any_bytes_give_fields_or_a_problem(body: bytes) -> None:
    result = BodyFields(POINTERS).read(body)
    if isinstance(result, str):
        assert result.startswith("the request body is ")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "Model": "b"}',
        b'{"parameters": {}, "model": "a", "MODEL": "a"}',
        b'{"model": "a", "\\u006dodel": "a"}',
        b'{"model": "a", "x": 1, "x": 1}',
        b'{"Model": "a"}',
        b'{"model": "a", "m\\u004fdel": "a"}',
        b'{"model": "a", "model\\u0000": "b"}',
        b'{"model": "a", "x\\u0000": "b"}',
        '{"model": "a", "to\u212aens": 1}'.encode(),
        '{"model": "a", "u\u017fer": 1}'.encode(),
        '{"model": "a", "pr\u0131ority": 1}'.encode(),
        '{"model": "a", "pr\u0130ority": 1}'.encode(),
    ],
)
def test_refuses_what_engines_could_read_differently(body: bytes) -> None:
    result = BodyFields(["/model", "/tokens", "/user", "/priority"]).read(body)
    assert isinstance(result, str)
    assert result.startswith("the request body is ambiguous: ")


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"model": "a"}',
        '{"model": "a"}'.encode("utf-16"),
        '{"model": "a"}'.encode("utf-16-le"),
        '{"model": "a"}'.encode("utf-32-be"),
        b'{"model": "a", "x": "\xff"}',
        b'{"model": "a", "x": "\xe4"}',
        b'{"model": "a", "x": "\xc0\xa2"}',
        b'{"model": "a", "x": "\xed\xa0\x80"}',
        b'{"model": "a", "x": "' + b"x" * BLOCK_BYTES + b'\xc3"}',
        b'{"model": "a", "x": "' + "\u20ac".encode() * BLOCK_BYTES + b'\xe2\x82"}',
        b'{"model": "a"} {"model": "b"}',
        b'{"model": "a"}\0',
        b'1 {"model": "a"}',
        b'"x"{"model": "a"}',
        b"null,",
        b'{"model": "a",}',
        b'{"model": "a" /* b */}',
        b"{'model': 'a'}",
        b"{model: 1}",
    ],
)
def test_what_only_some_parsers_read_is_not_json(body: bytes) -> None:
    assert isinstance(BodyFields(["/model"]).read(body), NotJson)
    assert isinstance(BodyFields(["/model"]).read(bytearray(body)), NotJson)


def test_text_of_any_length_in_utf_8_is_accepted() -> None:
    for padding in range(4):
        text = "x" * padding + "\u20ac" * BLOCK_BYTES + "y" * BLOCK_BYTES * 2 + "\U0001f600"
        raw_values = BodyFields(["/model"]).read(f'{{"x": "{text}", "model": "a"}}'.encode())
        assert isinstance(raw_values, dict)
        assert text_value(raw_values["/model"]) == "a"


def test_other_spellings_of_other_keys_are_accepted() -> None:
    raw_values = BodyFields(["/model"]).read(b'{"x": {"model": 1, "Model": 2, "x": 1, "x": 1}, "X": 1, "model": "a"}')
    assert isinstance(raw_values, dict)
    assert text_value(raw_values["/model"]) == "a"


def test_the_cache_of_other_keys_is_bounded_and_changes_nothing() -> None:
    fields = BodyFields(["/model"])
    for number in range(MAX_CACHED + 2):
        assert isinstance(fields.read(b'{"model": "a", "key-%d": 1, "%b": 1}' % (number, b"k" * 70)), dict)
        assert fields._root._keys.cached <= MAX_CACHED + 1
    assert fields._root._keys.cached == 3, "a full cache was cleared"
    many = b",".join(b'"many-%d": 1' % number for number in range(MAX_CACHED - 1))
    assert isinstance(fields.read(b'{"model": "a", %b}' % many), dict)
    assert isinstance(fields.read(b'{"model": "a", "new": 1, "x": 1, "x": 1}'), str)
    assert isinstance(fields.read(b'{"model": "a", "MODEL": 1}'), str)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65536,
        b'{"a":' * 10000,
        b'{"model":"' + b"x" * 65000 + b'"}',
        b"{" + b",".join(b'"%d":1' % key for key in range(8000)) + b"}",
        b'{"a":{' + b",".join(b'"%d":[]' % key for key in range(6000)) + b"}}",
        b'{"a":[' + b",".join([b"{}"] * 21000) + b"]}",
        b'{"a":[' + b"[" * 900 + b"]" * 900 + b"]}",
    ],
)
def test_hostile_bodies_of_64_kib_take_a_bounded_number_of_steps(body: bytes) -> None:
    fields = BodyFields(POINTERS)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        fields.read(body)
    finally:
        sys.setprofile(profiler)
    assert calls < 16 * MAX_FIELDS, "a field takes twelve"


def test_too_many_fields_are_refused() -> None:
    body = b"{" + b",".join(b'"%d":1' % key for key in range(MAX_FIELDS + 1)) + b"}"
    assert "more than" in BodyFields(["/a"]).read(body)


def test_values_of_another_type_are_none() -> None:
    raw_values = BodyFields(["/a", "/b", "/c", "/d"]).read(b'{"a": "x", "b": true, "c": 1.5e1, "d": [1]}')
    assert isinstance(raw_values, dict)
    assert [text_value(raw_values[key]) for key in raw_values] == ["x", None, None, None]
    assert [flag_value(raw_values[key]) for key in raw_values] == [None, True, None, None]
    assert [number_value(raw_values[key]) for key in raw_values] == [None, None, 15.0, None]
    assert [is_null(value) for value in raw_values.values()] == [False] * 4
    assert text_value(raw_values.get("/e")) is flag_value(None) is number_value(None) is None


def test_numbers_of_any_length_are_bounded() -> None:
    raw_values = BodyFields(["/a", "/b"]).read(b'{"a": ' + b"9" * 50_000 + b', "b": 1e999}')
    assert isinstance(raw_values, dict)
    assert number_value(raw_values["/a"]) is None
    assert number_value(raw_values["/b"]) is None


class _Pairs(list):  # type: ignore[type-arg]
    """The fields of an object, in the order of the text."""


def _reference(value: object, pointer: str) -> list[object]:
    """The value at a pointer in a list, or an empty list."""
    for token in parse_pointer(pointer):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return []
    return [value]


def _repeats(value: object, paths: list[tuple[str, ...]]) -> bool:
    """Whether an object on one of the paths repeats a key."""
    paths = [path for path in paths if path]
    if not paths:
        return False
    if isinstance(value, _Pairs):
        fields = dict(value)
        return len(fields) < len(value) or any(
            _repeats(fields[key], [path[1:] for path in paths if path[0] == key]) for key in fields
        )
    if not isinstance(value, list):
        return False
    return any(
        _repeats(item, [path[1:] for path in paths if array_index(path[0]) == index])
        for index, item in enumerate(value)
    )
