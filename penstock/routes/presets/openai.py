"""OpenAI's API, as vLLM, SGLang and other engines serve it (https://platform.openai.com/docs/api-reference)."""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import BESIDE_BODY, GET, IN_BODY, not_offered
from penstock.routes.route import (
    NO_TOKENS,
    BodyKind,
    CostFields,
    ErrorFormat,
    ModelLocation,
    ModelSource,
    Route,
    StreamKind,
    Timeouts,
    UsageFields,
)

_SESSION: Final = ("/prompt_cache_key", "/user")
_MAX_TOKENS: Final = ("/max_completion_tokens", "/max_tokens")
_USAGE_ON_REQUEST: Final = UsageFields(request="/stream_options/include_usage")
_USAGE_OF_MEDIA: Final = UsageFields(
    prompt_tokens=("/prompt_tokens", "/input_tokens"),
    answer_tokens=("/completion_tokens", "/output_tokens"),
    cached_tokens=("/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens"),
)
"""OpenAI names the tokens of images and audio like those of Responses; vLLM names them like those of chats."""
_USAGE_OF_SESSIONS: Final = UsageFields(
    objects=("/usage", "/response/usage"),
    prompt_tokens=("/prompt_tokens", "/input_tokens"),
    answer_tokens=("/completion_tokens", "/output_tokens"),
    cached_tokens=("/prompt_tokens_details/cached_tokens", "/input_token_details/cached_tokens"),
)
"""OpenAI states the usage of a response in `response.done`, vLLM that of a transcription in `transcription.done`."""
_STEPS: Final = ("/steps", "/num_inference_steps")

_IN_UPLOAD: Final = (ModelLocation(ModelSource.FORM, "model"), *IN_BODY, *BESIDE_BODY)
_IMAGE: Final = CostFields(count=("/n",), size=("/size",), steps=_STEPS)

OPENAI_ROUTES: Final = (
    Route(
        "openai-chat-completions",
        "/v1/chat/completions",
        model=IN_BODY,
        stream=StreamKind.SSE,
        stream_field="/stream",
        cost=CostFields(prompt=("/messages",), max_tokens=_MAX_TOKENS, count=("/n",)),
        usage=_USAGE_ON_REQUEST,
        session=_SESSION,
    ),
    Route(
        "openai-completions",
        "/v1/completions",
        model=IN_BODY,
        stream=StreamKind.SSE,
        stream_field="/stream",
        cost=CostFields(prompt=("/prompt",), max_tokens=_MAX_TOKENS, count=("/n",)),
        usage=_USAGE_ON_REQUEST,
        session=_SESSION,
    ),
    Route(
        "openai-responses",
        "/v1/responses",
        model=IN_BODY,
        stream=StreamKind.SSE,
        stream_field="/stream",
        cost=CostFields(prompt=("/input",), max_tokens=("/max_output_tokens",)),
        usage=UsageFields(
            objects=("/usage", "/response/usage"),
            prompt_tokens=("/input_tokens",),
            answer_tokens=("/output_tokens",),
            cached_tokens=("/input_tokens_details/cached_tokens",),
        ),
        session=_SESSION,
        object_id="/id",
        previous_object="/previous_response_id",
        foreign_objects=("/conversation",),
    ),
    Route(
        "openai-response",
        "/v1/responses/{response_id}",
        frozenset({"DELETE", "GET"}),
        body=BodyKind.NONE,
        cost=NO_TOKENS,
        object_id="response_id",
    ),
    Route(
        "openai-response-cancel",
        "/v1/responses/{response_id}/cancel",
        body=BodyKind.OPAQUE,
        cost=NO_TOKENS,
        object_id="response_id",
    ),
    Route(
        "openai-response-input-items",
        "/v1/responses/{response_id}/input_items",
        GET,
        body=BodyKind.NONE,
        cost=NO_TOKENS,
        object_id="response_id",
    ),
    Route(
        "openai-embeddings",
        "/v1/embeddings",
        model=IN_BODY,
        timeouts=Timeouts(first_byte_s=60.0),
        cost=CostFields(generates=False, prompt=("/input",)),
        session=_SESSION,
    ),
    Route(
        "openai-images-generations",
        "/v1/images/generations",
        model=IN_BODY,
        stream=StreamKind.SSE,
        stream_field="/stream",
        cost=_IMAGE,
        usage=_USAGE_OF_MEDIA,
        session=_SESSION,
    ),
    *(
        Route(name, path, model=_IN_UPLOAD, body=BodyKind.UPLOAD, cost=cost, usage=_USAGE_OF_MEDIA)
        for name, path, cost in (
            ("openai-images-edits", "/v1/images/edits", _IMAGE),
            ("openai-images-variations", "/v1/images/variations", _IMAGE),
            ("openai-audio-transcriptions", "/v1/audio/transcriptions", CostFields()),
            ("openai-audio-translations", "/v1/audio/translations", CostFields()),
        )
    ),
    Route(
        "openai-audio-speech",
        "/v1/audio/speech",
        model=IN_BODY,
        stream=StreamKind.CHUNKED,
        stream_field="/stream",
        cost=CostFields(speech=("/input",)),
        usage=_USAGE_OF_MEDIA,
        session=_SESSION,
    ),
    Route(
        "openai-realtime",
        "/v1/realtime",
        GET,
        model=BESIDE_BODY,
        body=BodyKind.NONE,
        stream=StreamKind.WEBSOCKET,
        usage=_USAGE_OF_SESSIONS,
        message_model=("/session/model", "/model", "/response/model"),
    ),
    *not_offered(
        "openai",
        (
            "/v1/assistants",
            "/v1/assistants/{id}",
            "/v1/audio/voices",
            "/v1/batches",
            "/v1/batches/{id}",
            "/v1/batches/{id}/cancel",
            "/v1/conversations",
            "/v1/conversations/{id}",
            "/v1/containers",
            "/v1/evals",
            "/v1/files",
            "/v1/files/{id}",
            "/v1/files/{id}/content",
            "/v1/fine_tuning/jobs",
            "/v1/fine_tuning/jobs/{id}",
            "/v1/moderations",
            "/v1/realtime/sessions",
            "/v1/threads",
            "/v1/threads/{id}",
            "/v1/threads/{id}/messages",
            "/v1/threads/{id}/runs",
            "/v1/uploads",
            "/v1/uploads/{id}/complete",
            "/v1/uploads/{id}/parts",
            "/v1/vector_stores",
            "/v1/vector_stores/{id}",
            "/v1/vector_stores/{id}/files",
            "/v1/vector_stores/{id}/search",
            "/v1/videos",
        ),
        ErrorFormat.OPENAI,
    ),
)
"""The routes of the preset `openai`, which a bundle without a RoutePresets document has."""
