"""The model of a gRPC inference is read from its first message, and no later byte can change it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.kserve_messages import MAX_FIELDS, MAX_NAME_BYTES, InferMessages
from tests.support.triton import infer_request


def framed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)


def read(data: bytes, step: int = 1 << 20) -> tuple[InferMessages, str]:
    messages = InferMessages()
    for at in range(0, len(data), step):
        problem = messages.feed(data[at : at + step])
        if problem:
            return messages, problem
    return messages, messages.finish()


@given(st.integers(1, 50), st.binary(max_size=300), st.text(min_size=1, max_size=40), st.text(max_size=10))
def test_the_name_is_read_however_the_bytes_arrive(step: int, tensor: bytes, model: str, version: str) -> None:
    message = infer_request(model, tensor, version)
    found, problem = read(framed(message, message), step)
    assert (found.model, found.version, found.is_named, problem) == (model, version, True, "")


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_are_refused_or_read_in_bounded_memory(data: bytes, step: int) -> None:
    whole, in_parts = read(data), read(data, step)
    assert bool(whole[1]) == bool(in_parts[1])
    assert whole[1] or whole[0].is_named


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (framed(infer_request("a"), infer_request("b")), "two models"),
        (framed(infer_request("a") + infer_request("b")), "two models"),
        (framed(infer_request("a") + b"\x12\x012"), "two models"),
        (framed(b""), "no model"),
        (framed(b"\x1a\x01a"), "no model"),
        (framed(infer_request("a"))[:-1], "cut"),
        (b"", "cut"),
        (b"\x01" + framed(infer_request("a"))[1:], "compressed"),
        (framed(b"\x0a\x02\xff\xfe"), "UTF-8"),
        (framed(b"\x0a\x7fabc"), "malformed"),
        (framed(b"\x0b\x01"), "malformed"),
        (framed(b"\xff" * 30), "malformed"),
        # Bit 32 of a key, which the decoder of C++ drops: it would read the name of a second model.
        (framed(infer_request("a") + b"\x8a\x80\x80\x80\x10\x01b"), "malformed"),
        (framed(infer_request("a") + b"\x40\x01" * MAX_FIELDS), "fields"),
        (framed(infer_request("a" * (MAX_NAME_BYTES + 1))), "more than"),
    ],
)
def test_a_request_whose_model_is_unclear_is_refused(data: bytes, words: str) -> None:
    for step in (1, 7, 1 << 20):
        assert words in read(data, step)[1]
