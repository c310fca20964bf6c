"""Protobuf's classes of the messages that the picker reads and writes by hand.

The classes are built from tables of fields, in a descriptor pool of their own: packages with the whole API register the
same names, and exclude each other. Fields that a table lacks are skipped when a message is read.

Sources: https://github.com/envoyproxy/envoy/blob/v1.36.0/api/envoy/service/ext_proc/v3/external_processor.proto,
`service/accesslog/v3/als.proto`, `data/accesslog/v3/accesslog.proto` and `config/core/v3/base.proto` beside it, and
https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_STRUCT: Final = ".google.protobuf.Struct"
_PACKAGE: Final = "envoy.service.ext_proc.v3"


class _Field(NamedTuple):
    number: int
    name: str
    kind: str
    """`bool`, `bytes`, `int32` (as which enums are read), `string`, or the name of a message."""
    is_repeated: bool = False
    choice: str = ""
    """Name of the oneof that contains the field; empty for none."""
    is_map: bool = False
    """Whether the field is a map from strings to `kind`."""


_TYPES: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
}

_MESSAGES: Final[dict[str, tuple[_Field, ...]]] = {
    "HeaderValue": (_Field(1, "key", "string"), _Field(2, "value", "string"), _Field(3, "raw_value", "bytes")),
    "HeaderMap": (_Field(1, "headers", "HeaderValue", is_repeated=True),),
    "HeaderValueOption": (
        _Field(1, "header", "HeaderValue"),
        _Field(3, "append_action", "int32"),
        _Field(4, "keep_empty_value", "bool"),
    ),
    "Metadata": (_Field(1, "filter_metadata", _STRUCT, is_map=True),),
    "ProtocolConfiguration": (_Field(1, "request_body_mode", "int32"), _Field(2, "response_body_mode", "int32")),
    "HttpHeaders": (_Field(1, "headers", "HeaderMap"), _Field(3, "end_of_stream", "bool")),
    "HttpBody": (_Field(1, "body", "bytes"), _Field(2, "end_of_stream", "bool")),
    "HttpTrailers": (_Field(1, "trailers", "HeaderMap"),),
    "ProcessingRequest": (
        _Field(2, "request_headers", "HttpHeaders", choice="request"),
        _Field(3, "response_headers", "HttpHeaders", choice="request"),
        _Field(4, "request_body", "HttpBody", choice="request"),
        _Field(5, "response_body", "HttpBody", choice="request"),
        _Field(6, "request_trailers", "HttpTrailers", choice="request"),
        _Field(7, "response_trailers", "HttpTrailers", choice="request"),
        _Field(8, "metadata_context", "Metadata"),
        _Field(9, "attributes", _STRUCT, is_map=True),
        _Field(11, "protocol_config", "ProtocolConfiguration"),
    ),
    "HeaderMutation": (
        _Field(1, "set_headers", "HeaderValueOption", is_repeated=True),
        _Field(2, "remove_headers", "string", is_repeated=True),
    ),
    "StreamedBodyResponse": (_Field(1, "body", "bytes"), _Field(2, "end_of_stream", "bool")),
    "BodyMutation": (
        _Field(1, "body", "bytes", choice="mutation"),
        _Field(2, "clear_body", "bool", choice="mutation"),
        _Field(3, "streamed_response", "StreamedBodyResponse", choice="mutation"),
    ),
    "CommonResponse": (
        _Field(2, "header_mutation", "HeaderMutation"),
        _Field(3, "body_mutation", "BodyMutation"),
        _Field(5, "clear_route_cache", "bool"),
    ),
    "HeadersResponse": (_Field(1, "response", "CommonResponse"),),
    "BodyResponse": (_Field(1, "response", "CommonResponse"),),
    "TrailersResponse": (_Field(1, "header_mutation", "HeaderMutation"),),
    "HttpStatus": (_Field(1, "code", "int32"),),
    "GrpcStatus": (_Field(1, "status", "int32"),),
    "ImmediateResponse": (
        _Field(1, "status", "HttpStatus"),
        _Field(2, "headers", "HeaderMutation"),
        _Field(3, "body", "bytes"),
        _Field(4, "grpc_status", "GrpcStatus"),
        _Field(5, "details", "string"),
    ),
    "ProcessingResponse": (
        _Field(1, "request_headers", "HeadersResponse", choice="response"),
        _Field(2, "response_headers", "HeadersResponse", choice="response"),
        _Field(3, "request_body", "BodyResponse", choice="response"),
        _Field(4, "response_body", "BodyResponse", choice="response"),
        _Field(5, "request_trailers", "TrailersResponse", choice="response"),
        _Field(6, "response_trailers", "TrailersResponse", choice="response"),
        _Field(7, "immediate_response", "ImmediateResponse", choice="response"),
        _Field(8, "dynamic_metadata", _STRUCT),
    ),
    "ResponseFlags": tuple(
        _Field(number, name, "bool")
        for number, name in (
            (3, "upstream_request_timeout"),
            (4, "local_reset"),
            (5, "upstream_remote_reset"),
            (6, "upstream_connection_failure"),
            (7, "upstream_connection_termination"),
            (15, "downstream_connection_termination"),
            (16, "upstream_retry_limit_exceeded"),
            (17, "stream_idle_timeout"),
            (19, "downstream_protocol_error"),
            (20, "upstream_max_stream_duration_reached"),
            (23, "duration_timeout"),
            (24, "upstream_protocol_error"),
            (28, "downstream_remote_reset"),
        )
    ),
    "AccessLogCommon": (_Field(16, "response_flags", "ResponseFlags"), _Field(17, "metadata", "Metadata")),
    "HTTPRequestProperties": (_Field(5, "path", "string"), _Field(13, "request_headers", "string", is_map=True)),
    "UInt32Value": (_Field(1, "value", "int32"),),
    "HTTPResponseProperties": (
        _Field(1, "response_code", "UInt32Value"),
        _Field(4, "response_headers", "string", is_map=True),
    ),
    "HTTPAccessLogEntry": (
        _Field(1, "common_properties", "AccessLogCommon"),
        _Field(2, "protocol_version", "int32"),
        _Field(3, "request", "HTTPRequestProperties"),
        _Field(4, "response", "HTTPResponseProperties"),
    ),
    "HTTPAccessLogEntries": (_Field(1, "log_entry", "HTTPAccessLogEntry", is_repeated=True),),
    "Identifier": (_Field(2, "log_name", "string"),),
    "StreamAccessLogsMessage": (
        _Field(1, "identifier", "Identifier"),
        _Field(2, "http_logs", "HTTPAccessLogEntries"),
    ),
    "HealthCheckRequest": (_Field(1, "service", "string"),),
    "HealthCheckResponse": (_Field(1, "status", "int32"),),
}


def _build() -> dict[str, Any]:
    """Return the message classes by name."""
    pool = DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    file = FileDescriptorProto(
        name="penstock/picker.proto", package=_PACKAGE, syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        choices = list(dict.fromkeys(field.choice for field in fields if field.choice))
        for choice in choices:
            message.oneof_decl.add(name=choice)
        for field in fields:
            kind = _map_entry(message, field) if field.is_map else field.kind
            added = _add(message, field.number, field.name, kind, repeated=field.is_repeated or field.is_map)
            if field.choice:
                added.oneof_index = choices.index(field.choice)
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


def _add(
    message: DescriptorProto, number: int, name: str, kind: str, *, repeated: bool = False
) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"
    return field


def _map_entry(message: DescriptorProto, field: _Field) -> str:
    """Add the message of a map's entries; return its name."""
    name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    _add(entry, 1, "key", "string")
    _add(entry, 2, "value", field.kind)
    return f".{_PACKAGE}.{message.name}.{name}"


_classes: Final = _build()

ProcessingRequest: Final[Any] = _classes["ProcessingRequest"]
ProcessingResponse: Final[Any] = _classes["ProcessingResponse"]
HealthCheckRequest: Final[Any] = _classes["HealthCheckRequest"]
HealthCheckResponse: Final[Any] = _classes["HealthCheckResponse"]
StreamAccessLogsMessage: Final[Any] = _classes["StreamAccessLogsMessage"]
