"""The calls of Envoy: one for each request, gRPC's health checks, and its access log."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from penstock.routing.reasons import Reason
from regional_agent.picker import grpc_stream as grpc
from regional_agent.picker.conversation import BadMode, Conversation, InvalidTransition, PickerParts
from regional_agent.picker.early_ends import EarlyEnds
from regional_agent.picker.envoy_responses import health_status
from regional_agent.picker.processing_request import read_health_check, read_processing_request
from regional_agent.picker.protobuf_wire import BadMessage
from regional_agent.picker.request_stream import RequestStream

log = structlog.get_logger()


def _drop(message: bytes) -> None:
    """Drop a message for a stream that has ended."""


def _do_nothing() -> None:
    """Write nothing to a stream that has ended."""


def _hold_nothing(held: bool) -> None:
    """Hold no messages of a stream that has ended."""


class ProcessCall:
    """The call for one request of Envoy."""

    def __init__(
        self,
        parts: PickerParts,
        stream: grpc.GrpcStream,
        on_end: Callable[[ProcessCall], None],
        reject_mode: Callable[[str], None],
    ) -> None:
        """Start before the first message; `reject_mode` receives the remedy for a mode that hides a body."""
        self._stream = stream
        self._on_end = on_end
        self._reject_mode = reject_mode
        self._talk = Conversation(stream.send, stream.write_soon, stream.hold)
        self.stream = RequestStream(parts, self._talk, stream.peer_ip)

    def on_message(self, message: bytes) -> None:
        """Process a `ProcessingRequest`."""
        try:
            self.stream.receive(read_processing_request(message))
        except BadMessage:
            self._stream.end(grpc.INVALID_ARGUMENT, "not a ProcessingRequest")
        except InvalidTransition as error:
            self._stream.end(grpc.INVALID_ARGUMENT, f"messages out of order: {error}")
        except BadMode as problem:
            self._reject_mode(str(problem))
            self._stream.end(grpc.FAILED_PRECONDITION, str(problem))
        except Exception:
            # A defect that prevents one request must not end the other requests of the connection.
            log.exception("a request at the endpoint picker failed")
            self._refuse(Reason.ENGINE_FAILED, "internal error")

    def on_oversized(self, problem: str) -> None:
        """Refuse the request."""
        self._refuse(Reason.BODY_TOO_LARGE, problem)

    def _refuse(self, reason: Reason, detail: str) -> None:
        """Refuse the request. After an error of the call, Envoy might continue without a picker."""
        try:
            self.stream.refuse(reason, detail)
            self._stream.end(grpc.OK)
        except Exception:
            log.exception("a request at the endpoint picker could not be refused")
            self._stream.end(grpc.INTERNAL, "internal error")

    def before_write(self) -> None:
        """Send on the part of the response that has waited for its end, and end the call after its last message."""
        self._talk.flush()
        if self._talk.is_done:
            self._stream.end(grpc.OK)

    def on_sent(self) -> None:
        """Free the body that Envoy has received."""
        self.stream.on_sent()

    def on_closed(self) -> None:
        """Release what the request holds."""
        self._on_end(self)
        try:
            self.stream.close()
        except Exception:
            # The connection has to close its other streams.
            log.exception("a request at the endpoint picker could not be closed")
        # Otherwise the call and its parts would refer to each other, and stay until the next garbage collection.
        self._talk.queue, self._talk.write_soon, self._talk.hold = _drop, _do_nothing, _hold_nothing


class RefusedCall:
    """The call for one request of Envoy beyond the limit, which is refused. After an error of the call, Envoy might
    continue without a picker."""

    def __init__(self, stream: grpc.GrpcStream, refusal: bytes) -> None:
        """Answer the first message with `refusal`, a `ProcessingResponse`."""
        self._stream = stream
        self._refusal = refusal

    def on_message(self, message: bytes) -> None:
        """Refuse the request."""
        self._stream.send(self._refusal)
        self._stream.end(grpc.OK)

    def on_oversized(self, problem: str) -> None:
        """Refuse the request."""
        self.on_message(b"")

    def before_write(self) -> None:
        """Do nothing."""

    def on_sent(self) -> None:
        """Do nothing."""

    def on_closed(self) -> None:
        """Do nothing."""


class AccessLogCall:
    """The access log of one thread of an Envoy. Its client ends the call, and expects no message."""

    def __init__(self, stream: grpc.GrpcStream, early_ends: EarlyEnds, on_end: Callable[[], None]) -> None:
        """Start before the first entry."""
        self._stream = stream
        self._early_ends = early_ends
        self._on_end = on_end

    def on_message(self, message: bytes) -> None:
        """Process a `StreamAccessLogsMessage`."""
        try:
            self._early_ends.report(message)
        except BadMessage:
            self._stream.end(grpc.INVALID_ARGUMENT, "not a StreamAccessLogsMessage")
        except Exception:
            # A defect that concerns one request must not end the requests of the connection.
            log.exception("an entry of Envoy's access log could not be processed")

    def on_oversized(self, problem: str) -> None:
        """End the call."""
        self._stream.end(grpc.RESOURCE_EXHAUSTED, problem)

    def before_write(self) -> None:
        """Do nothing."""

    def on_sent(self) -> None:
        """Do nothing."""

    def on_closed(self) -> None:
        """Release the place of the call."""
        self._on_end()


class HealthCall:
    """A health check."""

    def __init__(
        self, stream: grpc.GrpcStream, status_of: Callable[[str], int | None], on_end: Callable[[], None]
    ) -> None:
        """Answer with the status that `status_of` returns for a service."""
        self._stream = stream
        self._status_of = status_of
        self._on_end = on_end

    def on_message(self, message: bytes) -> None:
        """Answer a `HealthCheckRequest`."""
        try:
            status = self._status_of(read_health_check(message))
        except BadMessage:
            status = None
        if status is None:
            self._stream.end(grpc.NOT_FOUND, "unknown service")
            return
        self._stream.send(health_status(status))
        self._stream.end(grpc.OK)

    def on_oversized(self, problem: str) -> None:
        """End the call."""
        self._stream.end(grpc.RESOURCE_EXHAUSTED, problem)

    def before_write(self) -> None:
        """Do nothing."""

    def on_sent(self) -> None:
        """Do nothing."""

    def on_closed(self) -> None:
        """Release the place of the check."""
        self._on_end()
