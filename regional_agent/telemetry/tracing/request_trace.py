"""The trace of one request in progress: identifiers, and a mark at each event.

Spans are built after the request has ended, since most requests are not exported.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

MAX_MARKS: Final = 128
"""Maximum number of marks of a request; further marks are ignored. Limits of attempts and continuations keep the number
of marks at a few dozen."""


class SpanEvent(StrEnum):
    """What happens to a request at a mark. The spans of the request begin and end with these events."""

    SELECTION = "selection"
    QUEUE = "queue"
    ATTEMPT = "attempt"
    SENT = "sent"
    """The request has been sent to the target of the attempt; only its head if the body is incomplete."""
    STREAM = "stream"
    """The first byte of the response has arrived."""
    FAILED = "failed"
    """The attempt has ended, and the request continues."""


class AttemptFacts(msgspec.Struct, frozen=True, gc=False):
    """The target of one attempt."""

    span_id: str
    region: str
    endpoint: str
    """Empty if the attempt is forwarded."""
    kind: str
    """Why the region serves the request: the label `kind` of `penstock_agent_requests_total`."""
    host: str
    port: int


class Mark(msgspec.Struct, frozen=True, gc=False):
    """One event of a request."""

    event: SpanEvent
    at: float
    """Time (s) by the agent's monotonic clock."""
    attempt: AttemptFacts | None = None
    reason: str = ""


class RequestTrace:
    """The trace of one request at this agent."""

    __slots__ = ("_new_span_id", "attempt_id", "authorized_at", "marks", "parent_id", "sampled", "span_id", "trace_id")

    def __init__(
        self, trace_id: str, parent_id: str, sampled: bool, authorized_at: float, new_span_id: Callable[[], str]
    ) -> None:
        """Start the trace of a request that was authorized at `authorized_at` (s).

        Args:
            trace_id: 32 hexadecimal digits.
            parent_id: the caller's span, 16 hexadecimal digits; empty for none.
            sampled: whether the spans are exported regardless of the outcome of the request.
        """
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.sampled = sampled
        self.authorized_at = authorized_at
        self._new_span_id = new_span_id
        self.span_id = new_span_id()
        self.attempt_id = new_span_id()
        """Id of the span of the current or next attempt. A forwarded request is signed with it before it is sent."""
        self.marks: list[Mark] = []

    @property
    def traceparent(self) -> str:
        """The header `traceparent` that the target of the current attempt receives."""
        return f"00-{self.trace_id}-{self.attempt_id}-{'01' if self.sampled else '00'}"

    def note(self, event: SpanEvent, now: float) -> None:
        """Record an event at `now` (s)."""
        self._add(Mark(event, now))

    def attempt(self, region: str, endpoint: str, kind: str, host: str, port: int, now: float) -> None:
        """Record that an attempt begins at `now` (s)."""
        self._add(Mark(SpanEvent.ATTEMPT, now, AttemptFacts(self.attempt_id, region, endpoint, kind, host, port)))

    def attempt_failed(self, reason: str, now: float) -> None:
        """Record that the attempt failed at `now` (s). A further attempt has a separate span."""
        self._add(Mark(SpanEvent.FAILED, now, None, reason))
        self.attempt_id = self._new_span_id()

    def _add(self, mark: Mark) -> None:
        if len(self.marks) < MAX_MARKS:
            self.marks.append(mark)
