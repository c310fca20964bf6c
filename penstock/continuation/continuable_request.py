"""Decides whether another engine can continue the answer to a request, and builds the request that continues it.

For a chat, the generated text is appended as a last message of the assistant, which the engine extends; for a text
completion, it is appended to the prompt. Fields as documented by OpenAI
(https://platform.openai.com/docs/api-reference/chat/create), vLLM (vllm/entrypoints/openai/protocol.py) and SGLang
(python/sglang/srt/entrypoints/openai/protocol.py).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

CHAT_PATH: Final = b"/v1/chat/completions"
COMPLETIONS_PATH: Final = b"/v1/completions"

DEFAULT_COMPLETION_TOKENS: Final = 16
"""`max_tokens` of a text completion that sets no limit."""

_NULL: Final = frozenset({b"null"})
_NOT_SET: Final = frozenset({b"null", b"false"})
_EMPTY: Final = frozenset({b"null", b"[]"})
_MAY_CALL: Final = frozenset({b"null", b'"none"', b'"auto"'})
_AT_MOST_ONE: Final = frozenset({b"null", b"1"})

HARMLESS_VALUES: Final[dict[str, frozenset[bytes]]] = {
    "n": _AT_MOST_ONE,
    "best_of": _AT_MOST_ONE,
    "use_beam_search": _NOT_SET,
    "functions": _EMPTY,
    "function_call": frozenset({b"null", b'"none"', b'"auto"'}),
    "logprobs": _NOT_SET,
    "top_logprobs": frozenset({b"null", b"0"}),
    "prompt_logprobs": _NULL,
    "echo": _NOT_SET,
    "suffix": frozenset({b"null", b'""'}),
    "structured_outputs": _NULL,
    "guided_json": _NULL,
    "guided_regex": _NULL,
    "guided_choice": _NULL,
    "guided_grammar": _NULL,
    "structural_tag": _NULL,
    "json_schema": _NULL,
    "regex": _NULL,
    "ebnf": _NULL,
    "audio": _NULL,
    "modalities": frozenset({b"null", b'["text"]'}),
    "continue_final_message": _NOT_SET,
    "add_generation_prompt": frozenset({b"null", b"true"}),
    "prompt_embeds": _NULL,
    "return_token_ids": _NOT_SET,
    "return_hidden_states": _NOT_SET,
    "kv_transfer_params": _NULL,
}
"""Fields that prevent a continuation, with the values (JSON) that do not prevent it.

A grammar or a schema constrains an answer from its first token, but a continuation starts in the middle of the answer.
Sampling fields such as `seed` do not prevent a continuation: the continuation is sampled anew.
"""

_LIMITS: Final = ("max_tokens", "max_completion_tokens")


class ContinuableRequest(msgspec.Struct, frozen=True):
    """The properties of a request that its continuation depends on."""

    chat: bool
    """Whether the request is a chat; otherwise it is a text completion."""
    max_tokens: int | None
    """Limit on generated tokens; None for the limit of the engine. vLLM and SGLang apply `max_completion_tokens` of a
    chat before `max_tokens`, and ignore it in a text completion."""
    wants_usage: bool
    """Whether the client requested the usage at the end of the stream."""
    wants_continuous_usage: bool = False
    """Whether the client requested the usage up to each chunk in that chunk."""
    must_call: bool = False
    """Whether the request requires a tool call, which constrains the answer from its first token: the answer can be
    generated again, but not continued from a text."""


class _TextPart(msgspec.Struct):
    type: Literal["text"]


class _Message(msgspec.Struct):
    role: str
    content: str | list[_TextPart] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = True
    """Whether the usage is requested; the default is that of vLLM for a request that has stream options."""
    continuous_usage_stats: bool | None = False


class _ResponseFormat(msgspec.Struct):
    type: Literal["text"]


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_messages_decoder = msgspec.json.Decoder(list[_Message])
_prompt_decoder = msgspec.json.Decoder(str)
_format_decoder = msgspec.json.Decoder(_ResponseFormat | None)
_options_decoder = msgspec.json.Decoder(_StreamOptions | None)
_other_options_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_limit_decoder = msgspec.json.Decoder(int | None)


def continuable_request(path: bytes, body: bytes | bytearray) -> ContinuableRequest | str:
    """Return the properties of a request, or the reason why its answer cannot be continued.

    Args:
        path: path of the request.
        body: the complete JSON body.
    """
    if path not in (CHAT_PATH, COMPLETIONS_PATH):
        return "only chat and text completions can be continued"
    try:
        return _read(path == CHAT_PATH, _fields_decoder.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"a field prevents a continuation: {error}"


def _read(chat: bool, fields: dict[str, msgspec.Raw]) -> ContinuableRequest | str:
    for name, value in fields.items():
        harmless = HARMLESS_VALUES.get(name)
        if harmless is not None and bytes(value) not in harmless:
            return f"the request sets {name}"
    if "stream" not in fields or bytes(fields["stream"]) != b"true":
        return "the response is not streamed"
    _decode(_format_decoder, fields, "response_format")
    if chat:
        messages = _messages_decoder.decode(fields.get("messages", b"[]"))
        if not messages or messages[-1].role == "assistant":
            return "the last message is the assistant's"
    else:
        _prompt_decoder.decode(fields.get("prompt", b"null"))
    options = _decode(_options_decoder, fields, "stream_options")
    max_tokens = _decode(_limit_decoder, fields, "max_completion_tokens")
    if not chat or max_tokens is None:
        max_tokens = _decode(_limit_decoder, fields, "max_tokens")
    if not chat and "max_tokens" not in fields:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    wants_usage = options is not None and bool(options.include_usage)
    wants_continuous_usage = wants_usage and bool(options.continuous_usage_stats)
    must_call = bytes(fields.get("tool_choice", b"null")) not in _MAY_CALL
    return ContinuableRequest(chat, max_tokens, wants_usage, wants_continuous_usage, must_call)


def body_with_usage(request: ContinuableRequest, body: bytes | bytearray) -> bytes:
    """Return the body with a request for the usage of each chunk, by which the tokens of merged chunks are counted.

    Args:
        request: result of `continuable_request`.
        body: the body that was passed to `continuable_request`.
    """
    if request.wants_continuous_usage:
        return bytes(body)
    fields = _fields_decoder.decode(body)
    options = _other_options_decoder.decode(fields.get("stream_options", b"null")) or {}
    fields["stream_options"] = _raw({**options, "include_usage": True, "continuous_usage_stats": True})
    return msgspec.json.encode(fields)


def continuation_body(request: ContinuableRequest, body: bytes | bytearray, text: str, generated_tokens: int) -> bytes:
    """Return the body of the request that continues an answer; `body` itself if `text` is empty.

    Args:
        request: result of `continuable_request`.
        body: the body that was passed to `continuable_request`.
        text: the generated text, not cut within a character.
        generated_tokens: tokens of `text`, by which the limits of the request are reduced.
    """
    if not text:
        return bytes(body)
    fields = _fields_decoder.decode(body)
    if request.chat:
        messages = bytes(fields["messages"]).rstrip()[:-1].rstrip()
        message = msgspec.json.encode({"role": "assistant", "content": text})
        fields["messages"] = msgspec.Raw(b"%b,%b]" % (messages, message))
        fields["add_generation_prompt"] = msgspec.Raw(b"false")
        fields["continue_final_message"] = msgspec.Raw(b"true")
    else:
        fields["prompt"] = _raw(_prompt_decoder.decode(fields["prompt"]) + text)
        fields.setdefault("max_tokens", _raw(DEFAULT_COMPLETION_TOKENS))
    for name, least in (*((limit, 1) for limit in _LIMITS), ("min_tokens", 0)):
        limit = _decode(_limit_decoder, fields, name)
        if limit is not None:
            fields[name] = _raw(max(least, limit - generated_tokens))
    return msgspec.json.encode(fields)


def _decode(decoder: msgspec.json.Decoder[Any], fields: dict[str, msgspec.Raw], name: str) -> Any:
    value = fields.get(name)
    return None if value is None else decoder.decode(value)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
