"""The model name in a request: reads it, also where the body is no complete JSON, and replaces it.

A body is no complete JSON for an upload, a body that is still arriving, and a tunnel. The value that the engine itself
reads has precedence: the `model` field of a multipart form, or the top-level `model` of the beginning of a JSON body.
Next come the `x-model` header and the query parameter `model`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.routing.classify import MAX_MODEL, UPLOAD_PATHS, RequestFields, classify

MODEL_HEADER: Final = b"x-model"

MAX_TOKENS: Final = 50_000
"""Strings and brackets that are examined in the beginning of a JSON body, which takes about ten milliseconds."""

MAX_FORM_HEAD_BYTES: Final = 16 * 1024
"""Largest boundary line and headers of one part of a form."""

MAX_PARTS: Final = 64
"""Parts of a form, and fields of a query, that are examined."""

_STRING: Final = rb'"((?:[^"\\]|\\.)*+)'
_TOKEN: Final = re.compile(_STRING + rb'(?:"(?:\s*+:\s*+' + _STRING + rb'")?)?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, with its value if that is a string too. An unterminated string extends to the end of the
body: otherwise each quote in it would be tried as the start of a string."""
_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"\r\ncontent-disposition[ \t]*+:[^;\r\n]*+([^\r\n]*+)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';[ \t]*+([^=;\s"]++)[ \t]*+=[ \t]*+("(?:[^"\\]|\\.)*+"|[^;"]*+)')


def is_json(request: Request) -> bool:
    """Whether the body is treated as JSON: always, except for an upload whose Content-Type is another one.

    Engines that accept JSON parse it whatever its Content-Type is.
    """
    if request.path not in UPLOAD_PATHS:
        return True
    kind = (request.header(b"content-type") or b"").lower()
    return not kind.startswith((b"multipart/", b"audio/", b"video/", b"image/", b"application/octet-stream"))


def request_fields(request: Request) -> RequestFields | Refusal:
    """The routing fields of a request, from the part that has arrived, or its refusal."""
    if request.whole and not request.upgrade and is_json(request):
        fields = classify(request.body)
        if isinstance(fields, Refusal) and request.header(b"content-encoding") is not None:
            return Refusal(fields.reason, f"{fields.detail}; send the body without Content-Encoding")
        return fields
    model = named_model(request)
    if model is None:
        where = f"the first {len(request.body)} bytes of the body contain" if request.body else "the request contains"
        return Refusal(
            Reason.BAD_REQUEST, f"{where} no model name, or more than one; send the name in an x-model header"
        )
    return RequestFields(model, stream=bool(request.upgrade))


def named_model(request: Request) -> str | None:
    """The model name; None where there is none, or it has not arrived yet."""
    if is_json(request):
        found = _in_json(request.body)
    else:
        values = _in_form(request)
        if len(values) > 1:
            return None
        found = values[0] if values else None
    if found is None:
        found = request.header(MODEL_HEADER)
    if found is None and b"?" in request.target:
        found = _in_query(request.target)
    if not found or len(found) > MAX_MODEL:
        return None
    return found.decode("utf-8", "replace")


def can_replace_model(request: Request) -> bool:
    """Whether the model name can be replaced: only in a JSON body that is complete and kept."""
    return request.whole and not request.upgrade and not request.body_dropped and is_json(request)


def replace_model(request: Request, model: str) -> RequestFields | None:
    """Replace the model name in the body, and no other byte; returns the fields of the new body.

    Returns None, and changes nothing, where the name is repeated or written with escapes: the engine could read another
    name than the agent.
    """
    if not can_replace_model(request):
        return None
    span = _model_span(request.body)
    if span is None:
        return None
    start, end = span
    body = request.body[:start] + msgspec.json.encode(model)[1:-1] + request.body[end:]
    fields = classify(body)
    if not isinstance(fields, RequestFields) or fields.model != model:
        return None
    request.body, request.length = body, len(body)
    return fields


def _model_span(body: bytes | bytearray) -> tuple[int, int] | None:
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


def _in_json(body: bytes | bytearray) -> bytes | None:
    span = _model_span(body)
    return bytes(body[span[0] : span[1]]) if span is not None else None


def _in_query(target: bytes) -> bytes | None:
    """The query parameter `model`; None where it is absent or repeated."""
    try:
        values = parse_qs(target.partition(b"?")[2].decode("latin-1"), max_num_fields=MAX_PARTS).get("model", [])
    except ValueError:
        return None
    return values[0].encode() if len(values) == 1 else None


def _in_form(request: Request) -> list[bytes]:
    """The values of the fields `model` in the part of a multipart form (RFC 7578) that has arrived."""
    boundary = _BOUNDARY.search(request.header(b"content-type") or b"")
    if boundary is None:
        return []
    body, line = request.body, b"--" + (boundary[1] or boundary[2])
    values: list[bytes] = []
    at = body.find(line)
    for _ in range(MAX_PARTS):
        if at < 0:
            break
        head_end = body.find(b"\r\n\r\n", at, at + MAX_FORM_HEAD_BYTES)
        if head_end < 0:
            break
        after = body.find(b"\r\n" + line, head_end)
        if after < 0:
            break
        if _is_model(bytes(body[at:head_end])):
            values.append(bytes(body[head_end + 4 : after]).strip())
        at = after + 2
    return values


def _is_model(head: bytes) -> bool:
    """Whether any parser could take the part with this head for the field `model`."""
    names = [
        value.strip(b' \t"').replace(b"\\", b"")
        for disposition in _DISPOSITION.findall(head)
        for key, value in _PARAMETER.findall(disposition)
        if key.lower() in (b"name", b"name*")
    ]
    return any(name.rpartition(b"'")[2] == b"model" for name in names)
