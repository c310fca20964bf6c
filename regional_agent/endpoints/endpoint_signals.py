"""Reads each engine's metrics page, about once a second, for how full it says it is. Nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.health.engine_kinds import ENGINES
from penstock.health.engine_signals import InvalidSignals, read_metrics
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.upstream.http_fetch import fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TooLarge, UpstreamError

INTERVAL_S = 1.0
"""Time (s) between two looks at one engine's page."""

SELDOM_S = 30.0
"""The same while the page is of no use."""

TIMEOUT_S = 2.0

MAX_PER_S = 50
"""Pages a second of one agent; with more endpoints than that allows, each is read less often."""

MAX_PAGE_BYTES = 2 << 20
"""A larger page is not read to its end."""


async def keep_reading(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Read one endpoint's page until cancelled.

    Args:
        siblings: how many endpoints are read in all.
        rng: spreads the looks over time.
    """
    while True:
        wait_s = max(await read(endpoint, connections), siblings() / MAX_PER_S)
        await asyncio.sleep(wait_s * rng.uniform(0.8, 1.2))


async def read(endpoint: Endpoint, connections: UpstreamPool) -> float:
    """Look once, and tell the endpoint what its engine says, or why that is of no use; when (s) to look again."""
    # The place of the engine as configured: with `auto` its kind was found out by what is there.
    engine = ENGINES[endpoint.spec.engine]
    port = endpoint.spec.metrics_port or engine.metrics_port
    address = endpoint.address if port is None else endpoint.address._replace(port=port)
    path = engine.metrics_path
    try:
        answer = await fetch(connections, address, path, timeout_s=TIMEOUT_S, limit_bytes=MAX_PAGE_BYTES)
        if answer.status != 200:
            raise InvalidSignals(f"{path} answers {answer.status}")
        kind, told = read_metrics(answer.body, endpoint.kind)
    except (InvalidSignals, TooLarge) as problem:
        endpoint.signals_problem = str(problem)
        return SELDOM_S
    except UpstreamError as problem:
        endpoint.signals_problem = str(problem)
        return INTERVAL_S
    endpoint.signals_problem = ""
    endpoint.heard_signals(told)
    if kind is not endpoint.kind:
        endpoint.is_of(kind)
    return INTERVAL_S
