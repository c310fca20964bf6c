"""Estimates the work of a request, and computes the cache keys that it shares with earlier requests."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.cost_inputs import cost_inputs
from penstock.media.media_parts import LARGE_BODY_BYTES, media_in
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.routes.route import CostFields
from penstock.routing.affinity import BLOCK_BYTES, prefix_keys, session_key
from penstock.routing.session_home import conversation_key
from regional_agent.http.headers.header_rules import SESSION_HEADERS
from regional_agent.http.messages import Request
from regional_agent.requests.classify import RequestFields

MAX_SESSION_BYTES: Final = 256

MAX_PROMPT_OFFSET_BYTES: Final = 64 * 1024
"""Size (bytes) of the part of a body in which the start of the prompt is searched. If it is not found, the prefix is
that of the body."""

_NO_COST: Final = CostFields()
_TOKEN: Final = CostUnit.TOKEN
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')


def work_estimate_of(
    request: Request, fields: RequestFields, tenant: str, cost: Cost, expectations: CostEstimator
) -> WorkEstimate:
    """Estimate the work of a request, and compute its cache keys, from the part of the request that has arrived.

    Args:
        cost: of the model, by policy.
    """
    model, cost_fields = fields.model, cost_fields_of(request)
    size_bytes = len(request.body) if request.whole else request.length or len(request.body)
    cost = cost.on_route(cost_fields)
    inputs = cost_inputs(cost_fields, fields.values, cost.unit, size_bytes)
    if cost.unit is _TOKEN and (len(request.body) > LARGE_BODY_BYTES or model in expectations.linked_images):
        media = media_in(request.body)
        if media is not None:
            inputs = msgspec.structs.replace(inputs, media=media)
    estimate = WorkEstimate(
        tenant, model, cost, inputs, expectations.estimate(cost, tenant, model, inputs), fields.stream
    )
    if len(request.body) > BLOCK_BYTES and cost.unit is _TOKEN:
        estimate.prefix = prefix_keys(_scope(estimate), prompt_of(request.body))
    session = session_of(request, fields)
    if session:
        estimate.session = session_key(_scope(estimate), session)
    return estimate


def cost_fields_of(request: Request) -> CostFields:
    """The cost fields of the route of a request."""
    return _NO_COST if request.route is None else request.route.cost


def session_of(request: Request, fields: RequestFields) -> bytes:
    """The name of the conversation that a request belongs to; empty where it has none."""
    headers = request.by_name or request.index()
    for name in SESSION_HEADERS:
        header = headers.get(name)
        if header:
            return header[:MAX_SESSION_BYTES]
    return bytes(memoryview(fields.session)[:MAX_SESSION_BYTES]) if fields.session else b""


def session_key_of(request: Request, estimate: WorkEstimate) -> int | None:
    """The key by which a session has a home region: of its name, or of the beginning of the conversation."""
    if estimate.session is not None:
        return estimate.session
    if estimate.cost.unit is not _TOKEN:
        return None
    return conversation_key(_scope(estimate), prompt_of(request.body))


def _scope(estimate: WorkEstimate) -> str:
    return f"{estimate.tenant}/{estimate.model}"


def prompt_of(body: bytes | bytearray) -> memoryview:
    """The part of a JSON body from its prompt on: fields before it may differ between requests with one prompt."""
    start = end = min(len(body), MAX_PROMPT_OFFSET_BYTES)
    for name in _PROMPTS:
        at = body.find(name, 0, start)
        if at >= 0:
            start = at
    return memoryview(body)[start if start < end else 0 :]
