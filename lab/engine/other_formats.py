"""Encodes APIs other than OpenAI's completions: Messages, Ollama's chat, embeddings, images, videos, unbatched ones.

Messages are served as by vLLM (https://platform.claude.com/docs/en/build-with-claude/streaming), chat as by Ollama
(https://github.com/ollama/ollama/blob/main/docs/api.md): a body is converted to a chat completion, and the response is
encoded from its tokens. Embeddings (https://platform.openai.com/docs/api-reference/embeddings), whose text is prefilled
as a prompt, and images of Automatic1111's web UI (modules/api/models.py of
https://github.com/AUTOMATIC1111/stable-diffusion-webui), whose tokens represent diffusion steps, are served likewise.
So are videos, which take minutes and report their progress.
Rerank, tensor inference and predictions are served immediately.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from lab.engine.completion_request import BadRequest
from lab.engine.openai_format import error_body, words

NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

TOKENS_PER_MEGAPIXEL_STEP: Final = 8
"""Tokens that an image job generates per 10^6 pixels and step, chosen so that an image of 1024x1024 pixels in 30 steps
takes 1.7 s on an H100 with the timing of llama-3.1-8b."""

FRAMES_PER_LATENT: Final = 4
FRAMES_PER_S: Final = 24
"""A video is denoised as an image for each four frames, as by models with a causal 3D autoencoder. 4 s of 1280x720
pixels in 40 steps take 50 s on an H100."""

EMBEDDING_SIZE: Final = 8
"""Dimensions of an embedding; few, because more dimensions only make responses longer."""

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
"""Every generated image: one black pixel."""

INFER_PATH: Final = re.compile(r"/v2/models/([^/]+)/infer")


class AnswerFormat(Protocol):
    """Encodes one response."""

    content_type: str
    """Content type of a streamed response."""

    def role_event(self) -> bytes:
        """The start of a streamed response."""

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """The parts with tokens `start` to `start + count - 1`; `finish_reason` is set for the last tokens."""

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """The end of a streamed response."""

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The body of a response that is not streamed."""


class MessagesFormat:
    """Anthropic's Messages API."""

    content_type = EVENT_STREAM

    def __init__(self, answer_id: str, model: str, prompt_tokens: int) -> None:
        self._id = f"msg_{answer_id}"
        self._model = model
        self._prompt_tokens = prompt_tokens

    def role_event(self) -> bytes:
        """The start of the message and of its only block."""
        message = self._message([], None, {"input_tokens": self._prompt_tokens, "output_tokens": 0})
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _event("message_start", message=message) + _event("content_block_start", **block)

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """One event for each token."""
        return b"".join(
            _event("content_block_delta", index=0, delta={"type": "text_delta", "text": words(start + number, 1)})
            for number in range(count)
        )

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """The end of the block and of the message, always with usage."""
        delta = {"stop_reason": _stop_reason(finish_reason), "stop_sequence": None}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=_anthropic_usage(usage))
            + _event("message_stop")
        )

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The complete message."""
        content = [{"type": "text", "text": words(0, tokens)}]
        return msgspec.json.encode(self._message(content, _stop_reason(finish_reason), _anthropic_usage(usage)))

    def _message(self, content: list[dict[str, str]], stop_reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }


class OllamaFormat:
    """Ollama's chat: JSON lines."""

    content_type = NDJSON

    def __init__(self, model: str) -> None:
        self._model = model

    def role_event(self) -> bytes:
        """Empty: the first line contains a token."""
        return b""

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """One line for each token."""
        lines = (self._line(words(start + number, 1), done=False) for number in range(count))
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """The last line, always with usage."""
        return self._end("", finish_reason, usage) + b"\n"

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """One JSON object."""
        return self._end(words(0, tokens), finish_reason, usage)

    def _line(self, text: str, *, done: bool) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"model": self._model, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": done}

    def _end(self, text: str, finish_reason: str, usage: dict[str, Any]) -> bytes:
        counts = {"prompt_eval_count": usage["prompt_tokens"], "eval_count": usage["completion_tokens"]}
        return msgspec.json.encode({**self._line(text, done=True), "done_reason": finish_reason, **counts})


class WholeFormat:
    """An API that never streams."""

    content_type = "application/json"

    def __init__(self, body: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Args: `body` returns the response for the token usage."""
        self._body = body

    def role_event(self) -> bytes:
        """Empty: the API does not stream."""
        return b""

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """Empty: the API does not stream."""
        return b""

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """Empty: the API does not stream."""
        return b""

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The body."""
        return msgspec.json.encode(self._body(usage))


class VideoFormat:
    """A video: JSON lines with the progress in percent, the last one with the video."""

    content_type = NDJSON

    def __init__(self, tokens: int) -> None:
        """Args: `tokens` is the number of all tokens."""
        self._tokens = tokens

    def role_event(self) -> bytes:
        """The start of the job."""
        return self._line(0)

    def token_events(self, start: int, count: int, finish_reason: str | None, tokens_per_event: int = 1) -> bytes:
        """One line for each new percent."""
        done, before = (100 * tokens // self._tokens for tokens in (start + count, start))
        return self._line(done) if before < done < 100 else b""

    def closing(self, finish_reason: str, usage: dict[str, Any], *, include_usage: bool) -> bytes:
        """The line with the video."""
        return self.whole(self._tokens, finish_reason, usage) + b"\n"

    def whole(self, tokens: int, finish_reason: str, usage: dict[str, Any]) -> bytes:
        """The video."""
        return msgspec.json.encode({"status": "completed", "progress": 100, "video": {"b64_json": PNG}})

    def _line(self, percent: int) -> bytes:
        return msgspec.json.encode({"status": "in_progress", "progress": percent}) + b"\n"


def _text_to_image(_id: str, _model: str, _tokens: int, _of_answer: int) -> AnswerFormat:
    """Automatic1111's txt2img: one image."""
    return WholeFormat(lambda usage: {"images": [PNG], "parameters": {}, "info": "{}"})


def _embedding(_id: str, model: str, tokens: int, _of_answer: int) -> AnswerFormat:
    """OpenAI's embeddings: one vector."""
    data = [{"object": "embedding", "index": 0, "embedding": [0.0] * EMBEDDING_SIZE}]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return WholeFormat(lambda usage: {"object": "list", "data": data, "model": model, "usage": counts})


class OtherFormat(NamedTuple):
    """An API whose requests are batched as chat completions."""

    as_chat: Callable[[bytes], bytes]
    """Converts a body to the body of a chat completion."""
    answer: Callable[[str, str, int, int], AnswerFormat]
    """Creates the format of one response, given its identifier, the model, the tokens of prompt and answer."""
    error: Callable[[int, str], bytes]
    """The body of an error response, given status and message."""


Body = TypeVar("Body")


def _decoded(body: bytes, fields: type[Body], status: int = 400) -> Body:
    try:
        return msgspec.json.decode(body, type=fields)
    except (ValueError, RecursionError) as error:
        raise BadRequest(status, "BadRequestError", str(error)) from None


class _OllamaOptions(msgspec.Struct):
    num_predict: int | None = None


class _OllamaChat(msgspec.Struct):
    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    options: _OllamaOptions | None = None


def _ollama_as_chat(body: bytes) -> bytes:
    asked = _decoded(body, _OllamaChat)
    limit = asked.options.num_predict if asked.options is not None else None
    chat: dict[str, Any] = {"model": asked.model, "messages": asked.messages, "stream": asked.stream is not False}
    if limit is not None and limit > 0:
        chat |= {"max_tokens": limit, "ignore_eos": True}
    return msgspec.json.encode(chat)


class _OverrideSettings(msgspec.Struct):
    sd_model_checkpoint: str


class _TextToImage(msgspec.Struct):
    override_settings: _OverrideSettings
    prompt: str = ""
    width: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 512
    height: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 512
    steps: Annotated[int, msgspec.Meta(ge=1, le=150)] = 50
    batch_size: Literal[1] = 1
    n_iter: Literal[1] = 1


def _text_to_image_as_chat(body: bytes) -> bytes:
    asked = _decoded(body, _TextToImage, 422)
    megapixel_steps = asked.width * asked.height / 1e6 * asked.steps
    chat: dict[str, Any] = {
        "model": asked.override_settings.sd_model_checkpoint,
        "messages": [{"role": "user", "content": asked.prompt}],
        "max_tokens": max(1, round(megapixel_steps * TOKENS_PER_MEGAPIXEL_STEP)),
        "ignore_eos": True,
    }
    return msgspec.json.encode(chat)


class _Video(msgspec.Struct):
    model: str
    prompt: str = ""
    width: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1280
    height: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 720
    seconds: Annotated[int, msgspec.Meta(ge=1, le=60)] = 4
    steps: Annotated[int, msgspec.Meta(ge=1, le=150)] = 40
    stream: bool = False


def _video_as_chat(body: bytes) -> bytes:
    asked = _decoded(body, _Video)
    latents = asked.seconds * FRAMES_PER_S / FRAMES_PER_LATENT
    megapixel_steps = asked.width * asked.height / 1e6 * asked.steps * latents
    chat: dict[str, Any] = {
        "model": asked.model,
        "messages": [{"role": "user", "content": asked.prompt}],
        "max_tokens": max(1, round(megapixel_steps * TOKENS_PER_MEGAPIXEL_STEP)),
        "ignore_eos": True,
        "stream": asked.stream,
    }
    return msgspec.json.encode(chat)


class _Embeddings(msgspec.Struct):
    model: str
    input: str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]


def _embeddings_as_chat(body: bytes) -> bytes:
    asked = _decoded(body, _Embeddings)
    text = asked.input if isinstance(asked.input, str) else asked.input[0]
    messages = [{"role": "user", "content": text}]
    return msgspec.json.encode({"model": asked.model, "messages": messages, "max_tokens": 1, "ignore_eos": True})


def _openai_error(status: int, message: str) -> bytes:
    return error_body(status, "NotFoundError" if status == 404 else "BadRequestError", message)


def _anthropic_error(status: int, message: str) -> bytes:
    kind = "not_found_error" if status == 404 else "invalid_request_error" if status < 500 else "api_error"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def _plain_error(status: int, message: str) -> bytes:
    return msgspec.json.encode({"error": message})


def _detail_error(status: int, message: str) -> bytes:
    return msgspec.json.encode({"detail": message})


OTHER_FORMATS: Final = {
    "/v1/messages": OtherFormat(
        lambda body: body, lambda id, model, tokens, _: MessagesFormat(id, model, tokens), _anthropic_error
    ),
    "/api/chat": OtherFormat(_ollama_as_chat, lambda _id, model, *_: OllamaFormat(model), _plain_error),
    "/v1/embeddings": OtherFormat(_embeddings_as_chat, _embedding, _openai_error),
    "/v1/videos": OtherFormat(_video_as_chat, lambda _id, _model, _, tokens: VideoFormat(tokens), _openai_error),
    "/sdapi/v1/txt2img": OtherFormat(_text_to_image_as_chat, _text_to_image, _detail_error),
}
"""Formats by path. A body of the Messages API is also a valid body of a chat completion."""


def instant_answer(path: str, body: bytes, model: str) -> bytes | None:
    """The response to a request that generates no text; None if the path has no such request.

    Raises:
        ValueError: the body is invalid.
    """
    named = INFER_PATH.fullmatch(path)
    if named is not None:
        return _infer(named[1], body)
    if path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        return _rerank(body, model)
    return msgspec.json.encode({"prediction": len(body)}) if path == "/predict" else None


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] = []


class _Inference(msgspec.Struct):
    inputs: list[_Tensor]


class _Rerank(msgspec.Struct):
    model: str
    query: str
    documents: list[str]


def _infer(model: str, body: bytes) -> bytes:
    """Each output is the sum of the input of the same index."""
    asked = msgspec.json.decode(body, type=_Inference)
    outputs = [
        {"name": tensor.name, "shape": [1], "datatype": tensor.datatype, "data": [math.fsum(tensor.data)]}
        for tensor in asked.inputs
    ]
    return msgspec.json.encode({"model_name": model, "outputs": outputs})


def _rerank(body: bytes, model: str) -> bytes:
    """Rank documents by length, longest first."""
    asked = msgspec.json.decode(body, type=_Rerank)
    ranked = sorted(range(len(asked.documents)), key=lambda index: -len(asked.documents[index]))
    results = [
        {"index": index, "document": {"text": asked.documents[index]}, "relevance_score": 1 / (place + 1)}
        for place, index in enumerate(ranked)
    ]
    usage = {"total_tokens": len(body) // 4, "prompt_tokens": len(body) // 4}
    return msgspec.json.encode({"id": "rerank-1", "model": model, "usage": usage, "results": results})


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def _stop_reason(finish_reason: str) -> str:
    return "max_tokens" if finish_reason == "length" else "end_turn"


def _anthropic_usage(usage: dict[str, Any]) -> dict[str, int]:
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
