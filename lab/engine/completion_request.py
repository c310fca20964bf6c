"""Parses a completion request: length of the prompt, length of the response, and prefix ids.

Only the body is used, as in a real engine, because routers remove unknown headers. The engine has no tokenizer and no
weights: a prompt token is four characters. The length of a response is exactly `max_tokens` with vLLM's `ignore_eos`.
Otherwise it is the number in `<answer N>` at the end of the prompt's text, where no router looks for it, or it follows
the distribution of a production chat service.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from math import exp
from random import Random
from typing import Annotated, Literal

import msgspec

from lab.engine.kv_cache import SPAN_TOKENS
from lab.engine.openai_format import trailing_words, words

CHARACTERS_PER_TOKEN = 4
"""Average of English text with the tokenizers of GPT-3 and Llama (OpenAI, "What are tokens and how to count them?")."""

OUTPUT_LOG_MEAN = 5.02
OUTPUT_LOG_DEVIATION = 0.86
"""Log-normal fit to the generated tokens of the Azure LLM inference trace 2023, conversation: mean 211, median 129."""

DEFAULT_COMPLETION_TOKENS = 16
"""Default `max_tokens` of /v1/completions, as OpenAI defines it; chat completions have no default."""

_ANSWER_LENGTH = re.compile(r'<answer ([1-9][0-9]{0,5})>"?\n?$')
_ANSWER_LENGTH_CHARACTERS = 24
"""Number of characters at the end of a prompt that are searched for the length of the answer."""


class BadRequest(Exception):
    """A request that the engine rejects with an error response."""

    def __init__(self, status: int, error_type: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.param = param


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, msgspec.Raw]] | None = None


_Tokens = Annotated[int, msgspec.Meta(ge=1)]


class _Common(msgspec.Struct):
    model: str
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = 1
    max_tokens: _Tokens | None = None
    ignore_eos: bool = False
    """Whether generation stops only at the token limit (vLLM's sampling parameter)."""


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


class _Chat(_Common, kw_only=True):
    tools: list[_Tool] | None = None
    tool_choice: msgspec.Raw = msgspec.Raw(b"")
    """The engine calls the first tool if this is "auto", and none otherwise."""
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Tokens | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Whether the response continues the last message, whose role must be assistant."""


class _Completion(_Common, kw_only=True):
    prompt: str | Annotated[list[int], msgspec.Meta(min_length=1)]


_CHAT: msgspec.json.Decoder[_Chat | _Completion] = msgspec.json.Decoder(_Chat)
_COMPLETION: msgspec.json.Decoder[_Chat | _Completion] = msgspec.json.Decoder(_Completion)


class CompletionRequest(msgspec.Struct, frozen=True):
    """Parameters of one accepted request."""

    stream: bool
    include_usage: bool
    """Whether a stream ends with the token usage."""
    continuous_usage: bool
    """Whether each chunk of a stream contains the token usage so far."""
    prompt_tokens: int
    output_tokens: int
    stopped_by_length: bool
    """Whether the response ends at the token limit: `finish_reason` is "length", not "stop"."""
    spans: tuple[int, ...]
    first_word: int = 0
    """Index of the first word of the response; greater than 0 if the response continues a generated text."""
    tool: str = ""
    """Name of the tool that the response calls; empty for none."""
    call_from: int = 0
    """Index of the first word in the arguments of the call: the middle of the response."""


def parse_completion(chat: bool, body: bytes, model: str, max_model_len: int, rng: Random) -> CompletionRequest:
    """Parse a completion request.

    Args:
        chat: whether the path is /v1/chat/completions; else /v1/completions.
        body: JSON.
        model: name of the model that the engine serves.
        max_model_len: maximum tokens of prompt and response together.
        rng: draws the length of the response, unless `ignore_eos` is set.

    Raises:
        BadRequest: the request is invalid; status and message are those of vLLM.
    """
    try:
        asked = (_CHAT if chat else _COMPLETION).decode(body)
    except (
        ValueError,
        RecursionError,
    ) as error:  # msgspec errors, invalid UTF-8, excessive nesting
        raise BadRequest(400, "BadRequestError", str(error)) from None
    if asked.model != model:
        raise BadRequest(404, "NotFoundError", f"The model `{asked.model}` does not exist.", "model")
    limit, written_words, tool = asked.max_tokens, 0, ""
    if isinstance(asked, _Chat):
        if asked.tools and bytes(asked.tool_choice) == b'"auto"':
            tool = asked.tools[0].function.name
        limit = asked.max_completion_tokens or limit
        if asked.continue_final_message:
            written_words = _take_final_message(asked)
        text = "".join(f"<|{message.role}|>\n{_text(message)}\n" for message in asked.messages)
        prompt_tokens = _tokens(text) + written_words
    elif isinstance(asked.prompt, str):
        written_words = trailing_words(asked.prompt)
        text = asked.prompt.removesuffix(words(0, written_words))
        prompt_tokens = _tokens(text) + written_words
    else:
        text, prompt_tokens = " ".join(map(str, asked.prompt)), len(asked.prompt)
    if limit is None and not chat:
        limit = DEFAULT_COMPLETION_TOKENS
    room = _room(prompt_tokens, limit, max_model_len)
    wanted = room + 1 if asked.ignore_eos else _output_tokens(text, written_words, rng)
    options = asked.stream_options
    include_usage = options is not None and bool(options.include_usage)
    return CompletionRequest(
        stream=bool(asked.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and options is not None and bool(options.continuous_usage_stats),
        prompt_tokens=prompt_tokens,
        output_tokens=min(wanted, room),
        stopped_by_length=wanted > room,
        spans=_spans(text),
        first_word=written_words,
        tool=tool,
        call_from=max(written_words, (written_words + min(wanted, room)) // 2),
    )


def _take_final_message(asked: _Chat) -> int:
    """Remove the message that the response continues and return its number of words; each word is a token."""
    if asked.add_generation_prompt:
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise BadRequest(400, "BadRequestError", message)
    final = asked.messages.pop()
    if final.role != "assistant":
        raise BadRequest(400, "BadRequestError", "The final message is not the assistant's.", "continue_final_message")
    return len(_text(final).split())


def _room(prompt_tokens: int, limit: int | None, max_model_len: int) -> int:
    requested = prompt_tokens + (limit or 1)
    if requested > max_model_len:
        raise BadRequest(
            400,
            "BadRequestError",
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {requested} tokens "
            f"({prompt_tokens} in the messages, {limit or 1} in the completion). Please reduce the length of the "
            "messages or completion.",
        )
    return limit or max_model_len - prompt_tokens


def _text(message: _Message) -> str:
    if isinstance(message.content, list):
        return "".join(bytes(part["text"]).decode(errors="replace") for part in message.content if "text" in part)
    return message.content or ""


def _tokens(text: str) -> int:
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def answer_length(tokens: int) -> str:
    """Return the end of a prompt's text that makes the engine generate `tokens` tokens, within `max_tokens`."""
    return f" <answer {tokens}>"


def _output_tokens(text: str, written_words: int, rng: Random) -> int:
    """Return the length that the prompt ends with, without the words already generated, or a likely length."""
    found = _ANSWER_LENGTH.search(text[-_ANSWER_LENGTH_CHARACTERS:])
    if found is not None:
        return max(1, int(found[1]) - written_words)
    return max(1, round(exp(rng.gauss(OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION))))


def _spans(text: str) -> tuple[int, ...]:
    """Ids of the prompt's complete spans: each is the hash of the text up to the end of the span."""
    span_characters = SPAN_TOKENS * CHARACTERS_PER_TOKEN
    running = blake2b(digest_size=8)
    spans = []
    for start in range(0, len(text) - span_characters + 1, span_characters):
        running.update(text[start : start + span_characters].encode("utf-8", "surrogatepass"))
        spans.append(int.from_bytes(running.digest(), "big"))
    return tuple(spans)
