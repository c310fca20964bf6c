"""Reads and replaces the model name in a request.

Requests of routes that name the model in other places than OpenAI's API are read by
`regional_agent.requests.route_fields`; the following applies to OpenAI's places.

JSON is complete when a request is routed; other bodies may still be arriving. The value that the engine itself reads
has precedence: the top-level `model` of a JSON body, or the `model` field of a multipart form. Without a body of JSON
and without such a field, the `x-model` header and the query parameter `model` name the model, and must agree. A body
that parsers could read differently is refused; the part of a form that arrives after the request was routed is checked
too (`Request.body_check`).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import msgspec

from penstock.routes.classify import MAX_MODEL, RequestFields, classify, json_problem
from penstock.routes.route import BodyKind
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.body_checks import content_codings, scan_form
from regional_agent.requests.query_values import query_values
from regional_agent.requests.route_fields import can_replace_route_model, has_json, replace_route_model, route_fields

MODEL_HEADER: Final = b"x-model"

MAX_TOKENS: Final = 50_000
"""Maximum number of strings and brackets examined at the start of a JSON body, in about ten milliseconds."""

_UPLOAD: Final = BodyKind.UPLOAD
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_STRING: Final = rb'"((?:[^"\\]|\\.)*+)'
_TOKEN: Final = re.compile(_STRING + rb'(?:"(?:\s*+:\s*+' + _STRING + rb'")?)?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, with its value if that is a string too. An unterminated string extends to the end of the
body: otherwise each quote in it would be tried as the start of a string."""
_ESCAPED_ASCII: Final = b"\\u00"
_MODEL_VALUE: Final = re.compile(rb'"model"[ \t\r\n]*+:[ \t\r\n]*+' + _STRING + rb'"', re.DOTALL)
"""A key `model` at any depth, with its value if that is a string. The key is written without escapes."""

_RAW_TYPES: Final = (b"audio/", b"video/", b"image/", b"application/octet-stream")


def is_upload(request: Request) -> bool:
    """Whether the body is a multipart form or a media file, or JSON by its Content-Type."""
    route = request.route
    return route is not None and route.body is _UPLOAD


def is_json(request: Request) -> bool:
    """Whether the body is treated as JSON: always, except for an upload with another Content-Type.

    Engines that accept JSON parse it whatever its Content-Type is.
    """
    if not is_upload(request):
        return True
    kind = (request.header(b"content-type") or b"").lower()
    return not kind.startswith((b"multipart/", *_RAW_TYPES))


def request_fields(request: Request) -> RequestFields | Refusal:
    """The routing fields of a request, from the part that has arrived, or its refusal."""
    if request.reader is not None:
        return route_fields(request, request.reader)
    if not request.plain and content_codings(request):
        detail = "the body is compressed, and names the model; send it without Content-Encoding"
        return Refusal(Reason.BAD_REQUEST, detail)
    if not request.upgrade:
        if is_upload(request):
            ambiguous = _ambiguous_type(request)
            if ambiguous:
                return Refusal(Reason.BAD_REQUEST, ambiguous)
        if is_json(request):
            body, content_type = request.body, (request.by_name or request.index()).get(b"content-type")
            return json_problem(content_type, body, request.whole) or classify(body)
    model = named_model(request)
    if model is None:
        remedy = "add `?model=NAME` to its URL" if request.upgrade else "send its name in an x-model header"
        return Refusal(Reason.BAD_REQUEST, f"the request names no model; {remedy}")
    if isinstance(model, Refusal):
        return model
    return RequestFields(model, stream=bool(request.upgrade))


def reads_whole(request: Request) -> bool:
    """Whether the body must be complete before the request can be handled: JSON, in which any part may decide."""
    if request.reader is not None:
        return has_json(request, request.reader)
    return is_json(request)


def can_start_early(request: Request) -> bool:
    """Whether a request with a large body that is not JSON can be handled before its body is complete: its model is
    known."""
    if request.reader is not None:
        return not isinstance(route_fields(request, request.reader), Refusal)
    return isinstance(named_model(request), str)


def named_model(request: Request) -> str | Refusal | None:
    """The model name of a tunnel or of a body that is not JSON, or a refusal; None where there is no name, or it has
    not arrived yet."""
    found: str | None = None
    if not request.upgrade and (request.header(b"content-type") or b"").lower().startswith(b"multipart/"):
        form = scan_form(request)
        if isinstance(form, Refusal):
            return form
        found = form.scanner.model
        if found is None:
            beside = _beside_body(request)
            form.expected = beside if isinstance(beside, str) else None
            return beside
        form.expected = None
    if found is None:
        return _beside_body(request)
    return found if 0 < len(found) <= MAX_MODEL else None


def _ambiguous_type(request: Request) -> str:
    """Why engines could parse an upload by another Content-Type than this agent, or an empty string."""
    kinds = request.every(b"content-type")
    if len(kinds) > 1:
        return "the header Content-Type is repeated"
    if is_upload(request) and kinds and kinds[0].lower().startswith(b"application/x-www-form-urlencoded"):
        return "send the form as multipart/form-data"
    return ""


def _beside_body(request: Request) -> str | Refusal | None:
    """The model name in the header or the query."""
    names = set(request.every(MODEL_HEADER))
    in_query = query_values(request.target, "model")
    if isinstance(in_query, str):
        return Refusal(Reason.BAD_REQUEST, in_query)
    names.update(value.encode() for value in in_query)
    if len(names) > 1:
        return Refusal(Reason.BAD_REQUEST, "x-model and the query parameter `model` name several models; send one name")
    if not names:
        return None
    name = names.pop().decode("utf-8", "replace")
    return name if 0 < len(name) <= MAX_MODEL else None


def can_replace_model(request: Request) -> bool:
    """Whether the model name can be replaced: only in a path, or in a JSON body that is complete and kept."""
    if request.reader is not None:
        return can_replace_route_model(request, request.reader)
    return request.whole and not request.upgrade and not request.body_dropped and is_json(request)


def replace_model(request: Request, model: str) -> RequestFields | None:
    """Replace the model name in the body, and no other byte; returns the fields of the new body.

    Returns None, and changes nothing, where the name is repeated or written with escapes: the engine could read another
    name than the agent.
    """
    if not can_replace_model(request):
        return None
    if request.reader is not None:
        return replace_route_model(request, request.reader, model)
    span = model_span(request.body)
    if span is None:
        return None
    start, end = span
    body = request.body[:start] + msgspec.json.encode(model)[1:-1] + request.body[end:]
    fields = classify(body)
    if not isinstance(fields, RequestFields) or fields.model != model:
        return None
    request.body, request.length = body, len(body)
    return fields


def model_span(body: bytes | bytearray) -> tuple[int, int] | None:
    """Start and end of the top-level `model` value in a JSON body that has one, without the quotes.

    None where the value or its key is written with escapes, and where the body has another `model`, and more than
    MAX_TOKENS before the top-level one.
    """
    found = list(islice(_MODEL_VALUE.finditer(body), 2))
    if len(found) == 1 and _ESCAPED_ASCII not in body:
        return _plain_span(found[0], 1)
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(body)):
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and token[1] == b"model" and token[2] is not None:
            return _plain_span(token, 2)
        if count >= MAX_TOKENS:
            return None
    return None


def _plain_span(found: re.Match[bytes], group: int) -> tuple[int, int] | None:
    return found.span(group) if b"\\" not in found[group] else None
