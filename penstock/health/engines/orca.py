"""Reads an engine's load from a response's `endpoint-load-metrics` header (ORCA, Open Request Cost Aggregation).

Fields are those of xds.data.orca.v3.OrcaLoadReport (github.com/cncf/xds); the header is `TEXT a=1, b=2` or `JSON
{...}`, as Envoy reads it (source/common/orca/orca_parser.cc: in the text form `:` stands for `=` too) and vLLM writes
it (vllm/entrypoints/openai/orca_metrics.py). The base64 of a protobuf is not supported.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.health.engines.engine_signals import InvalidSignals, Signal, checked

HEADER: Final = b"endpoint-load-metrics"

MAX_BYTES = 4096
"""A longer header is ignored."""

NAMED = "named_metrics."

SIGNALS: dict[str, Signal] = {
    "application_utilization": Signal.UTILISATION,
    "named_metrics.kv_cache_usage_perc": Signal.KV_USED,
    "named_metrics.kv_cache_utilization": Signal.KV_USED,
    "named_metrics.num_requests_waiting": Signal.QUEUED,
    "named_metrics.num_requests_running": Signal.RUNNING,
}
"""Signals by the name of their field; the fields of `named_metrics` are those of vLLM."""


class _Report(msgspec.Struct):
    application_utilization: float | None = None
    named_metrics: dict[str, float] = {}


_reports = msgspec.json.Decoder(_Report)


def read_orca(header: bytes) -> dict[Signal, float]:
    """The signals in a header's value; empty if the header has only other fields.

    Raises:
        InvalidSignals: the value is too long, of neither form, or has a value that is invalid for its signal.
    """
    if len(header) > MAX_BYTES:
        raise InvalidSignals(f"a header of {len(header)} bytes")
    form, _, content = header.strip().partition(b" ")
    if form == b"JSON":
        fields = _json(content)
    elif form == b"TEXT":
        fields = _text(content)
    else:
        raise InvalidSignals("a header that is neither TEXT nor JSON")
    return {SIGNALS[name]: checked(SIGNALS[name], value) for name, value in fields.items() if name in SIGNALS}


def _json(content: bytes) -> dict[str, float]:
    try:
        report = _reports.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSignals("JSON that is no load report") from None
    fields = {NAMED + name: value for name, value in report.named_metrics.items()}
    if report.application_utilization is not None:
        fields["application_utilization"] = report.application_utilization
    return fields


def _text(content: bytes) -> dict[str, float]:
    fields = {}
    for part in content.decode("latin-1").split(","):
        name, equals, value = part.partition("=" if "=" in part else ":")
        if not equals:
            raise InvalidSignals("text that is no list of name=value")
        try:
            fields[name.strip()] = float(value)
        except ValueError:
            raise InvalidSignals("a value that is no number") from None
    return fields
