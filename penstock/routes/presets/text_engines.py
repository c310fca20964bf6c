"""The native APIs of engines for text: Text Generation Inference and SGLang, which name no model, and Ollama.

Sources: docs/openapi.json of https://github.com/huggingface/text-generation-inference,
https://docs.sglang.io/basic_usage/native_api.html and python/sglang/srt/entrypoints/http_server.py of SGLang,
docs/api.md of https://github.com/ollama/ollama.
"""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import GET, IN_BODY, fixed_or_beside, not_offered
from penstock.routes.route import NO_TOKENS, BodyKind, CostFields, ErrorFormat, Route, StreamKind, UsageFields

_TGI_COST: Final = CostFields(
    prompt=("/inputs",), max_tokens=("/parameters/max_new_tokens",), count=("/parameters/best_of",)
)
_TGI_USAGE: Final = UsageFields(
    ("/details",), prompt_tokens=("/input_length",), answer_tokens=("/generated_tokens",), cached_tokens=()
)

_SGLANG_COST: Final = CostFields(
    prompt=("/text", "/input_ids"), max_tokens=("/sampling_params/max_new_tokens",), count=("/sampling_params/n",)
)

_OLLAMA_USAGE: Final = UsageFields(
    ("",), prompt_tokens=("/prompt_eval_count",), answer_tokens=("/eval_count",), cached_tokens=()
)
_OLLAMA_LIMIT: Final = ("/options/num_predict",)


def tgi_routes(model: str | None) -> tuple[Route, ...]:
    """Text Generation Inference. Its errors are `{"error": "...", "error_type": "..."}`, like those of KServe."""
    places, errors = fixed_or_beside(model), ErrorFormat.KSERVE
    no_tokens = CostFields(generates=False, uses_tokens=False, prompt=("/inputs", "/messages"))
    return (
        Route("tgi-generate", "/generate", model=places, cost=_TGI_COST, usage=_TGI_USAGE, errors=errors),
        Route(
            "tgi-generate-stream",
            "/generate_stream",
            model=places,
            stream=StreamKind.SSE,
            cost=_TGI_COST,
            usage=_TGI_USAGE,
            errors=errors,
        ),
        Route(
            "tgi-root",
            "/",
            model=places,
            stream=StreamKind.SSE,
            stream_field="/stream",
            cost=_TGI_COST,
            usage=_TGI_USAGE,
            errors=errors,
        ),
        Route("tgi-info", "/info", GET, places, BodyKind.NONE, cost=NO_TOKENS, errors=errors),
        Route("tgi-tokenize", "/tokenize", model=places, cost=no_tokens, errors=errors),
        Route("tgi-chat-tokenize", "/chat_tokenize", model=places, cost=no_tokens, errors=errors),
    )


def sglang_routes(model: str | None) -> tuple[Route, ...]:
    """SGLang's native API."""
    places, session = fixed_or_beside(model), ("/session_params/id",)
    no_output = CostFields(generates=False, prompt=("/text", "/input_ids"))
    return (
        Route(
            "sglang-generate",
            "/generate",
            frozenset({"POST", "PUT"}),
            places,
            stream=StreamKind.SSE,
            stream_field="/stream",
            cost=_SGLANG_COST,
            usage=UsageFields(("/meta_info",), cached_tokens=("/cached_tokens",)),
            session=session,
        ),
        Route("sglang-encode", "/encode", frozenset({"POST", "PUT"}), places, cost=no_output),
        Route("sglang-classify", "/classify", frozenset({"POST", "PUT"}), places, cost=no_output),
    )


OLLAMA_ROUTES: Final = (
    *(
        Route(
            name,
            path,
            model=IN_BODY,
            stream=StreamKind.NDJSON,
            stream_field="/stream",
            streams_by_default=True,
            cost=CostFields(prompt=(prompt,), max_tokens=_OLLAMA_LIMIT),
            usage=_OLLAMA_USAGE,
            errors=ErrorFormat.KSERVE,
        )
        for name, path, prompt in (
            ("ollama-chat", "/api/chat", "/messages"),
            ("ollama-generate", "/api/generate", "/prompt"),
        )
    ),
    *(
        Route(
            name,
            path,
            model=IN_BODY,
            cost=CostFields(generates=False, prompt=(prompt,)),
            usage=_OLLAMA_USAGE,
            errors=ErrorFormat.KSERVE,
        )
        for name, path, prompt in (
            ("ollama-embed", "/api/embed", "/input"),
            ("ollama-embeddings", "/api/embeddings", "/prompt"),
        )
    ),
    *not_offered(
        "ollama",
        (
            "/api/blobs/{digest}",
            "/api/copy",
            "/api/create",
            "/api/delete",
            "/api/ps",
            "/api/pull",
            "/api/push",
            "/api/show",
            "/api/version",
        ),
        ErrorFormat.KSERVE,
    ),
)
"""Ollama's errors are `{"error": "..."}`, as a response and as the last line of a stream."""
