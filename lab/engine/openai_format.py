"""Encodes responses of OpenAI's API as vLLM does: completions whole and in chunks, models, errors."""

from __future__ import annotations

from typing import Any

import msgspec

_WORDS = (
    "water", "flows", "down", "through", "the", "gate", "and", "turns", "a", "wheel", "that", "lights", "every",
    "town", "along", "river", "while", "rain", "fills", "lake", "above", "again", "so", "it", "never", "runs", "dry",
)  # fmt: skip
"""Words of generated text, repeated. No word needs escaping in JSON."""

DONE = b"data: [DONE]\n\n"


def words(start: int, count: int) -> str:
    """The text of output tokens `start` to `start + count - 1`: one word each, preceded by a space."""
    return "".join(" " + _WORDS[index % len(_WORDS)] for index in range(start, start + count))


def trailing_words(text: str) -> int:
    """Return how many words of generated text, counted from the first word, `text` ends with."""
    written, longest = text.split(), 0
    last = _WORDS.index(written[-1]) if written and written[-1] in _WORDS else -1
    for count in range(last + 1, len(written) + 1, len(_WORDS)):
        if count and text.endswith(words(0, count)):
            longest = count
    return longest


class CompletionFormat:
    """Encodes the response to one request. Chunks differ only in text and tail, so the rest is encoded once."""

    content_type = "text/event-stream; charset=utf-8"

    __slots__ = ("_chat", "_first_word", "_head", "_id", "_model", "_prompt_tokens", "_stamp", "_tail")

    def __init__(
        self,
        chat: bool,
        answer_id: str,
        created: int,
        model: str,
        first_word: int = 0,
        prompt_tokens: int | None = None,
    ) -> None:
        """Create the format of one response.

        Args:
            chat: whether the path is /v1/chat/completions; else /v1/completions.
            answer_id: unique; appended to "chatcmpl-" or "cmpl-".
            created: Unix time (s).
            model: name of the model.
            first_word: index of the first word of the response.
            prompt_tokens: tokens of the prompt if each chunk contains the usage; else None.
        """
        self._prompt_tokens = prompt_tokens
        self._first_word = first_word
        self._chat = chat
        self._id = ("chatcmpl-" if chat else "cmpl-") + answer_id
        self._stamp = created
        self._model = model
        opening = '"delta":{"content":"' if chat else '"text":"'
        self._head = (self._event_start() + f'"choices":[{{"index":0,{opening}').encode()
        self._tail = b'"},"logprobs":null,"finish_reason":' if chat else b'","logprobs":null,"finish_reason":'

    def role_event(self) -> bytes:
        """The first chunk of a chat stream, which contains the role; empty for completions."""
        if not self._chat:
            return b""
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return (self._event_start() + f'"choices":[{{"index":0,{delta}}}]').encode() + self._end(0)

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """Events with `count` tokens from index `start`; the last event contains the finish reason."""
        events, end = [], start + count
        for first in range(start, end, tokens_per_event):
            last = min(first + tokens_per_event, end)
            text = words(self._first_word + first, last - first).encode()
            if last == end and finish_reason is not None:
                tail = b'"%b","stop_reason":null}]' % finish_reason.encode()
            else:
                tail = b"null}]"
            events.append(self._head + text + self._tail + tail + self._end(last))
        return b"".join(events)

    def delta_event(self, delta: dict[str, Any], finish_reason: str | None, tokens: int) -> bytes:
        """One chunk of a chat stream with any delta, after which `tokens` tokens have been generated."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._event_start().encode() + b'"choices":[' + msgspec.json.encode(choice) + b"]" + self._end(tokens)

    def _end(self, tokens: int) -> bytes:
        """The end of a chunk, with the usage so far if the client requested `continuous_usage_stats`."""
        if self._prompt_tokens is None:
            return b"}\n\n"
        counts = self._prompt_tokens, self._prompt_tokens + tokens, tokens
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n' % counts

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        """The usage chunk after the last token, for clients that request `stream_options.include_usage`."""
        return (self._event_start() + '"choices":[],"usage":').encode() + msgspec.json.encode(usage) + b"}\n\n"

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """The end of a stream."""
        return (self.usage_event(usage) if include_usage else b"") + DONE

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The body of a response that is not streamed."""
        text = words(self._first_word, tokens)
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return self.body_of(content, finish_reason, usage)

    def body_of(self, content: dict[str, Any], finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The body of a response that is not streamed, with the content of its only choice."""
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if self._chat else "text_completion",
                "created": self._stamp,
                "model": self._model,
                "choices": [
                    {
                        "index": 0,
                        **content,
                        "logprobs": None,
                        "finish_reason": finish_reason,
                        "stop_reason": None,
                    }
                ],
                "usage": usage,
            }
        )

    def _event_start(self) -> str:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return f'data: {{"id":"{self._id}","object":"{kind}","created":{self._stamp},"model":"{self._model}",'


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The token counts of one response."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error_body(status: int, error_type: str, message: str, param: str | None = None) -> bytes:
    """An error body as vLLM encodes it: OpenAI's format, with the HTTP status as the code."""
    return msgspec.json.encode({"error": {"message": message, "type": error_type, "param": param, "code": status}})


def models_body(model: str, created: int, max_model_len: int, revision: str = "") -> bytes:
    """The response to GET /v1/models; `revision` is the root of the model, empty for its name."""
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": revision or model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [],
    }
    return msgspec.json.encode({"object": "list", "data": [card]})
