"""Anthropic's Messages API, as vLLM and SGLang serve it too.

Sources: https://platform.claude.com/docs/en/api/messages, https://platform.claude.com/docs/en/api/messages-count-tokens,
https://platform.claude.com/docs/en/api/errors, and vllm/entrypoints/anthropic of vLLM 0.2x.
"""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import IN_BODY, not_offered
from penstock.routes.route import CostFields, ErrorFormat, Route, StreamKind, UsageFields

API_KEY_HEADER: Final = "x-api-key"

_SESSION: Final = ("/metadata/user_id",)

ANTHROPIC_ROUTES: Final = (
    Route(
        "anthropic-messages",
        "/v1/messages",
        model=IN_BODY,
        stream=StreamKind.SSE,
        stream_field="/stream",
        cost=CostFields(prompt=("/messages",), max_tokens=("/max_tokens",)),
        usage=UsageFields(
            objects=("/usage", "/message/usage"),
            prompt_tokens=("/input_tokens", "/cache_creation_input_tokens", "/cache_read_input_tokens"),
            answer_tokens=("/output_tokens",),
            cached_tokens=("/cache_read_input_tokens",),
        ),
        errors=ErrorFormat.ANTHROPIC,
        api_key_header=API_KEY_HEADER,
        session=_SESSION,
    ),
    Route(
        "anthropic-count-tokens",
        "/v1/messages/count_tokens",
        model=IN_BODY,
        cost=CostFields(generates=False, uses_tokens=False, prompt=("/messages",)),
        errors=ErrorFormat.ANTHROPIC,
        api_key_header=API_KEY_HEADER,
        session=_SESSION,
    ),
    *not_offered(
        "anthropic",
        (
            "/v1/complete",
            "/v1/messages/batches",
            "/v1/messages/batches/{id}",
            "/v1/messages/batches/{id}/cancel",
            "/v1/messages/batches/{id}/results",
        ),
        ErrorFormat.ANTHROPIC,
    ),
)
