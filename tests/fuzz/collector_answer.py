"""Reads any response of an OpenTelemetry collector to exported spans.

Property: the result is a number of spans between none and all that were sent.
"""

from __future__ import annotations

from regional_agent.telemetry.tracing.span_exporter import rejected_spans

SENT = 7

WORDS = (
    b'{"partialSuccess":',
    b'{"rejectedSpans":',
    b'"errorMessage":',
    b'"1"',
    b"1e400",
    b"-1",
    b"null",
    b"\xff",
    b"[",
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    assert 0 <= rejected_spans(data, SENT) <= SENT
