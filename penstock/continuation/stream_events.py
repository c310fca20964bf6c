"""The server-sent events of a completion stream: the chunks that they contain.

Format of the chunks: https://platform.openai.com/docs/api-reference/chat/streaming.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from penstock.answers.answer_errors import error_in
from penstock.answers.event_splitter import event_fields
from penstock.answers.usage_reader import MAX_REPORTED_TOKENS

DONE_DATA: Final = b"[DONE]"
DONE_EVENT: Final = b"data: [DONE]\n\n"

_DATA: Final = b"data: "
_EVENT_END: Final = b"\n\n"
_CLIENT_ERROR: Final = re.compile("4[0-9]{2}")
_REPORTED_FAILURES: Final = frozenset({"engine_failed", "shutting_down", "stream_stalled"})
"""Codes with which the agent of a serving region reports that its engine failed, or that the agent itself stops."""


class Delta(msgspec.Struct):
    """The part of a chat message that an event adds."""

    role: str | None = None
    content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    audio: Any = None

    @property
    def is_continuable(self) -> bool:
        """Whether the delta adds only text and tool calls."""
        return not (self.function_call or self.reasoning_content or self.reasoning or self.refusal or self.audio)


class Choice(msgspec.Struct):
    """One of the answers of a chunk: a delta of a chat, or text of a completion."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    logprobs: Any = None
    finish_reason: str | None = None

    @property
    def calls_tool(self) -> bool:
        """Whether the choice adds a part of a tool call."""
        return self.delta is not None and bool(self.delta.tool_calls)

    @property
    def content(self) -> str | None:
        """The text that the choice adds; None if the choice has no such field."""
        return self.text if self.delta is None else self.delta.content


class ChunkUsage(msgspec.Struct):
    """The usage up to a chunk (`stream_options.continuous_usage_stats` of vLLM and SGLang), or of the whole stream."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0

    @property
    def is_possible(self) -> bool:
        """Whether the numbers can be those of one answer."""
        most = MAX_REPORTED_TOKENS
        return 0 <= self.prompt_tokens <= most and 0 <= (self.completion_tokens or 0) <= most


class Chunk(msgspec.Struct):
    """The fields of a chunk that a continuation needs."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    object: Any = None
    error: Any = None


_chunk_decoder = msgspec.json.Decoder(Chunk)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_json(text: bytes) -> bool:
    """Whether a text is valid JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def event_data(event: bytes) -> bytes | None:
    """Return the data of an event of one line; of an event named `error`, as a member `error`; None for a comment.

    Raises:
        ValueError: the event has other fields, or several lines of data.
    """
    if event.startswith(_DATA) and event.find(b"\n") == len(event) - len(_EVENT_END):
        return event[len(_DATA) : -len(_EVENT_END)]
    lines = [line for line in event.splitlines() if line and not line.startswith(b":")]
    if not lines:
        return None
    name, named = event_fields(event)
    if name == b"error" and named is not None:
        return b'{"error":%b}' % (named if is_json(named) else msgspec.json.encode(named.decode("utf-8", "replace")))
    if len(lines) > 1 or not lines[0].startswith(b"data:"):
        raise ValueError("an event is not one line of data")
    return lines[0][len(b"data:") :].strip()


def decode_chunk(data: bytes) -> Chunk:
    """Decode the data of an event.

    Raises:
        ValueError: the data is not a chunk.
    """
    try:
        if not data.isascii():
            # The names of members that are passed over are not checked, and fail where the event is rewritten.
            data.decode()
        chunk = _chunk_decoder.decode(data)
        if chunk.error is not None and error_in(_fields_decoder.decode(data)) is None:
            chunk.error = None
        if chunk.object == "error":
            # vLLM until 0.10 sends the error object itself as the data.
            chunk.error = msgspec.json.decode(data)
        return chunk
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def without_usage(data: bytes) -> bytes:
    """Return the event with the chunk `data`, without its usage."""
    fields = _fields_decoder.decode(data)
    fields.pop("usage", None)
    return encode_event(fields)


def encode_event(data: object) -> bytes:
    """Return an event with `data` as JSON."""
    return b"data: %b\n\n" % msgspec.json.encode(data)


def reported_reason(error: Any) -> str:
    """Return the reason code by which the agent of a serving region reports a failure; empty for any other error."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) and code in _REPORTED_FAILURES else ""


def engine_failure(error: Any) -> str:
    """Return the message of an error in a stream if the engine failed; empty if the request caused the error.

    vLLM and SGLang send a number as the code, like the HTTP status; agents send a reason code.
    """
    if not isinstance(error, dict):
        return str(error)[:200]
    code = error.get("code")
    message = str(error.get("message") or "the engine reported an error")[:200]
    if isinstance(code, str) and not (code.isascii() and code.isdigit()):
        return message if code in _REPORTED_FAILURES else ""
    return "" if _CLIENT_ERROR.fullmatch(str(code)) else message
