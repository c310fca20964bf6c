"""Estimates the work of a request, and computes the cache keys that it shares with earlier requests."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cost.cost_estimate import CostEstimator
from penstock.cost.request_properties import CostInputs
from penstock.media.media_parts import LARGE_BODY_BYTES, media_in
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.routes.classify import RequestFields
from penstock.routing.affinity import BLOCK_BYTES, prefix_keys, session_key
from penstock.routing.session_home import conversation_key

MAX_SESSION_BYTES: Final = 256

MAX_PROMPT_OFFSET_BYTES: Final = 64 * 1024
"""Size (bytes) of the part of a body in which the start of the prompt is searched. If it is not found, the prefix is
that of the body."""

_TOKEN: Final = CostUnit.TOKEN
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_PROMPTS: Final = (b'"messages"', b'"prompt"', b'"input"')


def estimate_work(
    fields: RequestFields,
    body: bytes | bytearray,
    tenant: str,
    cost: Cost,
    inputs: CostInputs,
    expectations: CostEstimator,
) -> WorkEstimate:
    """Estimate the work of a request, and compute the keys of its prefix, from the part of the body that has arrived.

    Args:
        cost: of the model on the route of the request, by policy.
    """
    model, is_text = fields.model, cost.unit is _TOKEN
    if is_text and (len(body) > LARGE_BODY_BYTES or model in expectations.linked_images):
        media = media_in(body)
        if media is not None:
            inputs = msgspec.structs.replace(inputs, media=media)
    estimate = WorkEstimate(
        tenant, model, cost, inputs, expectations.estimate(cost, tenant, model, inputs), fields.stream
    )
    if is_text and len(body) > BLOCK_BYTES:
        estimate.prefix = prefix_keys(_scope(estimate), prompt_of(body))
    return estimate


def name_session(estimate: WorkEstimate, session: bytes) -> None:
    """Set the key of the conversation that a request belongs to, by its name."""
    estimate.session = session_key(_scope(estimate), session)


def session_key_of(estimate: WorkEstimate, body: bytes | bytearray) -> int | None:
    """The key by which a session has a home region: of its name, or of the beginning of the conversation."""
    if estimate.session is not None:
        return estimate.session
    if estimate.cost.unit is not _TOKEN:
        return None
    return conversation_key(_scope(estimate), prompt_of(body))


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
