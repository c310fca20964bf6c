"""Which model a request asks for, where its body is no whole JSON: an upload, a body still coming, a tunnel.

What the engine itself will read counts first: a multipart form's `model` field, or the top-level `model` of a JSON body
of which only the beginning is here. Then the `x-model` header, then `?model=` of the target.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.routing.classify import MAX_MODEL, UPLOAD_PATHS, RequestFields, classify

MODEL_HEADER: Final = b"x-model"

MAX_TOKENS: Final = 50_000
"""Strings and brackets of a large JSON body's beginning that are looked at: some ten milliseconds."""

MAX_FORM_HEAD_BYTES: Final = 16 * 1024
"""The boundary line and headers of one part of a form."""

_STRING: Final = rb'"((?:[^"\\]|\\.)*+)'
_TOKEN: Final = re.compile(_STRING + rb'(?:"(?:\s*+:\s*+' + _STRING + rb'")?)?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, with its value where that is a string too. A string without an end counts as one to the end:
otherwise each quote in it would be tried as a beginning."""
_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"\r\ncontent-disposition[ \t]*+:[^;\r\n]*+([^\r\n]*+)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';[ \t]*+([^=;\s"]++)[ \t]*+=[ \t]*+("(?:[^"\\]|\\.)*+"|[^;"]*+)')

MAX_PARTS: Final = 64
"""Parts of a form, and fields of a query, that are looked at."""

TELL_US: Final = "name it in an x-model header"


def is_json(request: Request) -> bool:
    """Whether the body is meant as JSON: always, but for what is uploaded and says that it is something else.

    Engines that take JSON read it as that whatever its Content-Type says, so that does not tell which model is meant.
    """
    if request.path not in UPLOAD_PATHS:
        return True
    kind = (request.header(b"content-type") or b"").lower()
    return not kind.startswith((b"multipart/", b"audio/", b"video/", b"image/", b"application/octet-stream"))


def asked_of(request: Request) -> RequestFields | Refusal:
    """What a request asks for, from what there is of it."""
    if request.whole and not request.upgrade and is_json(request):
        asked = classify(request.body)
        if isinstance(asked, Refusal) and request.header(b"content-encoding") is not None:
            return Refusal(asked.reason, f"{asked.detail}; bodies are read here: send it without Content-Encoding")
        return asked
    model = named_model(request)
    if model is None:
        where = f"in the first {len(request.body)} bytes of the body" if request.body else "in the request"
        return Refusal(Reason.BAD_REQUEST, f"no model is named {where}, or two are; {TELL_US}")
    return RequestFields(model, stream=bool(request.upgrade))


def named_model(request: Request) -> str | None:
    """The model, or None where it is not named, or not yet."""
    if is_json(request):
        found = _in_json(request.body)
    else:
        fields = _in_form(request)
        if len(fields) > 1:
            return None
        found = fields[0] if fields else None
    if found is None:
        found = request.header(MODEL_HEADER)
    if found is None and b"?" in request.target:
        found = _in_query(request.target)
    if not found or len(found) > MAX_MODEL:
        return None
    return found.decode("utf-8", "replace")


def model_span(body: bytes | bytearray) -> tuple[int, int] | None:
    """Where in a JSON body the value of the top-level `model` stands, without its quotes, as far as the body goes.

    None where there is none, or it is written with escapes.
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
    """The value of the top-level `model`."""
    span = model_span(body)
    return bytes(body[span[0] : span[1]]) if span is not None else None


def _in_query(target: bytes) -> bytes | None:
    """The value of the one field `model`; of two, readers would take different ones."""
    try:
        given = parse_qs(target.partition(b"?")[2].decode("latin-1"), max_num_fields=MAX_PARTS).get("model", [])
    except ValueError:
        return None
    return given[0].encode() if len(given) == 1 else None


def _in_form(request: Request) -> list[bytes]:
    """The values of the fields `model` of a multipart form (RFC 7578), as far as the body goes."""
    boundary = _BOUNDARY.search(request.header(b"content-type") or b"")
    if boundary is None:
        return []
    body, line = request.body, b"--" + (boundary[1] or boundary[2])
    found: list[bytes] = []
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
            found.append(bytes(body[head_end + 4 : after]).strip())
        at = after + 2
    return found


def _is_model(head: bytes) -> bool:
    """Whether some reader would take the part that begins so for the field `model`."""
    names = [
        value.strip(b' \t"').replace(b"\\", b"")
        for disposition in _DISPOSITION.findall(head)
        for key, value in _PARAMETER.findall(disposition)
        if key.lower() in (b"name", b"name*")
    ]
    return any(name.rpartition(b"'")[2] == b"model" for name in names)
