"""Long texts of a JSON document: cut out, put back, and decoded in pieces."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from penstock.converters import long_texts
from penstock.converters.long_texts import (
    MAX_BACKSLASHES,
    MAX_QUOTES,
    MAX_REST_BYTES,
    BadText,
    base64_of,
    base64_pieces,
    with_long_texts,
    without_long_texts,
)

MIN_LONG_BYTES, PIECE_BYTES = 64 * 1024, 256 * 1024

LONG = "x" * MIN_LONG_BYTES


def test_long_texts_are_cut_out_and_put_back_in_any_place() -> None:
    document = {"a": LONG, "b": {"c": ["short", LONG + "é", {LONG: '\\"' + LONG}]}, "d": 'n-0"', "e": "\\"}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        body = text.encode()
        short, texts = without_long_texts(body, "n")
        assert len(texts) == 4
        assert len(short) < 1000
        found = json.loads(short)
        assert (found["a"], bytes(texts["n-0"])) == ("n-0", LONG.encode())
        assert (found["d"], found["e"]) == ('n-0"', "\\")
        assert with_long_texts(short, "n", texts) == body
        # Encoded again, in another order and without one of them.
        del found["a"]
        assert json.loads(with_long_texts(json.dumps(found).encode(), "n", texts)) == {
            name: value for name, value in document.items() if name != "a"
        }


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", b'"', b'{"a":"' + LONG.encode(), b'"a', b'"\\"', b'"\\\\"'],
    ids=["empty", "object", "array", "quote", "no end", "short without end", "escaped end", "escaped backslash"],
)
def test_a_document_that_is_no_object_of_texts_is_put_back_as_it_was(body: bytes) -> None:
    short, texts = without_long_texts(body, "n")
    assert with_long_texts(short, "n", texts) == body


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'"' * (MAX_QUOTES + 1), "quotation marks"),
        (b'["%b"]' % (b'\\"' * MAX_QUOTES), "quotation marks"),
        (b'["%b"]' % (b"\\" * MAX_BACKSLASHES), "backslashes"),
        (b'["%b"]' % b'","'.join([b"x" * (MIN_LONG_BYTES - 1)] * 129), "short texts"),
        (b'["%b"%b]' % (LONG.encode(), b" " * MAX_REST_BYTES), "images by URL"),
    ],
    ids=["texts", "escapes", "backslashes", "short texts", "spaces"],
)
def test_a_document_that_would_take_long_to_read_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BadText, match=problem):
        without_long_texts(body, "n")


def test_long_texts_do_not_count_in_the_size_of_the_rest() -> None:
    body = b'["%b"]' % b'","'.join([LONG.encode()] * 129)
    short, texts = without_long_texts(body, "n")
    assert len(body) > MAX_REST_BYTES > len(short)
    assert with_long_texts(short, "n", texts) == body


def test_a_document_without_long_texts_is_not_searched() -> None:
    body = b'["n-0"]'
    assert with_long_texts(body, "n", {}) is body


@pytest.mark.parametrize("length", [0, 1, 2, 3, 10, 100, 101])
@pytest.mark.parametrize("piece_bytes", [1, 4, 5, 6, 64])
def test_base64_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, length: int, piece_bytes: int) -> None:
    monkeypatch.setattr(long_texts, "PIECE_BYTES", piece_bytes)
    content = bytes(255 - number for number in range(length))
    encoded = b64encode(content)
    all_escaped = b"".join(b"\\u%04x" % char for char in encoded)
    for text in (encoded, encoded.replace(b"/", b"\\/"), encoded.replace(b"=", b"\\u003D"), all_escaped):
        assert b"".join(base64_pieces(memoryview(text))) == content
    monkeypatch.setattr(long_texts, "PIECE_BYTES", 4 * piece_bytes)
    assert b"".join(base64_of(content)) == encoded


@pytest.mark.parametrize("piece_bytes", [4, 8, 64])
@pytest.mark.parametrize(
    "text",
    [
        *(b"?", b"a", b"abc", b"ab==abcd", b"ab=c", b"====", b"abcd=", b"abcd\\", b"ab\\nc", b"a b="),
        *(b"abcd\\u", b"abc\\u00", b"abc\\u003", b"abc\\u00zz", b"abc\\u0022", b"abc\\u005cu0041", b"abc\\\\u0041"),
        *(b"abc\\uff21", b"abc\\ud83d\\ude00", b"abc\\u0041\n", b'abc\\u0041"', b"abc\\u0041\xff", b"abc=\\u0041bcd"),
    ],
)
def test_what_is_not_base64_is_refused_in_pieces_too(
    monkeypatch: pytest.MonkeyPatch, text: bytes, piece_bytes: int
) -> None:
    monkeypatch.setattr(long_texts, "PIECE_BYTES", piece_bytes)
    with pytest.raises(BadText, match="not base64"):
        list(base64_pieces(memoryview(text)))


def test_pieces_of_a_large_text_are_small() -> None:
    content = bytes(4 * PIECE_BYTES)
    pieces = list(base64_pieces(memoryview(b64encode(content))))
    assert max(len(each) for each in (*pieces, *base64_of(content))) <= PIECE_BYTES
