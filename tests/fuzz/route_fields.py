"""Reads the routing fields of any request of routes that are not OpenAI's.

The first byte selects the route; the rest is the path and the body, separated by a line feed. Property: the fields or a
refusal. Where Python's parser reads the body too, the model is the one that it reads at the pointer; a replaced model
is the only change.
"""

from __future__ import annotations

import json

from penstock.routes.classify import MAX_MODEL
from penstock.routes.route import BodyKind, CostFields, ModelLocation, ModelSource, Route, StreamKind
from penstock.routes.route_table import RouteMatch, RouteTable
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.model_name import can_start_early, replace_model, request_fields
from tests.fuzz.json_body import assert_one_spelling, plain_object

WORDS = (
    *(b'"model":"m"', b'"Model":', b'"options":{', b'"stream":true', b'"steps":', b"%2F", b"%2e", b"..", b"?model=m"),
    *(b"\\u006d", b"\\ud800", b"\\", b'"', b"{", b"}", b"[", b"]", b"9" * 40, b"1e999", b"NaN", b"\xff"),
)

_COST = CostFields(max_tokens=("/options/max",), steps=("/steps",), width=("/items/0/width",))
_NESTED = ModelLocation(ModelSource.JSON, "/options/model")
_IN_PATH = ModelLocation(ModelSource.PATH, "model")
_ROUTES = [
    RouteTable([route])
    for route in (
        Route("nested", "/a/{x}", model=(_NESTED,), cost=_COST, session=("/user",)),
        Route("both", "/a/{model}", model=(_IN_PATH, _NESTED), stream=StreamKind.SSE, stream_field="/stream"),
        Route("path", "/a/{model}", model=(_IN_PATH,), cost=_COST),
        Route("opaque", "/a/{model}", model=(_IN_PATH,), body=BodyKind.OPAQUE),
    )
]


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    table = _ROUTES[data[0] % len(_ROUTES)] if data else _ROUTES[0]
    path, _, body = data[1:].partition(b"\n")
    request = _request(table, path, body)
    if request is None:
        return
    fields = request_fields(request)
    assert fields is not None
    assert request.reader is not None
    plain = plain_object(body) if request.reader.model_pointers else None
    named = plain.get("options") if plain is not None else None
    in_body = named.get("model") if isinstance(named, dict) else None
    if isinstance(fields, Refusal):
        assert fields.detail
    else:
        assert 0 < len(fields.model) <= MAX_MODEL
        assert in_body is None or fields.model == in_body
        if plain is not None or not request.reader.model_pointers:
            assert fields.model in {in_body, request.path_parameters.get("model")}
        if request.reader.model_pointers:
            _options_in_one_spelling(body)
    changed = replace_model(request, 'an"other')
    if changed is not None:
        assert changed.model == 'an"other'
        if plain is not None and isinstance(named, dict) and "model" in named:
            plain["options"] = {**named, "model": 'an"other'}
            assert json.loads(bytes(request.body)) == plain
    part = _request(table, path, body[: len(body) // 2], whole=False)
    assert part is not None
    can_start_early(part)
    assert request_fields(part) is not None


def _options_in_one_spelling(body: bytes) -> None:
    try:
        pairs = json.loads(body.decode(), object_pairs_hook=lambda pairs: pairs)
    except RecursionError:
        return
    if not body.lstrip().startswith(b"{"):
        return
    assert_one_spelling(pairs, "options")
    options = dict(pairs).get("options")
    if isinstance(options, list) and all(isinstance(pair, tuple) for pair in options):
        assert_one_spelling(options, "model")


def _request(table: RouteTable, path: bytes, body: bytes, *, whole: bool = True) -> Request | None:
    target = b"/a/" + path
    match = table.find(b"POST", target.partition(b"?")[0])
    if not isinstance(match, RouteMatch):
        return None
    request = Request()
    request.method, request.target, request.path = b"POST", target, target.partition(b"?")[0]
    request.headers = [(b"host", b"a"), (b"content-type", b"application/json")]
    request.index()
    request.route, request.reader, request.path_parameters = match.route, match.reader, match.parameters
    request.body, request.whole, request.received_bytes, request.length = body, whole, len(body), len(body)
    return request
