"""Why Envoy ended requests early, and which status a failed attempt had, by its access log.

Envoy closes the picker's stream in the same way when a client leaves and when an endpoint breaks off its response. The
entry in Envoy's access log states which. Envoy writes the entry first (`doDeferredStreamDestroy` in
source/common/http/conn_manager_impl.cc of Envoy), so that the reason is known when the stream closes, unless the entry
takes another connection. Without an entry, the cause is not known, and no endpoint is charged.

Sources: https://github.com/envoyproxy/envoy/blob/v1.36.0/api/envoy/service/accesslog/v3/als.proto,
`data/accesslog/v3/accesslog.proto` beside it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from penstock.accounts.outcome_rules import Outcome
from penstock.http.header_rules import Header
from regional_agent.picker.processing_request import LB_NAMESPACE, STREAM, map_entry, struct_member, text_value
from regional_agent.picker.protobuf_wire import BadMessage, Fields, length_tag, number_tag

LOG_SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"

MAX_FIELDS: Final = 4096
"""Maximum number of entries of a message, and of fields of an entry."""

_HTTP_LOGS: Final = length_tag(2)
_ENTRY: Final = length_tag(1)
_COMMON: Final = length_tag(1)
_REQUEST: Final = length_tag(3)
_REQUEST_HEADERS: Final = length_tag(13)
_RESPONSE: Final = length_tag(4)
_RESPONSE_HEADERS: Final = length_tag(4)
_RESPONSE_CODE: Final = length_tag(1)
_FLAGS: Final = length_tag(16)
_METADATA: Final = length_tag(17)
_NAMESPACE: Final = length_tag(1)

_KEY: Final = length_tag(1)
_VALUE: Final = length_tag(2)
_NUMBER: Final = number_tag(1)

STREAM_HEADER: Final = b"x-penstock-stream"
"""Header in which an endpoint, and the entry of an attempt, receive the identifier of the request."""

_NOT_CONNECTED: Final = number_tag(6)
"""The flag `upstream_connection_failure`."""

_OUTCOMES: Final = {
    number_tag(3): Outcome.TIMED_OUT,  # upstream_request_timeout
    number_tag(5): Outcome.ENGINE_CUT,  # upstream_remote_reset
    number_tag(7): Outcome.ENGINE_CUT,  # upstream_connection_termination
    number_tag(15): Outcome.CLIENT_LEFT,  # downstream_connection_termination
    number_tag(17): Outcome.STALLED,  # stream_idle_timeout
    number_tag(19): Outcome.CLIENT_LEFT,  # downstream_protocol_error
    number_tag(20): Outcome.TIMED_OUT,  # upstream_max_stream_duration_reached
    number_tag(23): Outcome.TIMED_OUT,  # duration_timeout
    number_tag(24): Outcome.ENGINE_CUT,  # upstream_protocol_error
    number_tag(28): Outcome.CLIENT_LEFT,  # downstream_remote_reset
}
"""Outcomes by the flags of an entry."""

_BY_WEIGHT: Final = (Outcome.CLIENT_LEFT, Outcome.TIMED_OUT, Outcome.STALLED, Outcome.ENGINE_CUT)
"""Of several flags of one entry, the first of these outcomes counts."""


LATE_S = 1.0
"""Time (s) after the end of a stream for which its entry is awaited: it is late where it takes another connection.
Not Final: mypyc would copy the value into the code, where tests cannot change it."""

MAX_UNREPORTED: Final = 3
"""Number of early ends in a row without an entry after which none is awaited: this agent receives no log of them."""

log = structlog.get_logger()


class FailedAttempt(NamedTuple):
    """The response of an endpoint, or of another region, after which Envoy sent the request to the next one."""

    status: int
    """0 if the connection failed before a response."""
    headers: list[Header]
    """Those that the log states, such as Retry-After."""
    was_sent: bool
    """Whether there was a connection, so that the target may have received the request."""


class EarlyEnds:
    """The requests that Envoy has sent to endpoints, by the identifiers in the entries of its access log."""

    def __init__(self, on_unreported: Callable[[], None]) -> None:
        """Start without a request; `on_unreported` counts the early ends of which no entry arrived."""
        self._on_unreported = on_unreported
        self._prefix = secrets.token_hex(8)
        """Tells the requests of this agent from those of others, and of its last start."""
        self._last = 0
        self._reported: dict[bytes, Outcome | None] = {}
        """The outcome of each request that has not ended; None before its entry has arrived."""
        self._attempts: dict[bytes, list[FailedAttempt]] = {}
        """The failed attempts of requests that have not ended, in order."""
        self._awaited: dict[bytes, tuple[Callable[[Outcome | None], None], asyncio.TimerHandle]] = {}
        """What receives the outcome of a request whose stream has closed, and the end of the time for its entry."""
        self._unreported = 0
        """Number of early ends since the last entry."""

    def add(self) -> bytes:
        """Return the identifier of a further request."""
        self._last += 1
        stream = f"{self._prefix}-{self._last}".encode()
        self._reported[stream] = None
        return stream

    def discard(self, stream: bytes) -> None:
        """Expect no entry of a request any more."""
        self._reported.pop(stream, None)
        self._attempts.pop(stream, None)

    def failed_attempts(self, stream: bytes) -> list[FailedAttempt]:
        """Return the attempts of a request that had a status for which Envoy repeats it, or no response, in order."""
        return self._attempts.get(stream, [])

    def closed(self, stream: bytes, settle: Callable[[Outcome | None], None]) -> None:
        """Pass the outcome of a request whose stream Envoy closed early to `settle`, once its entry has arrived.

        Without an entry, `settle` receives None: LATE_S later, or at once if earlier early ends had none either.
        """
        outcome = self._reported.get(stream)
        if outcome is not None:
            settle(outcome)
        elif self._unreported >= MAX_UNREPORTED:
            self._note_unreported()
            settle(None)
        else:
            timer = asyncio.get_running_loop().call_later(LATE_S, self.settle_now, stream)
            self._awaited[stream] = (settle, timer)

    def settle_now(self, stream: bytes) -> bool:
        """Await the entry of a request no longer; returns whether it was awaited."""
        settle, timer = self._awaited.pop(stream, (None, None))
        if settle is None or timer is None:
            return False
        timer.cancel()
        self._note_unreported()
        settle(None)
        return True

    def settle_all(self) -> None:
        """Await no entries, because the agent stops."""
        for stream in list(self._awaited):
            self.settle_now(stream)

    def report(self, message: bytes) -> None:
        """Process a `StreamAccessLogsMessage`; raises BadMessage for other bytes."""
        for stream, outcome in outcomes_in(message):
            if stream not in self._reported:
                continue  # of another agent, or an entry of a request that has ended otherwise
            if isinstance(outcome, FailedAttempt):
                self._attempts.setdefault(stream, []).append(outcome)
                continue
            self._unreported, self._reported[stream] = 0, outcome
            settle, timer = self._awaited.pop(stream, (None, None))
            if settle is not None and timer is not None:
                timer.cancel()
                settle(outcome)

    def _note_unreported(self) -> None:
        self._on_unreported()
        self._unreported += 1
        if self._unreported == MAX_UNREPORTED:
            log.warning(
                "Envoy's access log does not state why responses ended early: they count as client_left",
                remedy="give this agent a log of its own, as `access_log` in docs/envoy.md states",
            )


def outcomes_in(message: bytes) -> list[tuple[bytes, Outcome | FailedAttempt]]:
    """Return the outcomes of requests and of attempts in a `StreamAccessLogsMessage`, by their identifiers.

    Raises:
        BadMessage: the bytes are no such message.
    """
    found: list[tuple[bytes, Outcome | FailedAttempt]] = []
    count, fields = 0, Fields(message, 0, len(message))
    while fields.advance():
        if fields.tag != _HTTP_LOGS:
            continue
        entries = fields.inner()
        while entries.advance():
            count += 1
            if count > MAX_FIELDS:
                raise BadMessage("a message has too many entries")
            if entries.tag == _ENTRY:
                _read_entry(entries.inner(), found)
    return found


def _read_entry(entry: Fields, found: list[tuple[bytes, Outcome | FailedAttempt]]) -> None:
    """Read `HTTPAccessLogEntry`: of a request, or of an attempt, whose request has the header."""
    stream, flags, of_attempt, status, headers = b"", frozenset[int](), b"", 0, []
    while entry.advance():
        inner = entry.inner()
        while entry.tag in (_COMMON, _REQUEST, _RESPONSE) and inner.advance():
            part = entry.tag, inner.tag
            if part == (_COMMON, _FLAGS):
                flags = _flags(inner.inner())
            elif part == (_COMMON, _METADATA):
                stream = _stream(inner.inner()).encode()
            elif part == (_REQUEST, _REQUEST_HEADERS):
                name, value = _header(inner.inner())
                of_attempt = value if name == STREAM_HEADER else of_attempt
            elif part == (_RESPONSE, _RESPONSE_CODE):
                status = _number(inner.inner())
            elif part == (_RESPONSE, _RESPONSE_HEADERS):
                headers.append(_header(inner.inner()))
    outcomes = {_OUTCOMES[flag] for flag in flags if flag in _OUTCOMES}
    if stream and outcomes:
        # A client that leaves ends the request at the endpoint, too.
        found.append((stream, next(outcome for outcome in _BY_WEIGHT if outcome in outcomes)))
    elif of_attempt:
        found.append((of_attempt, FailedAttempt(status, headers, _NOT_CONNECTED not in flags)))


def _header(entry: Fields) -> Header:
    """Read an entry of a map of headers."""
    name = value = b""
    while entry.advance():
        if entry.tag == _KEY:
            name = entry.content()
        elif entry.tag == _VALUE:
            value = entry.content()
    return name, value


def _number(value: Fields) -> int:
    """Read `UInt32Value`."""
    number = 0
    while value.advance():
        number = value.value if value.tag == _NUMBER else number
    return number


def _flags(flags: Fields) -> frozenset[int]:
    """Read `ResponseFlags`: the tags of those that are set."""
    found: set[int] = set()
    while flags.advance():
        if flags.value:
            found.add(flags.tag)
    return frozenset(found)


def _stream(metadata: Fields) -> str:
    """Read the identifier in `Metadata`."""
    stream = ""
    while metadata.advance():
        if metadata.tag == _NAMESPACE:
            namespace, struct = map_entry(metadata)
            found = struct_member(struct, STREAM) if namespace == LB_NAMESPACE else None
            stream = stream if found is None else text_value(found)
    return stream
