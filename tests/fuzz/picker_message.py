"""Reads any bytes as a message of Envoy to the endpoint picker.

Property: what is not a message is rejected by protobuf; a head becomes a request or a refusal; a request has a method,
a path and valid headers, none of which the endpoint picker protocol or HTTP/2 sets, and repeats no header that may
occur once.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from penstock.routing.reasons import Refusal
from regional_agent.http.headers.header_rules import SINGLE_HEADERS
from regional_agent.http.limits import Limits
from regional_agent.picker import message_reading
from regional_agent.picker.ext_proc_messages import ProcessingRequest

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
        message = ProcessingRequest.FromString(data)
    except DecodeError:
        return
    subset = message_reading.subset_of(message)
    assert subset is None or len(subset) <= message_reading.MAX_SUBSET
    message_reading.served_by(message)
    message_reading.own_response_of_envoy(message)
    head = message_reading.read_response_head(message.response_headers)
    assert head is None or 100 <= head.status <= 599
    received = message_reading.headers_of(message.request_headers)
    request = message_reading.read_request_head(
        received, LIMITS, b"x-country", ends=message.request_headers.end_of_stream
    )
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
