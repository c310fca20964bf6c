"""Writes the messages for Envoy (`ProcessingResponse`) and the answers of health checks.

The messages are written by hand, since objects of protobuf for each header took a tenth of the CPU time of a request.

Sources: as of `processing_request.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.http.header_rules import HOP_BY_HOP, Header
from regional_agent.picker.processing_request import DESTINATION, LB_NAMESPACE, STREAM
from regional_agent.picker.protobuf_wire import nested, with_length, with_number

TO_REQUEST_HEADERS: Final = 1
TO_RESPONSE_HEADERS: Final = 2
TO_REQUEST_BODY: Final = 3
TO_RESPONSE_BODY: Final = 4
TO_REQUEST_TRAILERS: Final = 5
TO_RESPONSE_TRAILERS: Final = 6
_IMMEDIATE: Final = 7
"""The fields of the oneof `response`."""

_DYNAMIC_METADATA: Final = 8

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
"""`HealthCheckResponse.ServingStatus`."""

MAX_CHUNK_BYTES: Final = 64 * 1024
"""Maximum size of the part of a body in one message, as Envoy's API recommends."""

_OVERWRITE: Final = with_number(3, 2) + with_number(4, 1)
_APPEND: Final = with_number(4, 1)
"""Ends of a `HeaderValueOption`: OVERWRITE_IF_EXISTS_OR_ADD and APPEND_IF_EXISTS_OR_ADD, both keep an empty value."""

_CLEAR_ROUTE_CACHE: Final = with_number(5, 1)
_ENDS: Final = with_number(2, 1)

_BY_ENVOY: Final = HOP_BY_HOP | {b"content-length", b"host"}
"""Headers that Envoy writes and that a response of the picker cannot remove."""

_DESTINATION: Final = DESTINATION.encode()
_LB_NAMESPACE: Final = LB_NAMESPACE.encode()
_STREAM: Final = STREAM.encode()
_ROUTES: Final = b"penstock-routes"
_NEXT_REGION: Final = b"penstock-next-region"
_ENDPOINTS: Final = b"penstock-endpoints"
"""Keys of the dynamic metadata: the route contexts by address, the address of the region that follows the first target,
and the endpoints that follow the regions."""


def headers_of_lines(lines: bytes) -> list[Header]:
    """Return the headers of header lines."""
    found: list[Header] = []
    for line in lines.split(b"\r\n"):
        at = line.find(b": ")
        if at >= 0:
            found.append((line[:at], line[at + 2 :]))
    return found


def header_changes(received: Sequence[Header], wanted: Sequence[Header]) -> bytes:
    """Return the fields of a `HeaderMutation` that turns the headers that Envoy has into others.

    Args:
        received: as Envoy has them, names in lower case.
        wanted: as the recipient shall receive them.
    """
    had, wants = dict(received), dict(wanted)
    if len(had) != len(received) or len(wants) != len(wanted):
        return _changes_of_repeated(received, wanted)
    parts = []
    for name, value in wants.items():
        if had.get(name) != value and name not in _BY_ENVOY:
            parts.append(_option(name, value, _OVERWRITE))
    for name in had:
        if name not in wants and name not in _BY_ENVOY:
            parts.append(with_length(2, name))
    return b"".join(parts)


def _changes_of_repeated(received: Sequence[Header], wanted: Sequence[Header]) -> bytes:
    """Return the same where a header occurs more than once."""
    had: dict[bytes, list[bytes]] = {}
    for name, value in received:
        had.setdefault(name, []).append(value)
    wants: dict[bytes, list[bytes]] = {}
    for name, value in wanted:
        wants.setdefault(name, []).append(value)
    parts = [with_length(2, name) for name in had if name not in wants and name not in _BY_ENVOY]
    for name, values in wants.items():
        if values != had.get(name) and name not in _BY_ENVOY:
            parts.append(_option(name, values[0], _OVERWRITE))
            parts += [_option(name, value, _APPEND) for value in values[1:]]
    return b"".join(parts)


def set_header(name: bytes, value: bytes) -> bytes:
    """Return the field of a `HeaderMutation` that sets a header, instead of its values if it has any."""
    return _option(name, value, _OVERWRITE)


def retry_on(conditions: bytes, statuses: Iterable[int]) -> bytes:
    """Return the fields of a `HeaderMutation` that let Envoy repeat a request under these conditions, and after these
    statuses."""
    listed = b",".join(b"%d" % status for status in sorted(statuses))
    return set_header(b"x-envoy-retry-on", conditions) + set_header(b"x-envoy-retriable-status-codes", listed)


def _option(name: bytes, value: bytes, action: bytes) -> bytes:
    return with_length(1, with_length(1, with_length(1, name) + with_length(3, value)) + action)


class Named(NamedTuple):
    """The targets of a request, as Envoy's configuration reads them."""

    first: bytes
    """The endpoints in the order of their use, or the agent of another region: `ip:port`."""
    then: bytes = b""
    """The endpoints that follow other regions."""
    next_region: bytes = b""
    """The agent of another region that follows the first of `first`."""
    routes: Sequence[tuple[bytes, bytes]] = ()
    """The route contexts for the agents of other regions, by `ip:port`."""


def target_message(kind: int, changes: bytes, named: Named, body: bytes | None, stream: bytes) -> bytes:
    """Return the message that names the targets of a request, in a header and in the dynamic metadata.

    Args:
        kind: TO_REQUEST_HEADERS or TO_REQUEST_BODY.
        changes: fields of `HeaderMutation`.
        named: the targets.
        body: what the target receives instead of the body that Envoy has; None leaves it.
        stream: an identifier of the request, which Envoy's access log states.
    """
    common = with_length(2, changes + set_header(_DESTINATION, named.first)) + _CLEAR_ROUTE_CACHE
    if body is not None:
        common += with_length(3, with_length(1, body))
    members = _struct(_DESTINATION, with_length(3, named.first)) + _struct(_STREAM, with_length(3, stream))
    if named.routes:
        routes = [_struct(address, with_length(3, route)) for address, route in named.routes]
        members += _struct(_ROUTES, with_length(5, b"".join(routes))) + _struct(_ENDPOINTS, with_length(3, named.then))
    if named.next_region:
        members += _struct(_NEXT_REGION, with_length(3, named.next_region))
    metadata = _struct(_LB_NAMESPACE, with_length(5, members))
    return with_length(kind, with_length(1, common)) + with_length(_DYNAMIC_METADATA, metadata)


def _struct(name: bytes, value: bytes) -> bytes:
    """Return a `google.protobuf.Struct` with one member."""
    return with_length(1, with_length(1, name) + with_length(2, value))


def response_headers(changes: bytes) -> bytes:
    """Return the message that changes the head of a response; `changes` are fields of `HeaderMutation`."""
    return with_length(TO_RESPONSE_HEADERS, with_length(1, with_length(2, changes)))


def response_trailers(changes: bytes) -> bytes:
    """Return the message that changes the trailers of a response; `changes` are fields of `HeaderMutation`."""
    return with_length(TO_RESPONSE_TRAILERS, with_length(1, changes))


def body_chunks(kind: int, body: bytes | bytearray, *, ends: bool) -> list[bytes]:
    """Return the messages that send a part of a body on, at least one.

    Args:
        kind: TO_REQUEST_BODY or TO_RESPONSE_BODY.
        ends: whether no further part and no trailers follow.
    """
    size = len(body)
    if size <= MAX_CHUNK_BYTES:
        return [_chunk(kind, bytes(body), ends=ends)]
    parts = [bytes(body[start : start + MAX_CHUNK_BYTES]) for start in range(0, size, MAX_CHUNK_BYTES)]
    last = parts.pop()
    return [*(_chunk(kind, part, ends=False) for part in parts), _chunk(kind, last, ends=ends)]


def _chunk(kind: int, body: bytes, *, ends: bool) -> bytes:
    return nested((kind, 1, 3, 3, 1), body, _ENDS if ends else b"")


def response_part(received: bytes, body: bytes) -> bytes:
    """Return the message that replaces a part of a response; for Envoy's modes with one message for each part."""
    mutation = b""
    if not body and received:
        mutation = with_length(3, with_number(2, 1))
    elif body != received:
        mutation = with_length(3, with_length(1, body))
    return with_length(TO_RESPONSE_BODY, with_length(1, mutation))


def immediate_response(status: int, lines: Sequence[bytes], body: bytes, details: str) -> bytes:
    """Return the message by which Envoy responds instead of an endpoint.

    Args:
        lines: header lines.
        details: for Envoy's access log.
    """
    return with_length(_IMMEDIATE, _immediate(status, lines, body, details))


def immediate_status(status: int, grpc_status: int, message: bytes, details: str) -> bytes:
    """Return the message by which Envoy ends a request of gRPC; it writes head and trailers of the response itself.

    Args:
        status: HTTP status, for Envoy's access log.
    """
    immediate = _immediate(status, (), message, details)
    return with_length(_IMMEDIATE, immediate + with_length(4, with_number(1, grpc_status)))


def _immediate(status: int, lines: Sequence[bytes], body: bytes, details: str) -> bytes:
    changes = header_changes((), headers_of_lines(b"".join(lines)))
    return b"".join(
        [
            with_length(1, with_number(1, status)),
            with_length(2, changes),
            with_length(3, body),
            with_length(5, details.encode()),
        ]
    )


def unchanged(kind: int) -> bytes:
    """Return the message that changes nothing about headers, a body or trailers; `kind` is its field."""
    return with_length(kind, b"")


def health_status(status: int) -> bytes:
    """Return a `HealthCheckResponse`."""
    return with_number(1, status)
