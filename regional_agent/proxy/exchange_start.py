"""The start of an authorized request: it counts as in progress, and its parts are put together."""

from __future__ import annotations

from typing import Final

from regional_agent.http.client_connection import ClientConnection
from regional_agent.proxy.attempt_sink import AttemptSink
from regional_agent.proxy.exchange import Exchange
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.target_connection import TargetConnection
from regional_agent.requests.request_context import RequestContext

DECISIONS_PER_SAMPLE: Final = 32
"""Number of requests for each measured decision time."""


def start_exchange(proxy: Proxy, client: ClientConnection, context: RequestContext) -> Exchange:
    """Start the exchange of a request that was read from `client`."""
    # Only the tracer asks whether the sender is trusted.
    trusted = proxy.recorder.tracer is not None and client.trusted
    is_measured = begin(proxy, context, trusted=trusted)
    target = TargetConnection(proxy, client, context)
    exchange = Exchange(proxy, client, context, target, AttemptSink(proxy, client, context, target))
    exchange.slot = proxy.active.next
    exchange.slot.add(exchange)
    try:
        exchange.select(context.received_at)
    except BaseException:
        # The client connection closes without the exchange as its handler, so it must be ended here.
        exchange.on_client_gone()
        raise
    if is_measured:
        proxy.metrics.decided(proxy.clock() - context.received_at)
    return exchange


def begin(proxy: Proxy, context: RequestContext, *, trusted: bool) -> bool:
    """Count an authorized request as begun, and start its trace.

    Returns whether the time until its first target is selected is measured: of one in DECISIONS_PER_SAMPLE.

    Args:
        trusted: whether the sender is a trusted proxy.
    """
    tracer = proxy.recorder.tracer
    if tracer is not None:
        tracer.begin(context, trusted=trusted, now=proxy.clock())
    proxy.retry_budget.request(context.received_at)
    proxy.until_measured = proxy.until_measured - 1 or DECISIONS_PER_SAMPLE
    return proxy.until_measured == DECISIONS_PER_SAMPLE
