"""What the parts of one request at the picker share: its state, its messages to Envoy, and the parts of the agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from penstock.http.header_rules import Header, HeaderFilter
from regional_agent.http.body_limits import BodyLimits
from regional_agent.http.kept_bodies import KeptBodies
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request, with_common_lines
from regional_agent.picker import envoy_responses, grpc_requests
from regional_agent.picker.early_ends import EarlyEnds
from regional_agent.picker.processing_request import BUFFERED, FULL_DUPLEX_STREAMED, NONE, STREAMED, ProcessingRequest
from regional_agent.proxy.proxy import Proxy
from regional_agent.services.traffic_service import TrafficService

_REQUEST_MODES: Final = frozenset({FULL_DUPLEX_STREAMED, BUFFERED})
_RESPONSE_MODES: Final = frozenset({FULL_DUPLEX_STREAMED, STREAMED, BUFFERED})


class InvalidTransition(Exception):
    """Raised for a transition that TRANSITIONS does not contain: Envoy sent messages out of order, or a defect."""


class StreamState(Enum):
    """A state of a request."""

    # By identity: the hash of an enum member is a function of Python, which each look-up in TRANSITIONS would call.
    __hash__ = object.__hash__

    HEAD = "head"
    """The head has not arrived."""
    RECEIVING = "receiving"
    """The head has been accepted; the body is arriving, and no target can be selected yet."""
    LOOKUP = "lookup"
    """The location of the object that the request names is read from the region's Redis, or the key of its token is
    fetched."""
    SELECTING = "selecting"
    """The router selects a target."""
    QUEUED = "queued"
    """All targets are full; the request is in the admission queue."""
    PICKED = "picked"
    """Envoy has the target; no response has begun."""
    RESPONDING = "responding"
    """The head of the response has arrived."""
    DONE = "done"
    """Everything is released and the outcome is recorded."""


_S = StreamState

TRANSITIONS: Final[dict[StreamState, frozenset[StreamState]]] = {
    _S.HEAD: frozenset({_S.RECEIVING, _S.LOOKUP, _S.SELECTING, _S.DONE}),
    _S.RECEIVING: frozenset({_S.LOOKUP, _S.SELECTING, _S.DONE}),
    # LOOKUP again: of the object, once the key is known
    _S.LOOKUP: frozenset({_S.LOOKUP, _S.SELECTING, _S.DONE}),
    # SELECTING again: with the fallback model, or without an endpoint whose address is unknown
    _S.SELECTING: frozenset({_S.SELECTING, _S.QUEUED, _S.PICKED, _S.DONE}),
    _S.QUEUED: frozenset({_S.SELECTING, _S.DONE}),
    _S.PICKED: frozenset({_S.RESPONDING, _S.DONE}),
    _S.RESPONDING: frozenset({_S.DONE}),
    _S.DONE: frozenset(),
}
"""The allowed transitions."""


def entered(state: StreamState, following: StreamState) -> StreamState:
    """Return `following`; raises InvalidTransition if it may not follow `state`."""
    if following not in TRANSITIONS[state]:
        raise InvalidTransition(f"{state.value} -> {following.value}")
    return following


class BadMode(Exception):
    """Envoy's configuration does not let the picker read a body; the message states the remedy."""


class PickerParts(NamedTuple):
    """The parts of the agent that the requests of its picker use."""

    proxy: Proxy
    traffic: TrafficService
    limits: Limits
    bodies: KeptBodies
    """The memory of all bodies of the agent."""
    body_limits: BodyLimits
    passing: HeaderFilter
    """The request headers that are sent to endpoints."""
    location_header: bytes
    """Name of the header with a client's location; empty if none is configured."""
    trusts: Callable[[str], bool]
    """Whether an address is a trusted proxy."""
    forwards: bool
    """Whether Envoy has a route to the agents of other regions."""
    early_ends: EarlyEnds
    """What Envoy's access log states about requests that ended early."""


class FromEnvoy:
    """What Envoy states about a request, beside its head and body."""

    def __init__(
        self,
        headers: list[Header],
        target: bytes,
        scheme: bytes,
        subset: frozenset[str] | None,
        trusted: bool,
        in_message: int,
    ) -> None:
        self.headers = headers
        """As Envoy has them."""
        self.target = target
        self.scheme = scheme
        """The scheme by which the client reached Envoy."""
        self.subset = subset
        """The endpoints that may serve the request, as `ip:port`; None for all of them."""
        self.trusted = trusted
        """Whether Envoy is a trusted proxy."""
        self.in_message = in_message
        """The kind of message that states the target: TO_REQUEST_HEADERS or TO_REQUEST_BODY."""
        self.has_body = False
        """Whether Envoy sends the body in further messages, and waits for all of it, be it empty."""
        self.has_trailers = False
        """Whether the request has trailers."""


class Conversation:
    """The exchange of messages about one request."""

    def __init__(
        self, queue: Callable[[bytes], None], write_soon: Callable[[], None], hold: Callable[[bool], None]
    ) -> None:
        """Start before the head.

        Args:
            queue: queues a `ProcessingResponse` for Envoy.
            write_soon: lets `flush` be called before the next write.
            hold: lets the further messages of Envoy wait, or processes them.
        """
        self.state = StreamState.HEAD
        self.queue = queue
        self.write_soon = write_soon
        self.hold = hold
        self._part = b""
        """The part of the response that waits for what Envoy has sent after it."""
        self.is_grpc = False
        """Whether refusals have the form of gRPC."""
        self.request_mode = FULL_DUPLEX_STREAMED
        self.response_mode = FULL_DUPLEX_STREAMED

    def use_modes(self, message: ProcessingRequest) -> None:
        """Read Envoy's body modes in its first message; raises BadMode for those that hide a body."""
        if not message.states_modes:
            return
        request_mode, response_mode = message.request_body_mode, message.response_body_mode
        if request_mode not in _REQUEST_MODES and not (message.ends and request_mode == NONE):
            raise BadMode("request_body_mode of Envoy's ext_proc filter must be FULL_DUPLEX_STREAMED or BUFFERED")
        if response_mode not in _RESPONSE_MODES:
            raise BadMode("response_body_mode of Envoy's ext_proc filter must be FULL_DUPLEX_STREAMED or STREAMED")
        self.request_mode, self.response_mode = request_mode, response_mode

    def enter(self, state: StreamState) -> None:
        """Change the state; raises InvalidTransition for a transition that the table lacks."""
        self.state = entered(self.state, state)

    def send(self, message: bytes) -> None:
        """Queue a `ProcessingResponse`."""
        self.flush()
        self.queue(message)

    def send_response_part(self, part: bytes, *, ends: bool) -> None:
        """Send on a part of a response that Envoy streams: in one message with the parts that have arrived with it."""
        self._part = self._part + part if self._part else part
        if ends or len(self._part) >= envoy_responses.MAX_CHUNK_BYTES:
            self._send_part(ends=ends)
        elif self._part:
            self.write_soon()

    def flush(self) -> None:
        """Queue what waits for what follows it."""
        if self._part:
            self._send_part(ends=False)

    def _send_part(self, *, ends: bool) -> None:
        part, self._part = self._part, b""
        for message in envoy_responses.body_chunks(envoy_responses.TO_RESPONSE_BODY, part, ends=ends):
            self.queue(message)

    @property
    def is_done(self) -> bool:
        """Whether the request has ended."""
        return self.state is StreamState.DONE

    def respond(
        self, status: int, lines: Sequence[bytes], body: bytes, request: Request | None, details: str = "penstock"
    ) -> None:
        """Let Envoy respond to the client, with an x-request-id and the request's `cors_lines`.

        Args:
            lines: header lines.
            request: None if no request could be read.
            details: for Envoy's access log.
        """
        if request is not None and request.method == b"HEAD":
            body = b""
        if self.is_grpc:
            message = grpc_requests.message_of(body)
            code = grpc_requests.grpc_status(status)
            self.send(envoy_responses.immediate_status(status, code, message, details))
            return
        self.send(envoy_responses.immediate_response(status, with_common_lines(list(lines), request), body, details))
