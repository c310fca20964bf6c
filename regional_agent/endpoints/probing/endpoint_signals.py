"""Reads the load signals on each engine's metrics page about once a second. Requests never wait for a read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.health.engines.engine_kinds import ENGINES
from penstock.health.engines.engine_signals import InvalidSignals, read_metrics
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.routing.request_rewrite import NO_REWRITE
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TooLarge, UpstreamError

INTERVAL_S = 1.0
"""Interval (s) between two reads of one engine's page."""

INVALID_INTERVAL_S = 30.0
"""Interval (s) between two reads while the page is missing or invalid."""

TIMEOUT_S = 2.0
"""Timeout (s) of a read."""

MAX_PER_S = 50
"""Maximum reads per second of one agent; with many endpoints, each is read less often."""

MAX_PAGE_BYTES = 2 << 20
"""Maximum size of a page; a larger page is rejected."""


async def keep_reading(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Read one endpoint's page until cancelled.

    Args:
        siblings: returns the number of probed endpoints.
        rng: adds jitter to the interval.
    """
    while True:
        wait_s = max(await read(endpoint, connections), siblings() / MAX_PER_S)
        await asyncio.sleep(wait_s * rng.uniform(0.8, 1.2))


def metrics_address(spec: EndpointSpec) -> Address:
    """Return the address of an endpoint's metrics page.

    The page's port and path follow the configured kind: with `auto`, the actual kind is detected from the page.
    """
    port = spec.metrics_port or ENGINES[spec.engine].metrics_port
    return spec.address if port is None else spec.address._replace(port=port)


async def read(endpoint: Endpoint, connections: UpstreamPool) -> float:
    """Read the page once and apply its signals or its problem. Returns the time (s) until the next read."""
    if not endpoint.usable or endpoint.is_engaged():
        # An endpoint that answers no probe would not answer this query either.
        return INTERVAL_S
    address = metrics_address(endpoint.spec)
    # A metrics page on a separate port is another service, so the base path and the credential do not apply to it.
    rewrite = endpoint.rewrite or NO_REWRITE if address == endpoint.address else NO_REWRITE
    path = rewrite.target(ENGINES[endpoint.spec.engine].metrics_path)
    try:
        answer = await fetch(
            connections, address, FetchRequest(path, rewrite.headers), timeout_s=TIMEOUT_S, limit_bytes=MAX_PAGE_BYTES
        )
        if answer.status != 200:
            raise InvalidSignals(f"{path} answers {answer.status}")
        kind, values = read_metrics(answer.body, endpoint.kind)
    except (InvalidSignals, TooLarge) as problem:
        endpoint.signals_problem = str(problem)
        return INVALID_INTERVAL_S
    except UpstreamError as problem:
        endpoint.signals_problem = str(problem)
        return INTERVAL_S
    endpoint.signals_problem = ""
    endpoint.update_signals(values)
    if kind is not endpoint.kind:
        endpoint.set_kind(kind)
    return INTERVAL_S
