"""Reads and replaces the model name in a request, also if the body is not complete JSON.

Requests of routes that name the model in other places than OpenAI's API are read by
`regional_agent.routing.route_fields`; the following applies to OpenAI's places.

The body of an upload, a body that is still arriving, and the body of a tunnel are not complete JSON. The value that the
engine itself reads has precedence: the `model` field of a multipart form, or the top-level `model` of a JSON body.
Without such a value, the `x-model` header and the query parameter `model` name the model, and must agree. A body that
parsers could read differently is refused; the part of a body that arrives after the request was routed is checked too
(`Request.body_check`).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from penstock.routes.route import BodyKind
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.routing.body_checks import MODEL_STRING, JsonCheck, scan_form
from regional_agent.routing.classify import MAX_MODEL, RequestFields, classify
from regional_agent.routing.route_fields import (
    can_replace_route_model,
    can_start_route_early,
    replace_route_model,
    route_fields,
)

MODEL_HEADER: Final = b"x-model"

MAX_TOKENS: Final = 50_000
"""Maximum number of strings and brackets examined at the start of a JSON body, in about ten milliseconds."""

MAX_QUERY_FIELDS: Final = 64

_UPLOAD: Final = BodyKind.UPLOAD
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_STRING: Final = rb'"((?:[^"\\]|\\.)*+)'
_TOKEN: Final = re.compile(_STRING + rb'(?:"(?:\s*+:\s*+' + _STRING + rb'")?)?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, with its value if that is a string too. An unterminated string extends to the end of the
body: otherwise each quote in it would be tried as the start of a string."""
_WIDE_JSON: Final = re.compile(rb"(?=.{0,3}\0)[\0\xff\xfe \t\r\n]*+\{", re.DOTALL)
"""The start of a JSON object in UTF-16 or UTF-32, which engines may decode and the agent does not."""

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
    if not request.plain and any(coding.lower() != b"identity" for coding in request.every(b"content-encoding")):
        return Refusal(Reason.BAD_REQUEST, "the body is compressed; send it without Content-Encoding")
    if request.whole and not request.upgrade and not is_upload(request):
        return classify(request.body)
    ambiguous = _ambiguous_type(request)
    if ambiguous:
        return Refusal(Reason.BAD_REQUEST, ambiguous)
    if request.whole and not request.upgrade and is_json(request):
        return classify(request.body)
    model = named_model(request)
    if model is None:
        where = f"the first {len(request.body)} bytes of the body contain" if request.body else "the request contains"
        return Refusal(
            Reason.BAD_REQUEST,
            f"{where} no model name, or more than one; send one, first in the body or in an x-model header",
        )
    if isinstance(model, Refusal):
        return model
    return RequestFields(model, stream=bool(request.upgrade))


def can_start_early(request: Request) -> bool:
    """Whether a request with a large body can be handled before its body is complete: its model is known, and the body
    is not JSON, from which its cost is estimated."""
    if request.reader is not None:
        return can_start_route_early(request, request.reader)
    return not is_json(request) and named_model(request) is not None


def named_model(request: Request) -> str | Refusal | None:
    """The model name, or a refusal; None where there is no name, or it has not arrived yet.

    Header and query do not name the model of JSON that may contain a name, since the engine reads the name in the JSON.
    """
    found: str | None
    if is_json(request):
        body = request.body
        if not request.whole and request.body_check is None and body:
            request.body_check = JsonCheck(body)
        found = _in_json(body)
        if found is None and (MODEL_STRING.search(body) or _WIDE_JSON.match(body)):
            return None
    elif (request.header(b"content-type") or b"").lower().startswith(b"multipart/"):
        form = scan_form(request)
        if isinstance(form, Refusal):
            return form
        found = form.scanner.model
        if found is None:
            beside = _beside_body(request)
            form.expected = beside if isinstance(beside, str) else None
            return beside
        form.expected = None
    else:
        found = None
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
    if b"?" in request.target:
        in_query = _in_query(request.target)
        if in_query is not None:
            names.add(in_query)
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
    """Start and end of the top-level `model` value in a JSON body that may be incomplete, without the quotes.

    None where there is no such value, or it is written with escapes.
    """
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(body)):
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and token[1] == b"model" and token[2] is not None:
            return token.span(2) if b"\\" not in token[2] else None
        if count >= MAX_TOKENS:
            return None
    return None


def _in_json(body: bytes | bytearray) -> str | None:
    """The top-level `model` at the start of a JSON body; None if a parser could read another name.

    The start must be UTF-8, and must contain no other string with the value `model`.
    """
    if b"\0" in body[:4] or not body[:64].lstrip(b" \t\r\n").startswith(b"{") or len(MODEL_STRING.findall(body)) != 1:
        return None
    span = model_span(body)
    return bytes(body[span[0] : span[1]]).decode("utf-8", "replace") if span is not None else None


def _in_query(target: bytes) -> bytes | None:
    """The query parameter `model`; None where it is absent or repeated."""
    try:
        query = target.partition(b"?")[2].decode("latin-1")
        values = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS).get("model", [])
    except ValueError:
        return None
    return values[0].encode() if len(values) == 1 else None
