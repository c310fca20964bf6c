"""Usage is read from the end of a response, and no other text is read as usage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.presets.preset_registry import preset_routes
from penstock.routes.route import UsageFields
from penstock.routing.usage import MAX_TOKENS, Usage, read_usage


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        pytest.param(
            b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":12,"total_tokens":40,"completion_tokens":28,'
            b'"prompt_tokens_details":{"cached_tokens":8}}}\n\ndata: [DONE]\n\n',
            Usage(12, 28, 8),
            id="an event stream",
        ),
        pytest.param(
            b'{"}}}, "finish_reason":"stop"}],"usage": {"prompt_tokens": 5, "completion_tokens": 7, "extra": null}}',
            Usage(5, 7),
            id="a whole answer, cut anywhere before",
        ),
        pytest.param(
            b'"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}',
            Usage(5, 1, 5),
            id="more cached than prompt tokens",
        ),
    ],
)
def test_usage_is_read_off_the_end_of_an_answer(tail: bytes, usage: Usage) -> None:
    assert read_usage(tail) == usage


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


ANTHROPIC, RESPONSES, TGI, SGLANG, OLLAMA = (
    next(route.usage for route in preset_routes(preset) if route.name == name)
    for preset, name in (
        ("anthropic", "anthropic-messages"),
        ("openai", "openai-responses"),
        ("tgi", "tgi-generate-stream"),
        ("sglang", "sglang-generate"),
        ("ollama", "ollama-chat"),
    )
)


@pytest.mark.parametrize(
    ("fields", "tail", "expected"),
    [
        (
            ANTHROPIC,
            b'{"type":"message","content":[{"type":"text","text":"hi \\"usage\\":{\\"output_tokens\\":9}"}],'
            b'"usage":{"input_tokens":12,"cache_read_input_tokens":4,"output_tokens":7}}',
            Usage(12, 7, 4),
        ),
        (
            ANTHROPIC,
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":25,'
            b'"cache_read_input_tokens":5,"output_tokens":1}}}\n\nevent: message_delta\ndata: {"type":"message_delta",'
            b'"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}\n\nevent: message_stop\ndata: {}\n\n',
            Usage(25, 15, 5),
        ),
        (ANTHROPIC, b'"usage":{"output_tokens":15}}\n\n', Usage(0, 15)),
        (
            RESPONSES,
            b'"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":3},"output_tokens":87}',
            Usage(36, 87, 3),
        ),
        (
            TGI,
            b'data:{"token":{},"generated_text":"x","details":{"finish_reason":"length","generated_tokens":20,'
            b'"seed":null,"input_length":5}}\n\n',
            Usage(5, 20),
        ),
        (
            SGLANG,
            b'data: {"text":"x","meta_info":{"finish_reason":{"type":"length","length":16},"prompt_tokens":7,'
            b'"completion_tokens":16,"cached_tokens":2}}\n\ndata: [DONE]\n\n',
            Usage(7, 16, 2),
        ),
        (
            OLLAMA,
            b'{"message":{"content":"."},"done":false}\n{"model":"m","done":true,"context":[1],"prompt_eval_count":26,'
            b'"prompt_eval_duration":130079000,"eval_count":259,"eval_duration":4232710000}\n',
            Usage(26, 259),
        ),
    ],
)
def test_the_usage_of_other_apis(fields: UsageFields, tail: bytes, expected: Usage) -> None:
    assert read_usage(tail, fields) == expected


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b'"usage":null',
        b'"usage":{"output_tokens":-1}',
        b'"usage":{"output_tokens":1e9}',
        b'"usage":{"output_tokens":1.5}',
        b'"usage":{"output_tokens":9999999}',
        b'"usage":{"output_tokens":' + b"9" * 500 + b"}",
        b'"usage":{"output_tokens":5',
        b'"eval_count":5',
    ],
)
def test_anything_else_is_no_usage_of_other_apis(tail: bytes) -> None:
    assert read_usage(tail, ANTHROPIC) is None


@given(st.lists(st.sampled_from((b'"usage":{', b'"output_tokens":', b'"input_tokens":', b"9", b"}", b",", b"-", b"."))))
def test_usage_of_any_bytes_is_within_its_limits(parts: list[bytes]) -> None:
    usage = read_usage(b"".join(parts), ANTHROPIC)
    if usage is not None:
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens <= MAX_TOKENS
        assert 0 <= usage.answer_tokens <= MAX_TOKENS
