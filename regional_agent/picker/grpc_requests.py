"""Inferences over gRPC (KServe V2) that pass through Envoy: their route, their statuses, and refusals in gRPC's form.

A request has the route of its method with the model of its first message as a part of the path, so that keys, routes of
tenants, budgets and logs treat it as a request over HTTP.

Source of the statuses: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from penstock.http.header_rules import Header
from penstock.routes.kserve_messages import InferMessages
from penstock.routes.presets.kserve import GRPC_METHODS
from regional_agent.http.messages import Request

STATUS: Final = b"grpc-status"
OK: Final = b"0"

_CONTENT_TYPE: Final = b"application/grpc"
_METHODS: Final = frozenset(method.encode() for method in GRPC_METHODS)

_GRPC_OF_HTTP: Final = {
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    405: 12,
    408: 4,
    413: 8,
    421: 9,
    429: 8,
    431: 8,
    451: 7,
    501: 12,
}
_GRPC_OF_HTTP_5XX: Final = {500: 13, 502: 14, 503: 14, 504: 4}
_UNKNOWN: Final = 2
_MAX_STATUS_DIGITS: Final = 2

_HTTP_OF_GRPC: Final = {
    3: 400,
    5: 404,
    6: 409,
    7: 403,
    9: 400,
    10: 409,
    11: 400,
    12: 404,
    16: 401,
    1: 499,
    2: 500,
    4: 504,
    8: 429,
    13: 500,
    14: 503,
    15: 500,
}


def is_inference(request: Request) -> bool:
    """Whether a request is an inference over gRPC."""
    return request.path in _METHODS and (request.header(b"content-type") or b"").startswith(_CONTENT_TYPE)


def path_of(method: bytes, messages: InferMessages | None) -> bytes:
    """Return the path by which a request is routed; with a placeholder for the model before its name has arrived."""
    if messages is None or messages.model is None:
        return method + b"/-"
    path = f"/{quote(messages.model, safe='')}"
    if messages.version:
        path += f"/versions/{quote(messages.version, safe='')}"
    return method + path.encode()


def http_status(headers: Sequence[Header]) -> int | None:
    """Return the HTTP status that corresponds to the status of gRPC in headers or trailers; None if they have none."""
    for name, value in headers:
        if name == STATUS:
            is_number = value.isdigit() and len(value) <= _MAX_STATUS_DIGITS
            return 200 if value == OK else _HTTP_OF_GRPC.get(int(value) if is_number else _UNKNOWN, 500)
    return None


def grpc_status(status: int) -> int:
    """Return the status of gRPC for a refusal with an HTTP status."""
    return _GRPC_OF_HTTP.get(status) or _GRPC_OF_HTTP_5XX.get(status, _UNKNOWN)


def message_of(body: bytes) -> bytes:
    """Return the message of an error in one of the API's formats, for `grpc-message`."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error).encode()
    except (ValueError, KeyError, TypeError):
        return b""
