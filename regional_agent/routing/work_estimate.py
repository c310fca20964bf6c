"""Estimates the work of a request, and computes the cache keys that it shares with earlier requests."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.media.media_parts import LARGE_BODY_BYTES, media_in
from penstock.policy.policy import Cost, CostUnit
from penstock.routing.affinity import BLOCK_BYTES, prefix_keys, session_key
from penstock.routing.cost_estimate import CostEstimator
from penstock.routing.cost_inputs import MAX_AT_ONCE, MAX_PIXELS, MAX_STEPS, cost_inputs
from penstock.routing.placement import WorkEstimate
from penstock.routing.usage import MAX_TOKENS, OPENAI_USAGE
from penstock.routing.work import CostInputs
from regional_agent.http.messages import Request
from regional_agent.routing.classify import Raw, RequestFields, RouteFields

SESSION_HEADER: Final = b"x-session-id"
"""Header that names a conversation. Without it, OpenAI's `prompt_cache_key` is used, and without both, `user`."""

MAX_SESSION_BYTES: Final = 256

MAX_PROMPT_OFFSET_BYTES: Final = 64 * 1024
"""Size (bytes) of the part of a body in which the start of the prompt is searched. If it is not found, the prefix is
that of the body."""

_TOKEN: Final = CostUnit.TOKEN
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')


def work_estimate_of(
    request: Request, fields: RequestFields, tenant: str, cost: Cost, expectations: CostEstimator
) -> WorkEstimate:
    """Estimate the work of a request, and compute its cache keys, from the part of the request that has arrived."""
    model, inputs = fields.model, _cost_inputs(request, fields, cost.unit)
    if cost.unit is _TOKEN and (len(request.body) > LARGE_BODY_BYTES or model in expectations.linked_images):
        media = media_in(request.body)
        if media is not None:
            inputs = msgspec.structs.replace(inputs, media=media)
    estimate = WorkEstimate(
        tenant, model, cost, inputs, expectations.estimate(cost, tenant, model, inputs), fields.stream is True
    )
    if request.route is not None and request.route.usage is not OPENAI_USAGE:
        estimate.usage_fields = request.route.usage
    if len(request.body) > BLOCK_BYTES and cost.unit is _TOKEN:
        estimate.prefix = prefix_keys(_scope(estimate), prompt_of(request.body))
    session = session_of(request, fields)
    if session:
        estimate.session = session_key(_scope(estimate), session)
    return estimate


def session_of(request: Request, fields: RequestFields) -> bytes:
    """The name of the conversation that a request belongs to; empty where it has none."""
    header = (request.by_name or request.index()).get(SESSION_HEADER)
    for named in (header, fields.prompt_cache_key, fields.user):
        if named and (name := bytes(named)) != b"null":
            return name[:MAX_SESSION_BYTES]
    return b""


def _scope(estimate: WorkEstimate) -> str:
    return f"{estimate.tenant}/{estimate.model}"


def _cost_inputs(request: Request, fields: RequestFields, unit: CostUnit) -> CostInputs:
    size_bytes = len(request.body) if request.whole else request.length or len(request.body)
    if request.reader is not None:
        values = fields.values if isinstance(fields, RouteFields) else {}
        return cost_inputs(request.reader.route.cost, values, unit, size_bytes)
    count = 1
    if fields.n:
        count = _whole(fields.n, MAX_AT_ONCE) or 1
    if unit is _TOKEN:
        limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
        if limit is not None:
            limit = max(1, min(limit, MAX_TOKENS))
        route = request.route
        return CostInputs(size_bytes, route is None or route.cost.generates, limit, count)
    if unit is CostUnit.MEGAPIXEL_STEP:
        steps = _whole(fields.steps, MAX_STEPS) or _whole(fields.num_inference_steps, MAX_STEPS)
        return CostInputs(size_bytes, count=count, pixels=_pixels(fields.size), steps=steps)
    if unit is CostUnit.AUDIO_SECOND:
        return CostInputs(size_bytes, text_bytes=len(bytes(fields.input)) or None)
    return CostInputs(size_bytes, count=count)


def prompt_of(body: bytes | bytearray) -> memoryview:
    """The part of a JSON body from its prompt on: fields before it may differ between requests with one prompt."""
    start = end = min(len(body), MAX_PROMPT_OFFSET_BYTES)
    for name in _PROMPTS:
        at = body.find(name, 0, start)
        if at >= 0:
            start = at
    return memoryview(body)[start if start < end else 0 :]


def _pixels(size: Raw) -> int | None:
    """The area in a size such as "1024x768"."""
    width, by, height = bytes(size).strip(b'"').partition(b"x")
    if by and width.isdigit() and height.isdigit() and len(width) < 6 and len(height) < 6:
        return min(int(width) * int(height), MAX_PIXELS) or None
    return None


def _whole(raw: Raw, limit: int) -> int | None:
    """A positive integer up to `limit`; None for any other value."""
    text: Any = bytes(raw)
    return max(1, min(int(text), limit)) if text.isdigit() and len(text) < 8 else None
