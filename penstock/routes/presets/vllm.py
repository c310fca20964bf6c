"""vLLM's own paths: scoring, pooling and tokenization. SGLang serves /v1/rerank, /v1/score and tokenization too.

Sources: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html, and vllm/entrypoints/pooling and
vllm/entrypoints/serve/tokenize of vLLM.
"""

from __future__ import annotations

from typing import Final

from penstock.routes.presets.model_locations import IN_BODY
from penstock.routes.route import CostFields, Route, Timeouts, UsageFields

_USAGE: Final = UsageFields(prompt_tokens=("/total_tokens",), answer_tokens=())
"""Nothing is generated, so that all tokens are of the prompt. Not all releases of vLLM state these separately."""


def _scores(name: str, path: str, prompt: tuple[str, ...], *, uses_tokens: bool = True) -> Route:
    """A route whose responses contain no generated tokens."""
    return Route(
        f"vllm-{name}",
        path,
        model=IN_BODY,
        timeouts=Timeouts(first_byte_s=60.0),
        cost=CostFields(generates=False, uses_tokens=uses_tokens, prompt=prompt),
        usage=_USAGE,
    )


_RERANK: Final = ("/query", "/documents")
_SCORE: Final = ("/queries", "/text_1", "/data_1")
_INPUT: Final = ("/input", "/messages")

VLLM_ROUTES: Final = (
    _scores("rerank", "/rerank", _RERANK),
    _scores("rerank-v1", "/v1/rerank", _RERANK),
    _scores("rerank-v2", "/v2/rerank", _RERANK),
    _scores("score", "/score", _SCORE),
    _scores("score-v1", "/v1/score", _SCORE),
    _scores("classify", "/classify", _INPUT),
    _scores("pooling", "/pooling", _INPUT),
    _scores("tokenize", "/tokenize", ("/prompt", "/messages"), uses_tokens=False),
    _scores("detokenize", "/detokenize", ("/tokens",), uses_tokens=False),
)
