"""Probes the health of each endpoint about twice a second, over pooled connections."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.health.endpoint_health import EndpointState, ProbeOutcome
from penstock.health.engine_kinds import ENGINES
from regional_agent.background_tasks import wait_for_event
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_models import (
    UNAUTHORIZED,
    CredentialRejected,
    NotReady,
    fetch_loaded_models,
)
from regional_agent.routing.engine_request import NO_REWRITE
from regional_agent.upstream.http_fetch import fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TimedOut, UpstreamError

INTERVAL_S = 0.5
"""Interval (s) between two probes of an endpoint whose state is settled."""

FAST_INTERVAL_S = 0.1
"""Interval (s) between two probes while the next one may change the state."""

TIMEOUT_S = 2.0
"""Timeout (s) of a probe. A timeout does not mean that the engine is down: it may be overloaded."""

MAX_PER_S = 200
"""Maximum probes per second of one agent; with many endpoints, each is probed less often."""

MAX_ANSWER_BYTES = 64 * 1024


async def keep_probing(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Probe one endpoint until cancelled, and apply the outcomes.

    Args:
        siblings: returns the number of probed endpoints.
        rng: adds jitter to the interval, so that agents do not probe in step.
    """
    while True:
        endpoint.probe_now.clear()
        endpoint.probed(await probe(endpoint, connections))
        wait_s = _next_in_s(endpoint, siblings()) * rng.uniform(0.8, 1.2)
        await wait_for_event(endpoint.probe_now, at_least_s=min(wait_s, FAST_INTERVAL_S), at_most_s=wait_s)


async def probe(endpoint: Endpoint, connections: UpstreamPool) -> ProbeOutcome:
    """Probe once. Also queries the loaded models if that is due."""
    outcome, endpoint.probe_failure = await _probe(endpoint, connections)
    return outcome


async def _probe(endpoint: Endpoint, connections: UpstreamPool) -> tuple[ProbeOutcome, str]:
    """Return the outcome of one probe, and why it is not good; without the path, which may hold a secret."""
    if not endpoint.usable:
        return ProbeOutcome.UNREADY, "a file of its entry was never usable"
    engine, spec, rewrite = ENGINES[endpoint.kind], endpoint.spec, endpoint.rewrite or NO_REWRITE
    target = spec.health_path or rewrite.target(engine.health_path)
    try:
        answer = await fetch(
            connections,
            endpoint.address,
            target,
            headers=rewrite.headers,
            timeout_s=TIMEOUT_S,
            limit_bytes=MAX_ANSWER_BYTES,
        )
        if answer.status == 200 and endpoint.models_due():
            listed = await fetch_loaded_models(spec, rewrite, engine.models, connections)
            endpoint.set_loaded_models(listed.models, listed.adapters)
    except CredentialRejected as error:
        endpoint.reject_credential(str(error))
        return ProbeOutcome.UNREADY, "it rejects the credential"
    except NotReady as error:
        return ProbeOutcome.UNREADY, f"it does not list its models: {error}"
    except TimedOut:
        return ProbeOutcome.SLOW, f"no answer to the health probe within {TIMEOUT_S:g} s"
    except UpstreamError as error:
        return ProbeOutcome.UNREACHABLE, f"the health probe failed: {error}"
    if answer.status in UNAUTHORIZED and spec.credential_file:
        endpoint.reject_credential(f"GET {target} answers {answer.status}")
    if answer.status == 200:
        return ProbeOutcome.GOOD, ""
    return ProbeOutcome.UNREADY, f"it answers the health probe with {answer.status}"


def _next_in_s(endpoint: Endpoint, siblings: int) -> float:
    health = endpoint.health
    settled = health.state is EndpointState.READY or (health.state is EndpointState.DOWN and health.hits == 0)
    return max(INTERVAL_S if settled else FAST_INTERVAL_S, siblings / MAX_PER_S)
