"""Reads Envoy's messages: heads of requests and responses, the endpoints that are permitted, the one that served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.headers.header_rules import Header
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.protocol.request_head import complete_head, head_bytes
from regional_agent.upstream.response_head import ResponseHead, is_malformed

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the dynamic metadata, in which the picker states the endpoints."""

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
LB_NAMESPACE: Final = "envoy.lb"

UPSTREAM_ADDRESS: Final = "upstream.address"
CODE_DETAILS: Final = "response.code_details"
"""Attributes of a response that Envoy sends if its configuration lists them."""

VIA_UPSTREAM: Final = "via_upstream"
"""The detail of a response that an endpoint sent, and not Envoy itself."""

MAX_SUBSET: Final = 4096
"""Maximum number of endpoints of a subset; further ones are ignored."""

_GATEWAY_PREFIX: Final = b"x-gateway-destination-endpoint"
"""Headers of the endpoint picker protocol, which have no meaning if a client sends them."""

_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")


def read_request_head(
    received: Sequence[Header], limits: Limits, location_header: bytes, *, ends: bool
) -> Request | Refusal:
    """Return the request whose head Envoy sends, by the rules for heads of clients, or the refusal.

    Args:
        received: the headers as Envoy has them, with those that begin with a colon.
        location_header: name of the header with a client's location; empty if none is configured.
        ends: whether the request has no body.
    """
    request = Request()
    scheme_host: dict[bytes, bytes] = {}
    headers = request.headers
    for name, value in received:
        if name.startswith(b":"):
            scheme_host[name] = value
        elif name.startswith(_GATEWAY_PREFIX):
            continue
        elif _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            headers.append((name, value))
        else:
            return Refusal(Reason.BAD_REQUEST, "a header is malformed")
    request.method = scheme_host.get(b":method", b"")
    request.target = scheme_host.get(b":path", b"")
    if not request.method or not request.target or not _NAME.fullmatch(request.method.lower()):
        return Refusal(Reason.BAD_REQUEST, "the request has no method or no path")
    if len(headers) > limits.max_headers or head_bytes(request) > limits.max_head_bytes:
        return Refusal(Reason.HEAD_TOO_LARGE, "the request head is too large")
    if not any(name == b"host" for name, _ in headers):
        headers.append((b"host", scheme_host.get(b":authority", b"")))
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or not all(_DIGITS.fullmatch(value) for value in lengths):
        return Refusal(Reason.BAD_REQUEST, "Content-Length is not one number")
    problem = complete_head(request, "1.1", location_header)
    if problem is not None:
        return Refusal(Reason.BAD_REQUEST, problem)
    if ends:
        request.length, request.whole = 0, True
    elif not lengths:
        request.length = None
    return request


def scheme_of(received: Sequence[Header]) -> bytes:
    """Return the scheme by which the client reached Envoy, by the headers as Envoy has them."""
    schemes = [value for name, value in received if name == b":scheme"]
    return b"https" if schemes == [b"https"] else b"http"


def read_response_head(message: Any) -> ResponseHead | None:
    """Return the head of the response that Envoy received, without the headers of HTTP/2; None if it is malformed."""
    status, headers = 0, []
    for name, value in headers_of(message):
        if name == b":status" and _DIGITS.fullmatch(value):
            status = int(value)
        elif not name.startswith(b":"):
            headers.append((name, value))
    if is_malformed(status, "1.1", [header for header in headers if header[0] != b"transfer-encoding"]):
        return None
    by_name = dict(headers)
    if not _DIGITS.fullmatch(by_name.get(b"content-length", b"0")):
        return None
    return ResponseHead(status, headers, by_name)


def subset_of(message: Any) -> frozenset[str] | None:
    """Return the endpoints of which Envoy permits one, as `ip:port`; None if it permits every endpoint.

    Args:
        message: `ProcessingRequest`.
    """
    namespaces = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in namespaces:
        return None
    fields = namespaces[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "string_value":
        listed = value.string_value.split(",")
    else:
        listed = [each.string_value for each in value.list_value.values[:MAX_SUBSET]]
    return frozenset(each.strip() for each in listed[:MAX_SUBSET] if each.strip())


def served_by(message: Any) -> str:
    """Return the `ip:port` of the endpoint that responded; empty if Envoy does not state it.

    Args:
        message: `ProcessingRequest` with the head of a response.
    """
    namespaces = message.metadata_context.filter_metadata
    if LB_NAMESPACE in namespaces:
        fields = namespaces[LB_NAMESPACE].fields
        if SERVED in fields and fields[SERVED].string_value:
            return str(fields[SERVED].string_value)
    return _attribute(message, UPSTREAM_ADDRESS)


def own_response_of_envoy(message: Any) -> str:
    """Return why Envoy itself responded, and no endpoint did; empty for the response of an endpoint, or if unknown."""
    details = _attribute(message, CODE_DETAILS)
    return "" if details.startswith(VIA_UPSTREAM) else details


def _attribute(message: Any, name: str) -> str:
    for attributes in message.attributes.values():
        if name in attributes.fields:
            return str(attributes.fields[name].string_value)
    return ""


def headers_of(message: Any) -> list[Header]:
    """Return the headers in `HttpHeaders`, names in lower case."""
    return header_list(message.headers)


def header_list(headers: Any) -> list[Header]:
    """Return the headers in `HeaderMap`, names in lower case."""
    # `raw_value` has the bytes as received; only old versions of Envoy set `value`.
    return [
        (header.key.encode("latin-1", "replace").lower(), header.raw_value or header.value.encode())
        for header in headers.headers
    ]
