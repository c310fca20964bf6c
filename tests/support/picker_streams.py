"""Streams of the endpoint picker without gRPC: messages as Envoy sends them, and what the picker answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.http.header_rules import Header
from regional_agent.http.body_limits import BodyLimits
from regional_agent.picker.conversation import Conversation, PickerParts
from regional_agent.picker.early_ends import EarlyEnds
from regional_agent.picker.processing_request import (
    CODE_DETAILS,
    DESTINATION,
    FULL_DUPLEX_STREAMED,
    LB_NAMESPACE,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
    read_processing_request,
)
from regional_agent.picker.request_stream import RequestStream
from tests.support.agents import Agent
from tests.support.ext_proc_messages import ProcessingRequest, ProcessingResponse
from tests.support.planet import MODEL

JSON_TYPE = {"content-type": "application/json"}
ANSWER = b'{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}'
CHAT = json.dumps({"model": MODEL, "messages": []}).encode()


def parts_of(agent: Agent, *, forwards: bool = False) -> PickerParts:
    """The parts of an agent for its picker."""
    state = agent.listener.state
    return PickerParts(
        agent.proxy,
        agent.service,
        state.limits,
        state.bodies,
        BodyLimits(state.limits, state.bodies, agent.service),
        state.to_upstream,
        state.location_header,
        state.trusts,
        forwards,
        EarlyEnds(agent.metrics.end_not_reported),
    )


def _add_headers(message: Any, headers: Sequence[Header]) -> None:
    for name, value in headers:
        message.headers.headers.add(key=name.decode(), raw_value=value)


def head(
    *headers: Header,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    ends: bool = False,
    request_mode: int = FULL_DUPLEX_STREAMED,
    response_mode: int = FULL_DUPLEX_STREAMED,
    subset: Sequence[str] | None = None,
) -> Any:
    """The message with the head of a request."""
    message = ProcessingRequest()
    pseudo = ((b":method", method.encode()), (b":path", path.encode()), (b":authority", b"a"), (b":scheme", b"http"))
    _add_headers(message.request_headers, (*pseudo, *headers))
    message.request_headers.end_of_stream = ends
    message.protocol_config.request_body_mode = request_mode
    message.protocol_config.response_body_mode = response_mode
    if subset is not None:
        fields = message.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields
        fields[SUBSET].list_value.SetInParent()
        for each in subset:
            fields[SUBSET].list_value.values.add(string_value=each)
    return message


def body(data: bytes, *, ends: bool = True) -> Any:
    """The message with a part of a request's body."""
    message = ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = data, ends
    return message


def response_head(
    status: int, headers: Mapping[str, str] | None = None, *, ends: bool = False, served: str = "", details: str = ""
) -> Any:
    """The message with the head of a response.

    Args:
        served: the endpoint that has responded, as `ip:port`.
        details: why Envoy itself responds.
    """
    message = ProcessingRequest()
    given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    _add_headers(message.response_headers, ((b":status", b"%d" % status), *given))
    message.response_headers.end_of_stream = ends
    if served:
        message.metadata_context.filter_metadata[LB_NAMESPACE].fields[SERVED].string_value = served
    if details:
        message.attributes["envoy.filters.http.ext_proc"].fields[CODE_DETAILS].string_value = details
    return message


def response_body(data: bytes, *, ends: bool = False) -> Any:
    """The message with a part of a response's body."""
    message = ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, ends
    return message


def trailers(kind: str, given: Mapping[str, str] | None = None) -> Any:
    """The message with trailers: `request_trailers` or `response_trailers`."""
    message = ProcessingRequest()
    getattr(message, kind).SetInParent()
    for name, value in (given or {}).items():
        getattr(message, kind).trailers.headers.add(key=name, raw_value=value.encode())
    return message


class PickerStream:
    """One stream, and the messages for Envoy."""

    def __init__(self, parts: PickerParts, peer_ip: str = "127.0.0.1") -> None:
        self.sent: list[Any] = []
        self.talk = Conversation(
            lambda message: self.sent.append(ProcessingResponse.FromString(message)), lambda: None, self._hold
        )
        self.is_held = False
        self._held: list[Any] = []
        self.stream = RequestStream(parts, self.talk, peer_ip)

    def receive(self, *messages: Any) -> None:
        """Process messages of Envoy that arrive one after the other, and write what each causes."""
        for message in messages:
            self.receive_together(message)

    def receive_together(self, *messages: Any) -> None:
        """Process messages of Envoy that arrive in one read, and write what they cause."""
        for message in messages:
            if self.is_held:
                self._held.append(message)
            else:
                self.stream.receive(read_processing_request(message.SerializeToString()))
        self.talk.flush()
        self.stream.on_sent()

    def _hold(self, held: bool) -> None:
        self.is_held = held
        if not held:
            messages, self._held = self._held, []
            self.receive_together(*messages)

    def kinds(self) -> list[str]:
        """The kinds of the messages for Envoy, in order."""
        return [str(each.WhichOneof("response")) for each in self.sent]

    @property
    def destinations(self) -> list[str]:
        """The endpoints that Envoy has, in order; they are the same in the header and in the metadata."""
        for each in self.sent:
            if LB_NAMESPACE in each.dynamic_metadata.fields:
                listed = each.dynamic_metadata.fields[LB_NAMESPACE].struct_value.fields[DESTINATION].string_value
                common = getattr(each, each.WhichOneof("response")).response
                assert set_headers(common.header_mutation)[DESTINATION] == listed
                return str(listed).split(",")
        return []

    @property
    def refused(self) -> tuple[int, str] | None:
        """Status and code of the response by which Envoy refuses the request; None if it does not."""
        last = self.sent[-1] if self.sent else None
        if last is None or last.WhichOneof("response") != "immediate_response":
            return None
        immediate = last.immediate_response
        return immediate.status.code, str(json.loads(immediate.body)["error"]["code"])

    def request_body(self) -> bytes:
        """The body that Envoy sends on to the endpoint."""
        found = b""
        for each in self.sent:
            if each.WhichOneof("response") == "request_body":
                mutation = each.request_body.response.body_mutation
                found += mutation.streamed_response.body + mutation.body
        return found

    def response_body(self) -> bytes:
        """The body that Envoy sends to the client."""
        found = b""
        for each in self.sent:
            if each.WhichOneof("response") == "response_body":
                found += each.response_body.response.body_mutation.streamed_response.body
        return found


def set_headers(mutation: Any) -> dict[str, str]:
    """The headers that a mutation sets."""
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
