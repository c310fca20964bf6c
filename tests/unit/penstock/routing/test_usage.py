"""Usage is read off the end of an answer, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from penstock.routing.usage import Usage, read_usage


def test_the_end_of_an_event_stream() -> None:
    tail = (
        b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":12,"total_tokens":40,"completion_tokens":28,'
        b'"prompt_tokens_details":{"cached_tokens":8}}}\n\ndata: [DONE]\n\n'
    )
    assert read_usage(tail) == Usage(12, 28, 8)


def test_the_end_of_a_whole_answer_cut_anywhere_before() -> None:
    tail = b'{"}}}, "finish_reason":"stop"}],"usage": {"prompt_tokens": 5, "completion_tokens": 7, "extra": null}}'
    assert read_usage(tail) == Usage(5, 7)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"data: [DONE]\n\n",
        b'"usage":null}',
        pytest.param(b'"usage":{"prompt_tokens":5,"x":' + b"[" * 1_900 + b"]" * 100 + b"}", id="nested too deep"),
        b'"usage":{"prompt_tokens":5',
        b'"usage":{"prompt_tokens":"5"}',
        b'"usage":{"prompt_tokens":-5,"completion_tokens":1}',
        b'"usage":{"prompt_tokens":5,"completion_tokens":99999999999}',
        b'"usage":{}',
        b'"usage"' * 1000,
        b'"usage":' + b"{" * 5000,
    ],
)
def test_anything_else_is_no_usage(tail: bytes) -> None:
    assert read_usage(tail) is None


def test_more_cached_than_asked_is_all_of_it() -> None:
    tail = b'"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}'
    assert read_usage(tail) == Usage(5, 1, 5)
