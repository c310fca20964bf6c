"""Reads any bytes as a message of Envoy to the endpoint picker.

Property: what is not a message is rejected by `BadMessage`; what protobuf accepts too has the same body and headers; a
head becomes a request or a refusal; a request has a method, a path and valid headers, none of which the endpoint picker
protocol or HTTP/2 sets, and repeats no header that may occur once.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from penstock.http.header_rules import SINGLE_HEADERS
from penstock.routing.reasons import Refusal
from regional_agent.http.limits import Limits
from regional_agent.picker import message_reading
from regional_agent.picker.processing_request import (
    MAX_SUBSET,
    REQUEST_BODY,
    REQUEST_HEADERS,
    ProcessingRequest,
    read_processing_request,
)
from regional_agent.picker.protobuf_wire import BadMessage
from tests.support.ext_proc_messages import ProcessingRequest as ProtobufRequest

LIMITS = Limits()
WORDS = (
    b":method",
    b":path",
    b":authority",
    b"POST",
    b"/v1/chat/completions",
    b"content-length",
    b"host",
    b"connection",
)


def check(data: bytes) -> None:
    """Check one message."""
    try:
        message = read_processing_request(data)
    except BadMessage:
        return
    _compare(message, data)
    assert message.subset is None or len(message.subset) <= MAX_SUBSET
    message_reading.own_response_of_envoy(message)
    head = message_reading.read_response_head(message.headers)
    assert head is None or 100 <= head.status <= 599
    request = message_reading.read_request_head(message.headers, LIMITS, b"x-country", ends=message.ends)
    if isinstance(request, Refusal):
        return
    assert request.method
    assert request.target
    assert len(request.headers) <= LIMITS.max_headers + 1
    for name, value in request.headers:
        assert not name.startswith((b":", b"x-gateway-destination-endpoint"))
        assert b"\r" not in value
        assert b"\n" not in value
    assert all(len(request.every(name)) <= 1 for name in SINGLE_HEADERS)


def _compare(message: ProcessingRequest, data: bytes) -> None:
    try:
        expected = ProtobufRequest.FromString(data)
    except DecodeError:
        return  # in a field that is not used here
    if message.kind == REQUEST_BODY:
        assert message.body == expected.request_body.body
    elif message.kind == REQUEST_HEADERS:
        headers = [
            (each.key.encode().lower(), each.raw_value or each.value.encode())
            for each in expected.request_headers.headers.headers
        ]
        assert message.headers == headers
