"""Asks each endpoint whether it is well, about twice a second, over connections that are kept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.health.endpoint_health import EndpointState, ProbeOutcome
from penstock.health.engine_kinds import ENGINES
from regional_agent.background_tasks import wait_for_event
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_models import NotReady, ask_loaded
from regional_agent.upstream.http_fetch import fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TimedOut, UpstreamError

INTERVAL_S = 0.5
"""Time (s) between two probes of an endpoint whose state is settled."""

HURRY_S = 0.1
"""The same while one more probe may change the state."""

TIMEOUT_S = 2.0
"""A probe without an answer for this long (s) was slow: a loaded engine may be."""

MAX_PER_S = 200
"""Probes a second of one agent; with more endpoints than that allows, each is asked less often."""

MAX_ANSWER_BYTES = 64 * 1024


async def watch(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Probe one endpoint until cancelled, telling it what comes out.

    Args:
        siblings: how many endpoints are watched in all.
        rng: spreads probes over time, so that agents and endpoints do not fall into step.
    """
    while True:
        endpoint.wake.clear()
        endpoint.probed(await probe(endpoint, connections))
        wait_s = _next_in_s(endpoint, siblings()) * rng.uniform(0.8, 1.2)
        await wait_for_event(endpoint.wake, at_least_s=min(wait_s, HURRY_S), at_most_s=wait_s)


async def probe(endpoint: Endpoint, connections: UpstreamPool) -> ProbeOutcome:
    """Ask once whether it is well and, now and then or when it was not, which of its models are loaded."""
    engine = ENGINES[endpoint.kind]
    path = endpoint.spec.health_path or engine.health_path
    try:
        answer = await fetch(connections, endpoint.address, path, timeout_s=TIMEOUT_S, limit_bytes=MAX_ANSWER_BYTES)
        if answer.status == 200 and endpoint.models_due():
            endpoint.heard_loaded(await ask_loaded(endpoint.spec, engine.models, connections))
    except NotReady:
        return ProbeOutcome.UNREADY
    except TimedOut:
        return ProbeOutcome.SLOW
    except UpstreamError:
        return ProbeOutcome.UNREACHABLE
    return ProbeOutcome.GOOD if answer.status == 200 else ProbeOutcome.UNREADY


def _next_in_s(endpoint: Endpoint, siblings: int) -> float:
    health = endpoint.health
    settled = health.state is EndpointState.READY or (health.state is EndpointState.DOWN and health.hits == 0)
    return max(INTERVAL_S if settled else HURRY_S, siblings / MAX_PER_S)
