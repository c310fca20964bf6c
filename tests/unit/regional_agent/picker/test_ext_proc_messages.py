"""The messages of Envoy and for Envoy, which the picker reads and writes by hand, against protobuf's classes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_agent.picker import envoy_responses
from regional_agent.picker import processing_request as read
from regional_agent.picker.processing_request import read_health_check, read_processing_request
from regional_agent.picker.protobuf_wire import BadMessage, varint
from tests.support.ext_proc_messages import (
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
    ProcessingResponse,
)

NAMES = st.text("abcXYZ-:_", max_size=200)
TEXTS = st.text(max_size=200)
BYTES = st.binary(max_size=300)
HEADERS = st.lists(st.tuples(NAMES, TEXTS, BYTES), max_size=5)
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.floats() | TEXTS | st.lists(TEXTS | st.none(), max_size=4)
)
STRUCTS = st.dictionaries(
    st.sampled_from([read.SUBSET, read.SERVED, read.CODE_DETAILS, read.UPSTREAM_ADDRESS, "other"]), VALUES, max_size=4
)
KINDS = {
    "request_headers": read.REQUEST_HEADERS,
    "response_headers": read.RESPONSE_HEADERS,
    "request_body": read.REQUEST_BODY,
    "response_body": read.RESPONSE_BODY,
    "request_trailers": read.REQUEST_TRAILERS,
    "response_trailers": read.RESPONSE_TRAILERS,
}


def text_of(struct: Any, name: str) -> str:
    return str(struct.fields[name].string_value) if name in struct.fields else ""


def subset_of(struct: Any) -> frozenset[str] | None:
    if read.SUBSET not in struct.fields:
        return None
    value = struct.fields[read.SUBSET]
    is_text = value.WhichOneof("kind") == "string_value"
    listed = value.string_value.split(",") if is_text else [each.string_value for each in value.list_value.values]
    return frozenset(each.strip() for each in listed if each.strip())


def fill(struct: Any, members: dict[str, Any]) -> None:
    struct.SetInParent()
    for name, value in members.items():
        struct.update({name: value})


@given(
    st.sampled_from(list(KINDS)),
    HEADERS,
    BYTES,
    st.booleans(),
    STRUCTS,
    STRUCTS,
    STRUCTS,
    st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.binary(max_size=3),
)
def test_a_message_of_envoy_is_read_as_protobuf_reads_it(
    kind: str,
    headers: list[tuple[str, str, bytes]],
    data: bytes,
    ends: bool,
    subset: dict[str, Any],
    served: dict[str, Any],
    attributes: dict[str, Any],
    modes: tuple[int, int] | None,
    unknown: bytes,
) -> None:
    message = ProcessingRequest()
    part = getattr(message, kind)
    part.SetInParent()
    if kind.endswith("body"):
        part.body, part.end_of_stream = data, ends
    else:
        entries = (part.trailers if kind.endswith("trailers") else part.headers).headers
        for name, value, raw in headers:
            entries.add(key=name, value=value, raw_value=raw)
        if kind.endswith("headers"):
            part.end_of_stream = ends
    metadata = message.metadata_context.filter_metadata
    fill(metadata[read.SUBSET_NAMESPACE], subset)
    fill(metadata[read.LB_NAMESPACE], served)
    fill(message.attributes["envoy.filters.http.ext_proc"], attributes)
    if modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    # A field that is not in the API yet.
    later = b"\xfa\x01" + varint(len(unknown)) + unknown
    got = read_processing_request(message.SerializeToString() + later)
    assert got.kind == KINDS[kind]
    assert got.body == (data if kind.endswith("body") else b"")
    assert got.ends == (ends and not kind.endswith("trailers"))
    expected = [] if kind.endswith("body") else headers
    assert got.headers == [(name.lower().encode(), raw or value.encode()) for name, value, raw in expected]
    if not kind.endswith("headers"):
        return
    assert got.subset == subset_of(metadata[read.SUBSET_NAMESPACE])
    assert got.served == text_of(metadata[read.LB_NAMESPACE], read.SERVED)
    filter_attributes = message.attributes["envoy.filters.http.ext_proc"]
    assert got.code_details == text_of(filter_attributes, read.CODE_DETAILS)
    assert got.upstream_address == text_of(filter_attributes, read.UPSTREAM_ADDRESS)
    assert got.states_modes == (modes is not None)
    assert (got.request_body_mode, got.response_body_mode) == (modes or (0, 0))


def length_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


MIB = 2**20
NO_SPACE_FOR_FIELDS = {
    "headers": length_field(2, length_field(1, bytes([0x0A, 0]) * (4 * MIB))),
    "fields of headers": length_field(2, bytes([0x78, 0]) * (4 * MIB)),
    "fields of a body": length_field(4, bytes([0x78, 0]) * (4 * MIB)),
    "fields": bytes([0x78, 0]) * (4 * MIB),
    "metadata": length_field(8, bytes([0x78, 0]) * (4 * MIB)),
    "small headers": length_field(2, length_field(1, bytes([0x0A, 0]) * 4097)),
}


@pytest.mark.parametrize("kind", NO_SPACE_FOR_FIELDS)
def test_the_cost_of_a_message_is_bounded(kind: str) -> None:
    data, began = NO_SPACE_FOR_FIELDS[kind], time.process_time()
    with pytest.raises(BadMessage):
        read_processing_request(data)
    with pytest.raises(BadMessage):
        read_health_check(data)
    assert time.process_time() - began < 0.2  # seconds if each field is read


def test_only_a_body_may_be_large() -> None:
    whole = read_processing_request(length_field(4, length_field(1, bytes(4 * MIB)) + b"\x10\x01"))
    assert (len(whole.body), whole.ends) == (4 * MIB, True)


@pytest.mark.parametrize(
    "data",
    [
        b"\x12",
        b"\x12\x05abcd",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x12\x00\x22\x00",
        b"\x12\x00\x12\x00",
        b"\x13\x14",
        b"\x02\x00",
        b"\x12\x02\x0a\x05",
        b"\x12\x09\x0a\x07\x0a\x05\x0a\x03h\xc3\xb6",
        b"\x42\x07\x0a\x05\x0a\x03a\xffb",
    ],
)
def test_a_malformed_message_is_rejected(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read_processing_request(data)


PAIRS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"host", b"te"]), BYTES), max_size=6)


def applied(mutation: Any, headers: list[tuple[bytes, bytes]]) -> list[tuple[str, bytes]]:
    """The headers after a mutation, as Envoy applies it."""
    found = [(name.decode(), value) for name, value in headers if name.decode() not in mutation.remove_headers]
    for option in mutation.set_headers:
        if option.append_action == 2:
            found = [header for header in found if header[0] != option.header.key]
        assert option.keep_empty_value
        found.append((option.header.key, option.header.raw_value))
    return sorted(found, key=lambda header: header[0])


@given(
    PAIRS, PAIRS, st.lists(st.just("10.0.0.1:80") | st.just("[::1]:8000"), min_size=1, max_size=3), st.none() | BYTES
)
def test_a_target_has_the_headers_that_are_wanted(
    received: list[tuple[bytes, bytes]], wanted: list[tuple[bytes, bytes]], endpoints: list[str], body: bytes | None
) -> None:
    changes = envoy_responses.header_changes(received, wanted)
    named = envoy_responses.Named(",".join(endpoints).encode())
    message = ProcessingResponse.FromString(
        envoy_responses.target_message(envoy_responses.TO_REQUEST_BODY, changes, named, body, b"s1")
    )
    common = message.request_body.response
    destination = ("x-gateway-destination-endpoint", named.first)
    free = {b"a", b"b", b"c"}
    expected = sorted([(n.decode(), v) for n, v in wanted if n in free] + [destination], key=lambda header: header[0])
    kept = [header for header in received if header[0] in free]
    assert applied(common.header_mutation, kept) == expected
    assert not {"host", "te"}.intersection(common.header_mutation.remove_headers)
    assert common.clear_route_cache
    assert common.HasField("body_mutation") == (body is not None)
    assert common.body_mutation.body == (body or b"")
    metadata = message.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert metadata["x-gateway-destination-endpoint"].string_value == ",".join(endpoints)


@pytest.mark.parametrize("size", [0, 1, *range(114, 130), 200, *range(16_370, 16_386), 65_536, 65_537, 200_000])
@pytest.mark.parametrize("ends", [False, True])
def test_a_body_is_sent_on_in_parts(size: int, ends: bool) -> None:
    chunks = envoy_responses.body_chunks(envoy_responses.TO_RESPONSE_BODY, bytes(size), ends=ends)
    parts = [
        ProcessingResponse.FromString(chunk).response_body.response.body_mutation.streamed_response for chunk in chunks
    ]
    assert b"".join(part.body for part in parts) == bytes(size)
    assert max(len(part.body) for part in parts) <= envoy_responses.MAX_CHUNK_BYTES
    assert [part.end_of_stream for part in parts] == [False] * (len(parts) - 1) + [ends]


@given(st.integers(200, 599), st.binary(max_size=300), TEXTS, st.integers(0, 16))
def test_refusals_and_unchanged_parts(status: int, body: bytes, details: str, code: int) -> None:
    lines = [b"content-type: a\r\n", b"x-y: 1\r\n", b"x-y: 2\r\n"]
    message = ProcessingResponse.FromString(envoy_responses.immediate_response(status, lines, body, details))
    immediate = message.immediate_response
    assert (immediate.status.code, immediate.body, immediate.details) == (status, body, details)
    assert applied(immediate.headers, []) == [("content-type", b"a"), ("x-y", b"1"), ("x-y", b"2")]
    ended = ProcessingResponse.FromString(envoy_responses.immediate_status(status, code, body, details))
    assert ended.immediate_response.HasField("grpc_status")
    assert ended.immediate_response.grpc_status.status == code
    kind = ProcessingResponse.FromString(envoy_responses.unchanged(envoy_responses.TO_RESPONSE_TRAILERS))
    assert kind.WhichOneof("response") == "response_trailers"


@pytest.mark.parametrize(
    ("received", "passed", "expected"),
    [(b"ab", b"ab", (False, b"", False)), (b"ab", b"", (False, b"", True)), (b"ab", b"c", (True, b"c", False))],
)
def test_a_part_of_a_response_is_replaced(received: bytes, passed: bytes, expected: tuple[bool, bytes, bool]) -> None:
    message = ProcessingResponse.FromString(envoy_responses.response_part(received, passed))
    mutation = message.response_body.response.body_mutation
    assert (mutation.HasField("body"), mutation.body, mutation.clear_body) == expected


@given(TEXTS, st.integers(0, 3))
def test_health_checks(service: str, status: int) -> None:
    assert read_health_check(HealthCheckRequest(service=service).SerializeToString()) == service
    assert HealthCheckResponse.FromString(envoy_responses.health_status(status)).status == status
