"""Reads the routing fields of any JSON body, whole or still arriving.

The first byte selects the path. Property: the fields or a refusal; where Python's parser reads the body too, the model
is the one it reads, from the whole body and from every part of it that names one; a replaced model is the only change;
the estimated work is finite and positive, and usage of any size can be learned from.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from penstock.policy.policy import Cost, CostUnit
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.cost_estimate import CostEstimator
from penstock.routing.reasons import Refusal
from penstock.routing.usage import Usage
from regional_agent.http.messages import Request
from regional_agent.routing.classify import MAX_MODEL, RequestFields, classify
from regional_agent.routing.model_name import named_model, replace_model
from regional_agent.routing.work_estimate import work_estimate_of

WORDS = (
    *(b'"model":"m"', b'"stream":true', b'"max_tokens":', b'"max_completion_tokens":', b'"n":', b'"size":"1024x1024"'),
    *(b'"steps":', b'"num_inference_steps":', b'"input":"', b'"prompt_cache_key":"', b'"user":null', b'"messages":['),
    *(b'"prompt":"', b"\\u006d", b"\\ud800", b"\\", b'"', b"{", b"}", b"[", b"]", b"9" * 40, b"1e999", b"NaN", b"\xff"),
)

_ROUTES = {route.path.encode(): route for route in OPENAI_ROUTES if "POST" in route.methods}
_PATHS = sorted(_ROUTES)
_COSTS = [Cost(unit, 1.0, 1.0) for unit in CostUnit]


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    path, body = _PATHS[data[0] % len(_PATHS)] if data else _PATHS[0], data[1:]
    plain = plain_object(body)
    fields = classify(body)
    if isinstance(fields, RequestFields):
        assert 0 <= len(fields.model) <= MAX_MODEL
        if plain is not None:
            assert fields.model == plain["model"]
        _estimate(path, body, fields)
        _replace(path, body, plain)
    else:
        assert isinstance(fields, Refusal)
        assert fields.detail
    if plain is not None:
        for end in range(0, len(body), max(1, len(body) // 16)):
            part = named_model(_request(path, body[:end], whole=False))
            assert part is None or isinstance(part, Refusal) or part == plain.get("model")


def plain_object(body: bytes) -> dict[str, Any] | None:
    """The body as Python reads it; None where it is no object, or names a field twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a field is repeated")
        return dict(pairs)

    try:
        plain = json.loads(body.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None
    return plain if isinstance(plain, dict) else None


def _estimate(path: bytes, body: bytes, fields: RequestFields) -> None:
    for cost in _COSTS:
        expectations = CostEstimator()
        estimate = work_estimate_of(_request(path, body), fields, "tenant", cost, expectations)
        _is_possible(estimate.work.prefill_s, estimate.work.decode_s)
        expectations.observe("tenant", fields.model, estimate.ask, Usage(1_000_000, 1_000_000), 1.0)
        after = work_estimate_of(_request(path, body), fields, "tenant", cost, expectations)
        _is_possible(after.work.prefill_s, after.work.decode_s)


def _is_possible(*times_s: float) -> None:
    assert all(isfinite(time_s) and 0.0 <= time_s <= 1e12 for time_s in times_s)


def _replace(path: bytes, body: bytes, plain: dict[str, Any] | None) -> None:
    request = _request(path, body)
    replaced = replace_model(request, 'an"other')
    if replaced is None:
        assert request.body == body
        return
    assert replaced.model == 'an"other'
    if plain is not None:
        assert json.loads(bytes(request.body)) == {**plain, "model": 'an"other'}


def _request(path: bytes, body: bytes, *, whole: bool = True) -> Request:
    request = Request()
    request.method, request.target, request.path = b"POST", path, path
    request.route = _ROUTES[path]
    request.headers = [(b"host", b"a"), (b"content-type", b"application/json")]
    request.index()
    request.body, request.whole, request.received_bytes = body, whole, len(body)
    request.length = len(body)
    return request
