"""Writes the messages for Envoy: changes of headers and bodies, the endpoints of a request, and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from regional_agent.http.headers.header_rules import HOP_BY_HOP, Header
from regional_agent.picker.ext_proc_messages import APPEND, OVERWRITE, ProcessingResponse
from regional_agent.picker.message_reading import DESTINATION, LB_NAMESPACE

MAX_CHUNK_BYTES: Final = 64 * 1024
"""Maximum size of the part of a body in one message, as Envoy's API recommends."""

_BY_ENVOY: Final = HOP_BY_HOP | {b"content-length", b"host"}
"""Headers that Envoy writes and that a response of the picker cannot remove."""

_ENCODING: Final = "latin-1"


def headers_of_lines(lines: bytes) -> list[Header]:
    """Return the headers of header lines; a status line among them is skipped."""
    found = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            found.append((name, value))
    return found


def change_headers(mutation: Any, received: Sequence[Header], wanted: Sequence[Header]) -> None:
    """Add to a `HeaderMutation` what turns the headers that Envoy has into others.

    Args:
        received: as Envoy has them, names in lower case.
        wanted: as the recipient shall receive them.
    """
    had: dict[bytes, list[bytes]] = {}
    for name, value in received:
        had.setdefault(name, []).append(value)
    wants: dict[bytes, list[bytes]] = {}
    for name, value in wanted:
        wants.setdefault(name, []).append(value)
    mutation.remove_headers.extend(
        [name.decode(_ENCODING) for name in had if name not in wants and name not in _BY_ENVOY]
    )
    for name, values in wants.items():
        if values != had.get(name) and name not in _BY_ENVOY:
            set_header(mutation, name, values)


def set_header(mutation: Any, name: bytes, values: Sequence[bytes]) -> None:
    """Set a header in a `HeaderMutation`, instead of its values if it has any."""
    action = OVERWRITE
    for value in values:
        option = mutation.set_headers.add(append_action=action, keep_empty_value=True)
        option.header.key, option.header.raw_value = name.decode(_ENCODING), value
        action = APPEND


def name_endpoints(response: Any, mutation: Any, endpoints: Sequence[str]) -> None:
    """State the endpoints (`ip:port`), in the order of their use, in a header and in the dynamic metadata."""
    listed = ",".join(endpoints)
    set_header(mutation, DESTINATION.encode(), [listed.encode()])
    response.dynamic_metadata.fields[LB_NAMESPACE].struct_value.fields[DESTINATION].string_value = listed


def request_chunks(body: bytes | bytearray, *, ends: bool) -> Iterator[Any]:
    """Yield the messages that send a request body on to the endpoint; `ends` if no trailers follow."""
    for part, is_last in _parts(body):
        response = ProcessingResponse()
        streamed = response.request_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = part, is_last and ends
        yield response


def response_chunks(body: bytes, *, ends: bool) -> Iterator[Any]:
    """Yield the messages that send a part of a response on to the client; `ends` if no trailers follow."""
    if not body and not ends:
        return
    for part, is_last in _parts(body):
        response = ProcessingResponse()
        streamed = response.response_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = part, is_last and ends
        yield response


def response_part(received: bytes, body: bytes) -> Any:
    """Return the message that replaces a part of a response; for Envoy's modes with one message for each part."""
    response = ProcessingResponse()
    common = response.response_body.response
    common.SetInParent()
    if not body and received:
        common.body_mutation.clear_body = True
    elif body != received:
        common.body_mutation.body = body
    return response


def immediate_response(status: int, lines: Sequence[bytes], body: bytes, details: str) -> Any:
    """Return the message by which Envoy responds instead of an endpoint.

    Args:
        lines: header lines.
        details: for Envoy's access log.
    """
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code, immediate.body, immediate.details = status, body, details
    change_headers(immediate.headers, (), headers_of_lines(b"".join(lines)))
    return response


def immediate_status(status: int, grpc_status: int, message: bytes, details: str) -> Any:
    """Return the message by which Envoy ends a request of gRPC; it writes head and trailers of the response itself.

    Args:
        status: HTTP status, for Envoy's access log.
    """
    response = immediate_response(status, (), message, details)
    response.immediate_response.grpc_status.status = grpc_status
    return response


def unchanged(kind: str) -> Any:
    """Return the message that changes nothing about headers, a body or trailers; `kind` names its field."""
    response = ProcessingResponse()
    getattr(response, kind).SetInParent()
    return response


def _parts(body: bytes | bytearray) -> Iterator[tuple[bytes, bool]]:
    """Yield the parts of a body, at least one, and whether it is the last one."""
    if len(body) <= MAX_CHUNK_BYTES:
        yield bytes(body), True
        return
    for start in range(0, len(body), MAX_CHUNK_BYTES):
        yield bytes(body[start : start + MAX_CHUNK_BYTES]), start + MAX_CHUNK_BYTES >= len(body)
