"""Estimates the work of a request, and the cache keys that it shares with earlier requests."""

from __future__ import annotations

from typing import Any, Final

from penstock.policy.policy import Cost, CostUnit
from penstock.routing.affinity import BLOCK_BYTES, prefix_keys, session_key
from penstock.routing.cost_estimate import CostEstimator
from penstock.routing.placement import WorkEstimate
from penstock.routing.usage import MAX_TOKENS
from penstock.routing.work import CostInputs
from regional_agent.http.messages import Request
from regional_agent.routing.classify import Raw, RequestFields

SESSION_HEADER: Final = b"x-session-id"
"""Names a conversation; without it, OpenAI's `prompt_cache_key` does, and without that `user`."""

MAX_SESSION_BYTES: Final = 256

EMBEDDINGS: Final = b"/v1/embeddings"

MAX_AT_ONCE: Final = 128
MAX_STEPS: Final = 1000
MAX_PIXELS: Final = 1 << 28
"""What a body may claim to ask for; more is taken for this."""

PROMPT_BEGINS_BYTES: Final = 64 * 1024
"""The prompt is looked for in this much of a body; one that begins later is compared from the body's beginning."""

_TOKEN: Final = CostUnit.TOKEN
"""In Python 3.11, to read a member off its class is a function call."""

_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')


def work_estimate_of(
    request: Request, asked: RequestFields, tenant: str, cost: Cost, expectations: CostEstimator
) -> WorkEstimate:
    """What a request will cost and what it is tied to, from what there is of it."""
    model, ask = asked.model, _ask(request, asked, cost.unit)
    estimate = WorkEstimate(
        tenant, model, cost, ask, expectations.guess(cost, tenant, model, ask), asked.stream is True
    )
    if len(request.body) > BLOCK_BYTES and cost.unit is _TOKEN:
        estimate.prefix = prefix_keys(_scope(estimate), _prompt(request.body))
    session = session_of(request, asked)
    if session:
        estimate.session = session_key(_scope(estimate), session)
    return estimate


def session_of(request: Request, asked: RequestFields) -> bytes:
    """The name of the conversation that a request belongs to; empty where it has none."""
    named = (request.by_name or request.index()).get(SESSION_HEADER) or asked.prompt_cache_key or asked.user
    if not named or (name := bytes(named)) == b"null":
        return b""
    return name[:MAX_SESSION_BYTES]


def _scope(estimate: WorkEstimate) -> str:
    return f"{estimate.tenant}/{estimate.model}"


def _ask(request: Request, asked: RequestFields, unit: CostUnit) -> CostInputs:
    size_bytes = len(request.body) if request.whole else request.length or len(request.body)
    count = 1
    if asked.n:
        count = _whole(asked.n, MAX_AT_ONCE) or 1
    if unit is _TOKEN:
        most = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        if most is not None:
            most = max(1, min(most, MAX_TOKENS))
        return CostInputs(size_bytes, request.path != EMBEDDINGS, most, count)
    if unit is CostUnit.MEGAPIXEL_STEP:
        steps = _whole(asked.steps, MAX_STEPS) or _whole(asked.num_inference_steps, MAX_STEPS)
        return CostInputs(size_bytes, count=count, pixels=_pixels(asked.size), steps=steps)
    if unit is CostUnit.AUDIO_SECOND:
        return CostInputs(size_bytes, text_bytes=len(bytes(asked.input)) or None)
    return CostInputs(size_bytes, count=count)


def _prompt(body: bytes | bytearray) -> memoryview:
    """The part of a JSON body from its prompt on: what stands before it differs though the prompt does not."""
    begins = end = min(len(body), PROMPT_BEGINS_BYTES)
    for name in _PROMPTS:
        at = body.find(name, 0, begins)
        if at >= 0:
            begins = at
    return memoryview(body)[begins if begins < end else 0 :]


def _pixels(size: Raw) -> int | None:
    """The area in a size such as "1024x768"."""
    width, by, height = bytes(size).strip(b'"').partition(b"x")
    if by and width.isdigit() and height.isdigit() and len(width) < 6 and len(height) < 6:
        return min(int(width) * int(height), MAX_PIXELS) or None
    return None


def _whole(raw: Raw, most: int) -> int | None:
    text: Any = bytes(raw)
    return max(1, min(int(text), most)) if text.isdigit() and len(text) < 8 else None
