"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, JSON encoding
(https://github.com/open-telemetry/opentelemetry-proto, docs/specification.md).

Spans are encoded when they are added, so that the memory of queued spans is known exactly. Spans that cannot be
exported are counted and dropped, and delay no request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec
import structlog

from adapters.backoff import full_jitter_s
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.telemetry.agent_metrics import AgentMetrics
from regional_agent.telemetry.tracing.span_builder import Span, attributes_of
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

MAX_QUEUED_BYTES: Final = 8 << 20
"""Maximum size (bytes) of the queue of encoded spans; further spans are dropped."""

MAX_BATCH_BYTES: Final = 1 << 20
"""Maximum size (bytes) of the spans in one request to the collector, if they belong to several traces."""

INTERVAL_S: Final = 1.0
"""Time (s) between two exports."""

MAX_PAUSE_S: Final = 32.0
"""Maximum time (s) without an export after the collector failed."""

TIMEOUT_S: Final = 10.0
"""Time limit (s) of one request to the collector; OpenTelemetry's default."""

LAST_TIMEOUT_S: Final = 2.0
"""Time limit (s) for the export of the remaining spans when the agent stops."""

RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""Statuses for which the specification permits sending the same spans again."""

_PATH: Final = "/v1/traces"
_HEADERS: Final = ((b"content-type", b"application/json"), (b"accept", b"application/json"))

log = structlog.get_logger()


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int = 0


class _Answer(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


_decoder = msgspec.json.Decoder(_Answer, strict=False)


class SpanExporter:
    """Queues encoded spans, and exports them in batches. Used from the event loop only."""

    def __init__(
        self, address: Address, pool: UpstreamPool, metrics: AgentMetrics, resource: Mapping[str, str], rng: Random
    ) -> None:
        """Export to the collector at `address`; `resource`: attributes of this process; `rng`: jitter of retries."""
        self._address = address
        self._pool = pool
        self._metrics = metrics
        self._rng = rng
        self._encoder = msgspec.json.Encoder()
        encoded = self._encoder.encode(attributes_of(resource))
        self._before = (
            b'{"resourceSpans":[{"resource":{"attributes":%b},"scopeSpans":[{"scope":{"name":"penstock"},' % (encoded)
        )
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Queue; each entry has the encoded spans of one request, and their number."""
        self._waiting_bytes = 0
        self._failures = 0
        self._exporting: asyncio.Task[bool] | None = None
        """The newest request to the collector."""

    def add(self, spans: Sequence[Span]) -> None:
        """Queue the spans of one request, or drop them if the queue is full."""
        encoded = self._encoder.encode(spans)[1:-1]
        if self._waiting_bytes + len(encoded) > MAX_QUEUED_BYTES:
            self._metrics.spans_dropped(len(spans))
            return
        self._waiting.append((encoded, len(spans)))
        self._waiting_bytes += len(encoded)

    async def run(self) -> None:
        """Export every INTERVAL_S, less often after failures, until cancelled."""
        while True:
            await sleep_until_tick(INTERVAL_S)
            while self._waiting:
                # `close` awaits the request if this loop is cancelled, since the collector may already have the spans.
                self._exporting = asyncio.create_task(self._export(TIMEOUT_S))
                if not await asyncio.shield(self._exporting):
                    break
            if self._failures:
                pause_s = full_jitter_s(self._failures, base_s=INTERVAL_S, cap_s=MAX_PAUSE_S, rng=self._rng)
                await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Complete the request in progress and export the remaining spans in LAST_TIMEOUT_S. Call it after `run`."""
        try:
            async with asyncio.timeout(LAST_TIMEOUT_S):
                if self._exporting is not None:
                    await asyncio.wait([self._exporting])
                while self._waiting and await self._export(LAST_TIMEOUT_S):
                    pass
        except TimeoutError:
            if self._exporting is not None and self._exporting.cancel():
                await asyncio.wait([self._exporting])
        self._metrics.spans_dropped(sum(number for _, number in self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._pool.close()

    async def _export(self, timeout_s: float) -> bool:
        """Send one batch; returns False if the batch must be sent again later."""
        batch: list[bytes] = []
        spans = size = 0
        for encoded, number in self._waiting:
            if batch and size + len(encoded) > MAX_BATCH_BYTES:
                break
            batch.append(encoded)
            spans += number
            size += len(encoded)
        body = b'%b"spans":[%b]}]}]}' % (self._before, b",".join(batch))
        try:
            answer = await fetch(self._pool, self._address, FetchRequest(_PATH, _HEADERS, body), timeout_s=timeout_s)
        except UpstreamError as error:
            self._failed(str(error))
            return False
        if answer.status in RETRYABLE:
            self._failed(f"status {answer.status}")
            return False
        for _ in batch:
            self._waiting.popleft()
        self._waiting_bytes -= size
        accepted = 200 <= answer.status < 300
        rejected = rejected_spans(answer.body, spans) if accepted else spans
        self._metrics.spans_dropped(rejected)
        if not accepted:
            log.warning("collector rejects spans", collector=str(self._address), status=answer.status)
        elif self._failures:
            log.info("collector reachable again", collector=str(self._address))
        self._failures = 0
        return True

    def _failed(self, why: str) -> None:
        if not self._failures:
            log.warning("spans cannot be exported; trying again", collector=str(self._address), error=why)
        self._failures += 1


def rejected_spans(body: bytes, sent: int) -> int:
    """Return the number of spans, out of `sent`, that the collector reports as rejected in its response."""
    if not body:
        return 0
    try:
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return 0 if answer.partial_success is None else min(max(0, answer.partial_success.rejected_spans), sent)
