"""Reads Envoy's messages: heads of requests and responses, the endpoints that are permitted, the one that served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead, is_malformed
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request
from regional_agent.http.protocol.request_head import complete_head, head_bytes
from regional_agent.picker.processing_request import ProcessingRequest

VIA_UPSTREAM: Final = "via_upstream"
"""The detail of a response that an endpoint sent, and not Envoy itself."""

_NOT_OF_CLIENTS: Final = (b"x-gateway-destination-endpoint", b"x-envoy-")
"""Headers of the endpoint picker protocol, and headers by which clients would set the retries and timeouts of Envoy."""

_FAULTS_OF_CLIENT: Final = {
    400: Reason.BAD_REQUEST,
    408: Reason.REQUEST_TIMEOUT,
    413: Reason.BODY_TOO_LARGE,
    431: Reason.HEAD_TOO_LARGE,
}
"""Statuses with which Envoy responds to a client whose head or body is malformed, does not arrive, or is too large."""

_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")

MAX_KEPT_NAMES: Final = 1024
MAX_KEPT_NAME_BYTES: Final = 64
_names: dict[bytes, bool] = {}
"""Whether a client may send a header, by its name, for the names that occur; few do."""


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
    headers, values = request.headers, []
    for header in received:
        name, value = header
        values.append(value)
        if name.startswith(b":"):
            scheme_host[name] = value
            continue
        passes = _names.get(name)
        if passes is None:
            if not _NAME.fullmatch(name):
                return Refusal(Reason.BAD_REQUEST, "a header is malformed")
            passes = _keep_name(name)
        if passes:
            headers.append(header)
    joined = b"\0".join(values)
    if joined.find(b"\n") >= 0 or joined.find(b"\r") >= 0 or joined.count(b"\0") >= max(len(values), 1):
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


def status_of(received: Sequence[Header]) -> int:
    """Return the status of a response that Envoy received; 0 without one."""
    for name, value in received:
        if name == b":status" and _DIGITS.fullmatch(value):
            return int(value)
    return 0


def read_response_head(received: Sequence[Header]) -> ResponseHead | None:
    """Return the head of the response that Envoy received, without the headers of HTTP/2; None if it is malformed."""
    status, headers = status_of(received), [header for header in received if not header[0].startswith(b":")]
    # Requests of a picker change no protocol: WebSockets pass it by.
    if status < HTTPStatus.OK or is_malformed(
        status, "1.1", [header for header in headers if header[0] != b"transfer-encoding"]
    ):
        return None
    by_name = dict(headers)
    if not _DIGITS.fullmatch(by_name.get(b"content-length", b"0")):
        return None
    return ResponseHead(status, headers, by_name)


def own_response_of_envoy(message: ProcessingRequest) -> str:
    """Return why Envoy itself responded, and no endpoint did; empty for the response of an endpoint, or if unknown."""
    return "" if message.code_details.startswith(VIA_UPSTREAM) else message.code_details


def fault_of_client(message: ProcessingRequest) -> Refusal | None:
    """Return the refusal of a request that Envoy could not receive from its client; None for its other responses."""
    reason = _FAULTS_OF_CLIENT.get(status_of(message.headers))
    return Refusal(reason, f"the request could not be received whole: {message.code_details}") if reason else None


def refusal_by_envoy(message: ProcessingRequest) -> Refusal:
    """Return the refusal of a request to which Envoy itself responds before it has a target."""
    if status_of(message.headers) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Refusal(Reason.NONE_READY, f"Envoy has refused the request: {message.code_details}")
    malformed = Refusal(Reason.BAD_REQUEST, f"Envoy does not accept such a request: {message.code_details}")
    return fault_of_client(message) or malformed


def _keep_name(name: bytes) -> bool:
    """Return whether a client may send a header with a valid name, and keep it within limits."""
    passes = not name.startswith(_NOT_OF_CLIENTS)
    if len(_names) < MAX_KEPT_NAMES and len(name) <= MAX_KEPT_NAME_BYTES:
        _names[name] = passes
    return passes
