"""Why Envoy ended requests early, by its access log.

Envoy closes the picker's stream in the same way when a client leaves and when an endpoint breaks off its response. The
entry in Envoy's access log states which. Envoy writes the entry first (`doDeferredStreamDestroy` in
source/common/http/conn_manager_impl.cc of Envoy), over the same connection, so that the reason is known when the stream
closes. Without an entry, the client has left.

Sources: https://github.com/envoyproxy/envoy/blob/v1.36.0/api/envoy/service/accesslog/v3/als.proto,
`data/accesslog/v3/accesslog.proto` beside it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from penstock.accounts.outcome_rules import Outcome
from regional_agent.picker.processing_request import LB_NAMESPACE, STREAM, map_entry, struct_member, text_value
from regional_agent.picker.protobuf_wire import BadMessage, Fields, length_tag, number_tag

LOG_SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"

MAX_FIELDS: Final = 4096
"""Maximum number of entries of a message, and of fields of an entry."""

_HTTP_LOGS: Final = length_tag(2)
_ENTRY: Final = length_tag(1)
_COMMON: Final = length_tag(1)
_FLAGS: Final = length_tag(16)
_METADATA: Final = length_tag(17)
_NAMESPACE: Final = length_tag(1)

_CLIENT_LEFT: Final = number_tag(15)
"""`downstream_connection_termination`."""

_OUTCOMES: Final = {
    number_tag(5): Outcome.ENGINE_CUT,
    number_tag(7): Outcome.ENGINE_CUT,
    number_tag(17): Outcome.STALLED,
    number_tag(24): Outcome.ENGINE_CUT,
}
"""Outcomes by the flags `upstream_remote_reset`, `upstream_connection_termination`, `stream_idle_timeout` and
`upstream_protocol_error`."""


class EarlyEnds:
    """The requests that Envoy has sent to endpoints, by the identifiers in the entries of its access log."""

    def __init__(self) -> None:
        """Start without a request."""
        self._prefix = secrets.token_hex(8)
        """Tells the requests of this agent from those of others, and of its last start."""
        self._last = 0
        self._waiting: dict[bytes, Callable[[Outcome], None]] = {}

    def add(self, on_report: Callable[[Outcome], None]) -> bytes:
        """Return the identifier of a further request; `on_report` receives its outcome if Envoy ended it early."""
        self._last += 1
        stream = f"{self._prefix}-{self._last}".encode()
        self._waiting[stream] = on_report
        return stream

    def discard(self, stream: bytes) -> None:
        """Expect no report of a request any more."""
        self._waiting.pop(stream, None)

    def report(self, message: bytes) -> None:
        """Process a `StreamAccessLogsMessage`; raises BadMessage for other bytes."""
        for stream, outcome in outcomes_in(message):
            on_report = self._waiting.get(stream)
            if on_report is not None:
                on_report(outcome)


def outcomes_in(message: bytes) -> list[tuple[bytes, Outcome]]:
    """Return the outcomes of requests in a `StreamAccessLogsMessage`, by their identifiers.

    Raises:
        BadMessage: the bytes are no such message.
    """
    found: list[tuple[bytes, Outcome]] = []
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


def _read_entry(entry: Fields, found: list[tuple[bytes, Outcome]]) -> None:
    """Read `HTTPAccessLogEntry`."""
    stream, outcome = "", None
    while entry.advance():
        if entry.tag != _COMMON:
            continue
        common = entry.inner()
        while common.advance():
            if common.tag == _FLAGS:
                outcome = _outcome(common.inner())
            elif common.tag == _METADATA:
                stream = _stream(common.inner())
    if stream and outcome is not None:
        found.append((stream.encode(), outcome))


def _outcome(flags: Fields) -> Outcome | None:
    """Read `ResponseFlags`."""
    outcome, client_left = None, False
    while flags.advance():
        if flags.value and flags.tag == _CLIENT_LEFT:
            client_left = True
        elif flags.value:
            outcome = _OUTCOMES.get(flags.tag, outcome)
    return None if client_left else outcome


def _stream(metadata: Fields) -> str:
    """Read the identifier in `Metadata`."""
    stream = ""
    while metadata.advance():
        if metadata.tag == _NAMESPACE:
            namespace, struct = map_entry(metadata)
            found = struct_member(struct, STREAM) if namespace == LB_NAMESPACE else None
            stream = stream if found is None else text_value(found)
    return stream
