"""Reads the metrics of endpoints' GPUs, where the entry of an endpoint names their port. Requests never wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import structlog

from penstock.health.engines.engine_signals import InvalidSignals
from penstock.health.engines.gpu_metrics import read_gpus
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.probing.endpoint_signals import MAX_PAGE_BYTES, MAX_PER_S, TIMEOUT_S
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TooLarge, UpstreamError

INTERVAL_S = 5.0
"""Interval (s) between two reads of one page; DCGM exporters renew theirs every 15 to 30 s."""

PATH = "/metrics"

log = structlog.get_logger()


async def keep_reading(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Read the page of one endpoint's GPUs until cancelled; see `endpoint_signals.keep_reading`."""
    while True:
        await read(endpoint, connections)
        await asyncio.sleep(max(INTERVAL_S, siblings() / MAX_PER_S) * rng.uniform(0.8, 1.2))


async def read(endpoint: Endpoint, connections: UpstreamPool) -> None:
    """Read the page once, and keep its values or its problem."""
    port = endpoint.spec.gpu_metrics_port
    if port is None:
        return
    # An exporter is another service than the engine: without its base path, its credential and its TLS.
    address = endpoint.spec.address._replace(port=port, tls=False, server_name="")
    try:
        answer = await fetch(connections, address, FetchRequest(PATH), timeout_s=TIMEOUT_S, limit_bytes=MAX_PAGE_BYTES)
        if answer.status != 200:
            raise InvalidSignals(f"{PATH} answers {answer.status}")
        endpoint.reported.gpus, endpoint.reported.gpu_problem = read_gpus(answer.body, endpoint.spec.gpus), ""
    except (InvalidSignals, TooLarge, UpstreamError) as problem:
        if not endpoint.reported.gpu_problem:
            log.warning("the metrics of an endpoint's GPUs cannot be used", endpoint=endpoint.name, error=str(problem))
        endpoint.reported.gpus, endpoint.reported.gpu_problem = None, str(problem)
