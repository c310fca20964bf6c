"""Reads Envoy's `ProcessingRequest` and gRPC's `HealthCheckRequest`, as far as the picker uses them.

The messages are read by hand, since objects of protobuf for each header took a tenth of the CPU time of a request. A
message with two requests is rejected, of which protobuf would merge or drop one.

Sources: https://github.com/envoyproxy/envoy/blob/v1.36.0/api/envoy/service/ext_proc/v3/external_processor.proto,
`config/core/v3/base.proto` beside it, https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto,
and https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/struct.proto.
"""

from __future__ import annotations

from typing import Final

from penstock.http.header_rules import Header
from regional_agent.picker.protobuf_wire import LENGTH, BadMessage, Fields, length_tag, number_tag

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"

NONE: Final = 0
STREAMED: Final = 1
BUFFERED: Final = 2
FULL_DUPLEX_STREAMED: Final = 4
"""`ProcessingMode.BodySendMode`."""

REQUEST_HEADERS: Final = 2
RESPONSE_HEADERS: Final = 3
REQUEST_BODY: Final = 4
RESPONSE_BODY: Final = 5
REQUEST_TRAILERS: Final = 6
RESPONSE_TRAILERS: Final = 7
"""The fields of the oneof `request`."""

_METADATA: Final = length_tag(8)
_ATTRIBUTES: Final = length_tag(9)
_PROTOCOL_CONFIG: Final = length_tag(11)

_FIRST: Final = length_tag(1)
_SECOND: Final = length_tag(2)
_THIRD: Final = length_tag(3)
_FIRST_NUMBER: Final = number_tag(1)
_SECOND_NUMBER: Final = number_tag(2)
_THIRD_NUMBER: Final = number_tag(3)
"""Tags of fields. A field with another wire type is skipped, as protobuf does."""

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key of the dynamic metadata, in which the picker states the endpoints."""

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
LB_NAMESPACE: Final = "envoy.lb"

STREAM: Final = "penstock-stream"
"""Key of the dynamic metadata in which the picker states an identifier of the request, for Envoy's access log."""

UPSTREAM_ADDRESS: Final = "upstream.address"
CODE_DETAILS: Final = "response.code_details"
"""Attributes of a response that Envoy sends if its configuration lists them."""

MAX_SUBSET: Final = 4096
"""Maximum number of endpoints of a subset; further ones are ignored."""

MAX_REST_BYTES: Final = 512 * 1024
"""Maximum size (bytes) of what a message has beside a body: each field costs time, and may have only two bytes."""

MAX_HEADERS: Final = 4096
"""Maximum number of headers of a message."""

MAX_FIELDS: Final = 256
"""Maximum number of fields of a message, and of a body in it."""

MAX_HEALTH_CHECK_BYTES: Final = 1024

_STRING_VALUE: Final = length_tag(3)
_LIST_VALUE: Final = length_tag(6)
"""Fields of `google.protobuf.Value`."""


class ProcessingRequest:
    """One message of Envoy."""

    def __init__(self) -> None:
        """Start without a request."""
        self.kind = 0
        """The field of the oneof `request`; 0 for none that is known."""
        self.headers: list[Header] = []
        """Headers or trailers, names in lower case."""
        self.body = b""
        self.ends = False
        """Whether no body or no further part of it follows; trailers may."""
        self.subset: frozenset[str] | None = None
        """The endpoints of which Envoy permits one, as `ip:port`; None if it permits every endpoint."""
        self.served = ""
        """The `ip:port` of the endpoint that responded; empty if Envoy does not state it."""
        self.upstream_address = ""
        self.code_details = ""
        """Why Envoy responds; empty if it does not state it."""
        self.states_modes = False
        self.request_body_mode = NONE
        self.response_body_mode = NONE


def read_processing_request(data: bytes) -> ProcessingRequest:
    """Return a message of Envoy; raises BadMessage for other bytes."""
    message = ProcessingRequest()
    fields = Fields(data, 0, len(data))
    count = rest = 0
    while fields.advance():
        tag = fields.tag
        kind = tag >> 3
        count += 1
        if kind != REQUEST_BODY and kind != RESPONSE_BODY:
            rest += fields.stop - fields.begin
        if count > MAX_FIELDS or rest > MAX_REST_BYTES:
            raise BadMessage("a message has too many fields")
        if REQUEST_HEADERS <= kind <= RESPONSE_TRAILERS and tag & 7 == LENGTH:
            if message.kind:
                raise BadMessage("a message has two requests")
            message.kind = kind
            if kind in (REQUEST_BODY, RESPONSE_BODY):
                _read_body(fields.inner(), message)
            else:
                _read_headers(fields.inner(), message)
        elif message.kind > RESPONSE_HEADERS:
            # Envoy repeats metadata and attributes with each part of a body.
            continue
        elif tag == _METADATA:
            _read_metadata(fields.inner(), message)
        elif tag == _ATTRIBUTES:
            _read_attributes(fields, message)
        elif tag == _PROTOCOL_CONFIG:
            message.states_modes = True
            modes = fields.inner()
            while modes.advance():
                if modes.tag == _FIRST_NUMBER:
                    message.request_body_mode = modes.value
                elif modes.tag == _SECOND_NUMBER:
                    message.response_body_mode = modes.value
    return message


def read_health_check(data: bytes) -> str:
    """Return the service of a `HealthCheckRequest`; raises BadMessage for other bytes."""
    if len(data) > MAX_HEALTH_CHECK_BYTES:
        raise BadMessage("a health check is too large")
    service, fields = "", Fields(data, 0, len(data))
    while fields.advance():
        if fields.tag == _FIRST:
            service = fields.text()
    return service


def _read_body(fields: Fields, message: ProcessingRequest) -> None:
    """Read `HttpBody`."""
    count = 0
    while fields.advance():
        count += 1
        if count > MAX_FIELDS:
            raise BadMessage("a body has too many fields")
        if fields.tag == _FIRST:
            message.body = fields.content()
        elif fields.tag == _SECOND_NUMBER:
            message.ends = fields.value != 0


def _read_headers(fields: Fields, message: ProcessingRequest) -> None:
    """Read `HttpHeaders` or `HttpTrailers`."""
    while fields.advance():
        if fields.tag == _FIRST:
            headers = fields.inner()
            while headers.advance():
                if headers.tag == _FIRST:
                    message.headers.append(_header(headers.inner()))
                    if len(message.headers) > MAX_HEADERS:
                        raise BadMessage("a message has too many headers")
        elif fields.tag == _THIRD_NUMBER:
            message.ends = fields.value != 0


def _header(fields: Fields) -> Header:
    """Read `HeaderValue`."""
    name, raw_value = fields.short_pair(_FIRST, _THIRD)
    value = b""
    while fields.advance():
        tag = fields.tag
        if tag == _FIRST:
            name = fields.content()
        elif tag == _SECOND:
            value = fields.content()
        elif tag == _THIRD:
            raw_value = fields.content()
    if not name.isascii():
        raise BadMessage("the name of a header is not ASCII")
    # `raw_value` has the bytes as received; only old versions of Envoy set `value`.
    return name.lower(), raw_value or value


def _read_metadata(fields: Fields, message: ProcessingRequest) -> None:
    """Read `Metadata`: a map of namespaces."""
    while fields.advance():
        if fields.tag != _FIRST:
            continue
        namespace, struct = map_entry(fields)
        if namespace == SUBSET_NAMESPACE:
            found = struct_member(struct, SUBSET)
            message.subset = None if found is None else _subset(found)
        elif namespace == LB_NAMESPACE:
            found = struct_member(struct, SERVED)
            message.served = "" if found is None else text_value(found)


def _read_attributes(fields: Fields, message: ProcessingRequest) -> None:
    """Read an entry of `attributes`, a map of the names of filters."""
    _, struct = map_entry(fields)
    while struct.advance():
        if struct.tag == _FIRST:
            name, value = map_entry(struct)
            if name == CODE_DETAILS:
                message.code_details = text_value(value)
            elif name == UPSTREAM_ADDRESS:
                message.upstream_address = text_value(value)


def map_entry(entry: Fields) -> tuple[str, Fields]:
    """Return key and value of an entry of a map, which is the current field of `entry`."""
    key, value, fields = "", Fields(entry.data, 0, 0), entry.inner()
    while fields.advance():
        if fields.tag == _FIRST:
            key = fields.text()
        elif fields.tag == _SECOND:
            value = fields.inner()
    return key, value


def struct_member(struct: Fields, name: str) -> Fields | None:
    """Return the `Value` of a member of a `Struct`; None if it has none."""
    found = None
    while struct.advance():
        if struct.tag == _FIRST:
            key, value = map_entry(struct)
            if key == name:
                found = value
    return found


def text_value(value: Fields) -> str:
    """Return the text of a `Value`; empty for a value of another kind."""
    text = ""
    while value.advance():
        text = value.text() if value.tag == _STRING_VALUE else ""
    return text


def _subset(value: Fields) -> frozenset[str]:
    """Return the endpoints in a `Value`: a text with commas, or a list of texts."""
    listed: list[str] = []
    while value.advance():
        if value.tag == _STRING_VALUE:
            listed = value.text().split(",", MAX_SUBSET)
        elif value.tag == _LIST_VALUE:
            listed = []
            values = value.inner()
            while values.advance():
                if values.tag == _FIRST and len(listed) < MAX_SUBSET:
                    listed.append(text_value(values.inner()))
        else:
            listed = []
    return frozenset(stripped for each in listed[:MAX_SUBSET] if (stripped := each.strip()))
