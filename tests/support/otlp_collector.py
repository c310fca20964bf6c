"""An OpenTelemetry collector: a real HTTP endpoint that decodes OTLP with OpenTelemetry's own messages."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.tracing.span_exporter import SpanExporter
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.small_http import Headers, SmallHttp


class Collector:
    """Stores the accepted spans, with the attributes of their resource."""

    def __init__(self) -> None:
        self.http = SmallHttp(self._answer)
        self.spans: list[tuple[dict[str, Any], Span]] = []
        self.answer = (200, b"{}")
        """Status and body of responses; spans are accepted only with status 200."""

    def exporter(self, region: str = "eu-de", metrics: AgentMetrics | None = None) -> SpanExporter:
        address = Address("127.0.0.1", self.http.port)
        return SpanExporter(address, UpstreamPool(), metrics or AgentMetrics(), {"penstock.region": region}, Random(1))

    def named(self, region: str) -> dict[str, Span]:
        """The spans of one region's agent, by name; fails if a name occurs twice."""
        spans = [span for resource, span in self.spans if resource["penstock.region"] == region]
        assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
        return {span.name: span for span in spans}

    def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        assert (method, target, dict(headers)[b"content-type"]) == (b"POST", b"/v1/traces", b"application/json")
        if self.answer[0] == 200:
            request = ParseDict(_with_base64(json.loads(body)), ExportTraceServiceRequest())
            for resource in request.resource_spans:
                common = attributes(resource.resource)
                self.spans += [(common, span) for scope in resource.scope_spans for span in scope.spans]
        return self.answer


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    receiver = Collector()
    async with receiver.http:
        yield receiver


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    found = {}
    for attribute in of.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def _with_base64(value: Any) -> Any:
    """Convert the identifiers of OTLP/JSON from hexadecimal to base64, the encoding of protobuf's JSON mapping."""
    if isinstance(value, list):
        return [_with_base64(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(member)).decode() if key in _IDENTIFIERS else _with_base64(member)
        for key, member in value.items()
    }


_IDENTIFIERS = ("traceId", "spanId", "parentSpanId")
