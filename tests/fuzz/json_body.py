"""Reads the routing fields of any JSON body.

The first byte selects the path. Property: the fields or a refusal. Where there are fields, parsers that use the first
or the last of repeated fields, and parsers that ignore the case of names or end a name at a NUL, all read the same in
every field that the agent reads, and the agent reads the same. A replaced model is the only change; the estimated
work is finite and positive, and usage of any size can be learned from.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import CostEstimator
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.routes.classify import MAX_MODEL, OPENAI_NUMBERS, RequestFields, classify
from penstock.routes.presets.openai import OPENAI_ROUTES
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import model_span, replace_model
from regional_agent.requests.request_context import work_estimate_of

WORDS = (
    *(b'"model":"m"', b'"stream":true', b'"max_tokens":', b'"max_completion_tokens":', b'"n":', b'"size":"1024x1024"'),
    *(b'"steps":', b'"num_inference_steps":', b'"input":"', b'"prompt_cache_key":"', b'"user":null', b'"messages":['),
    *(
        b'"Model":"x"',
        b'"STREAM":false',
        b'"\xc5\xbftream":',
        b'"max_to\xe2\x84\xaaens":',
        b"\\u0000",
        b'"n":"1"',
        b'"user":',
    ),
    *(b'"prompt":"', b"\\u006d", b"\\ud800", b"\\", b'"', b"{", b"}", b"[", b"]", b"9" * 40, b"1e999", b"NaN", b"\xff"),
)

READ = ("model", "stream", "user", "prompt_cache_key", *(pointer[1:] for pointer in OPENAI_NUMBERS))

_ROUTES = {route.path.encode(): route for route in OPENAI_ROUTES if "POST" in route.methods}
_PATHS = sorted(_ROUTES)
_COSTS = [Cost(unit, 1.0, 1.0) for unit in CostUnit]


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    path, body = _PATHS[data[0] % len(_PATHS)] if data else _PATHS[0], data[1:]
    fields = classify(body)
    if isinstance(fields, Refusal):
        assert fields.detail
        model_span(body)
        return
    assert 0 <= len(fields.model) <= MAX_MODEL
    _same_for_every_parser(body, fields)
    _estimate(path, body, fields)
    _replace(path, body, plain_object(body))


def _same_for_every_parser(body: bytes, fields: RequestFields) -> None:
    try:
        pairs = json.loads(body.decode(), object_pairs_hook=list)
    except RecursionError:
        return
    for name in READ:
        assert_one_spelling(pairs, name)
    by_name = dict(pairs)
    assert fields.model == by_name["model"]
    assert by_name.get("stream") in (None, fields.stream)
    for pointer in OPENAI_NUMBERS:
        value = by_name.get(pointer[1:])
        assert value is None or (isinstance(value, float | int) and not isinstance(value, bool))


def assert_one_spelling(pairs: list[tuple[str, Any]], name: str) -> None:
    """Asserts that no parser can take another field than `name` for it, and that it occurs at most once."""
    alike = [key for key, _ in pairs if key.partition("\0")[0].upper().casefold() == name]
    assert alike in ([], [name]), name


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
