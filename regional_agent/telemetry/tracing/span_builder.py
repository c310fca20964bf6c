"""Builds the spans of a request that has ended, for the JSON encoding of OTLP.

Names follow OpenTelemetry's semantic conventions for HTTP and generative AI
(https://opentelemetry.io/docs/specs/semconv/); names `penstock.*` are specific to this project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.answers.token_counts import Usage
from regional_agent.telemetry.tracing.request_trace import AttemptFacts, Mark, RequestTrace, SpanEvent

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
"""Values of OTLP's SpanKind."""

ERROR: Final = {"code": 2}
"""OTLP's Status of a failed span."""

_OPERATIONS: Final = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
"""`gen_ai.operation.name` by the end of a path."""

MAX_TEXT: Final = 1024
"""Maximum length (characters) of a text value; a path may have several thousand characters."""

AttributeValue = str | int | float | bool | tuple[str, ...]


class Span(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """A span (https://github.com/open-telemetry/opentelemetry-proto, trace.proto). Times in ns, as decimal strings."""

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[dict[str, Any]]
    parent_span_id: str = ""
    status: dict[str, int] = {}


class EndedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that has ended, without its trace. Times (s) are by the agent's monotonic clock."""

    method: str
    path: str
    route: str
    """Path template; empty if the request has no route."""
    status: int
    """Status of the response; 0 if no response was sent to the client."""
    failed: bool
    """Whether the request failed in the fleet; False for errors of the client."""
    reason: str
    """Why the request was refused or ended early; otherwise empty."""
    received_at: float
    ended_at: float
    first_byte_at: float | None
    streaming: bool
    model: str
    asked_for: str
    usage: Usage | None
    own: Mapping[str, AttributeValue]
    """Further attributes of the span of the request, most of them with names `penstock.*`."""


def attributes_of(values: Mapping[str, AttributeValue | None]) -> list[dict[str, Any]]:
    """Return a KeyValue list of OTLP, without values that are None or empty."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in (None, "", ())]


def _value(value: AttributeValue | None) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case tuple():
            return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
    return {"stringValue": str(value)[:MAX_TEXT]}


def spans_of(
    trace: RequestTrace, ended: EndedRequest, unix_offset_s: float, new_span_id: Callable[[], str]
) -> list[Span]:
    """Return the spans of a request: the request, what precedes its attempts, each attempt, and its parts.

    Args:
        unix_offset_s: Unix time (s) when the agent's monotonic clock was 0.
    """
    builder = _Builder(trace, ended, unix_offset_s, new_span_id)
    spans = [
        builder.request(),
        builder.internal("authorization", ended.received_at, trace.authorized_at, trace.span_id),
    ]
    marks = trace.marks
    for number, mark in enumerate(marks):
        until = marks[number + 1].at if number + 1 < len(marks) else ended.ended_at
        if mark.event in (SpanEvent.SELECTION, SpanEvent.QUEUE):
            spans.append(builder.internal(mark.event.value, mark.at, until, trace.span_id))
        elif mark.attempt is not None:
            spans += builder.attempt(mark, mark.attempt, marks[number + 1 :])
    return spans


class _Builder:
    def __init__(
        self, trace: RequestTrace, ended: EndedRequest, unix_offset_s: float, new_span_id: Callable[[], str]
    ) -> None:
        self._trace = trace
        self._ended = ended
        self._unix_offset_s = unix_offset_s
        self._new_span_id = new_span_id
        self._operation = next((name for end, name in _OPERATIONS.items() if ended.path.endswith(end)), "")

    def _nanoseconds(self, at: float) -> str:
        return str(int((at + self._unix_offset_s) * 1e9))

    def _span(
        self,
        span_id: str,
        name: str,
        kind: int,
        times: tuple[float, float],
        parent_id: str,
        attributes: Mapping[str, AttributeValue | None],
    ) -> Span:
        return Span(
            self._trace.trace_id,
            span_id,
            name,
            kind,
            self._nanoseconds(times[0]),
            self._nanoseconds(times[1]),
            attributes_of(attributes),
            parent_id,
        )

    def internal(self, name: str, since: float, until: float, parent_id: str) -> Span:
        return self._span(self._new_span_id(), name, INTERNAL, (since, until), parent_id, {})

    def request(self) -> Span:
        ended, trace = self._ended, self._trace
        error_type = ended.reason or (str(ended.status) if ended.status >= 500 else "")
        attributes: dict[str, AttributeValue | None] = {
            "http.request.method": ended.method,
            "url.path": ended.path,
            "http.route": ended.route,
            "http.response.status_code": ended.status or None,
            "error.type": error_type,
            **self._model(),
            **ended.own,
            "penstock.reason": ended.reason,
        }
        times = (ended.received_at, ended.ended_at)
        name = f"{ended.method} {ended.route}".rstrip()
        span = self._span(trace.span_id, name, SERVER, times, trace.parent_id, attributes)
        if ended.failed:
            span.status = ERROR
        return span

    def _model(self) -> dict[str, AttributeValue | None]:
        ended = self._ended
        return {
            "gen_ai.operation.name": self._operation,
            "gen_ai.request.model": ended.asked_for,
            "gen_ai.request.stream": ended.streaming,
        }

    def attempt(self, mark: Mark, facts: AttemptFacts, later: list[Mark]) -> list[Span]:
        """Return the span of an attempt, and the spans of the parts of its response."""
        ended = self._ended
        sent_at: float | None = None
        first_byte_at: float | None = None
        over = None
        for each in later:
            if each.event is SpanEvent.SENT:
                sent_at = each.at
            elif each.event is SpanEvent.STREAM:
                first_byte_at = each.at
            elif each.event is SpanEvent.FAILED:
                over = each
                break
        until, reason = (ended.ended_at, ended.reason) if over is None else (over.at, over.reason)
        attributes: dict[str, AttributeValue | None] = {
            **self._model(),
            "gen_ai.response.model": ended.model,
            "server.address": facts.host,
            "server.port": facts.port,
            "error.type": reason,
            "penstock.server": facts.region,
            "penstock.endpoint": facts.endpoint,
            "penstock.kind": facts.kind,
            "penstock.reason": reason,
        }
        if over is None:
            attributes["http.response.status_code"] = ended.status or None
            if ended.usage is not None:
                attributes["gen_ai.usage.input_tokens"] = ended.usage.prompt_tokens
                attributes["gen_ai.usage.output_tokens"] = ended.usage.answer_tokens
                attributes["gen_ai.usage.cache_read.input_tokens"] = ended.usage.cached_tokens
        if ended.streaming and first_byte_at is not None and sent_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = first_byte_at - sent_at
        name = f"{self._operation or 'request'} {ended.model}"
        span = self._span(facts.span_id, name, CLIENT, (mark.at, until), self._trace.span_id, attributes)
        if over is not None or ended.failed:
            span.status = ERROR
        spans = [span]
        # Prefill and generation cannot be distinguished in a response that is not streamed. The agent of the serving
        # region exports these spans of a forwarded request.
        if ended.streaming and facts.endpoint and sent_at is not None:
            first = until if first_byte_at is None else first_byte_at
            spans.append(self.internal("prefill", sent_at, first, facts.span_id))
            if first_byte_at is not None:
                spans.append(self.internal("stream", first_byte_at, until, facts.span_id))
        return spans
