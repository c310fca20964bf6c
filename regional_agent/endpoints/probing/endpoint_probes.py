"""Probes the health of each endpoint about twice a second, over pooled connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.health.endpoint_health import EndpointState, ProbeOutcome
from penstock.health.engines.engine_kinds import ENGINES, EngineKind
from penstock.health.health_check import answer_outcome, asks_for_models, unready_because
from penstock.retries.retry_rules import UNAUTHORIZED
from regional_agent.background_tasks import wait_for_event
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.probing.endpoint_models import (
    MAX_LIST_BYTES,
    MODELS_PATH,
    CredentialRejected,
    NotReady,
    fetch_facts,
    fetch_loaded_models,
    without_asleep,
)
from regional_agent.routing.request_rewrite import NO_REWRITE
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TimedOut, UpstreamError

FAST = 0.2
"""Interval between two probes while the next one may change the state, as a part (0-1) of the usual one."""

MAX_LATE_S = 30.0
"""Maximum time (s) for which one probe waits for an endpoint whose requests explain the delay. Each further probe
occupies another place in the queue of connections of a server that runs one request at a time; but a server whose
address has changed must not be waited for."""

MAX_PER_S = 200
"""Maximum probes per second of one agent; with many endpoints, each is probed less often."""

MAX_ANSWER_BYTES = 64 * 1024


async def keep_probing(endpoint: Endpoint, connections: UpstreamPool, siblings: Callable[[], int], rng: Random) -> None:
    """Probe one endpoint until cancelled, and apply the outcomes.

    Args:
        siblings: returns the number of probed endpoints.
        rng: adds jitter to the interval, so that agents do not probe in step.
    """
    try:
        while True:
            endpoint.probe_now.clear()
            await probe(endpoint, connections)
            wait_s = _next_in_s(endpoint, siblings()) * rng.uniform(0.8, 1.2)
            at_least_s = min(wait_s, endpoint.health_check.interval_s * FAST)
            await wait_for_event(endpoint.probe_now, at_least_s=at_least_s, at_most_s=wait_s)
    finally:
        connections.serial.discard(endpoint.address)


async def probe(endpoint: Endpoint, connections: UpstreamPool) -> None:
    """Probe once, and apply the outcome. Also queries the loaded models if that is due.

    A probe that is late because of the endpoint's requests counts as late after each timeout, and is not repeated.
    """
    timeout_s, releases, running = endpoint.health_check.timeout_s, endpoint.releases, endpoint.local_load.requests > 0
    if endpoint.may_be_serial():
        connections.serial.add(endpoint.address)
    else:
        connections.serial.discard(endpoint.address)
    answer = asyncio.ensure_future(_probe(endpoint, connections))
    try:
        while not (await asyncio.wait((answer,), timeout=timeout_s))[0]:
            running = False
            endpoint.probe_failure = f"no answer to the health probe within {timeout_s:g} s"
            endpoint.probed(ProbeOutcome.SLOW)
            if endpoint.may_be_serial():
                connections.keep_none(endpoint.address)
            if not endpoint.is_engaged():
                return
        outcome, endpoint.probe_failure = await answer
        endpoint.probed(outcome, while_running=running and endpoint.releases == releases)
    finally:
        connections.keep(endpoint.address)
        answer.cancel()


async def _probe(endpoint: Endpoint, connections: UpstreamPool) -> tuple[ProbeOutcome, str]:
    """Return the outcome of one probe, and why it is not good; without the path, which may hold a secret."""
    if not endpoint.usable:
        return ProbeOutcome.UNREADY, "a file of its entry was never usable"
    spec, rewrite = endpoint.spec, endpoint.rewrite or NO_REWRITE
    check = endpoint.health_check
    lists = endpoint.lacks_health_page and _may_lack_health_page(endpoint)
    target = spec.health.path or rewrite.target(MODELS_PATH if lists else check.path)
    try:
        answer = await fetch(
            connections,
            endpoint.address,
            FetchRequest(target, rewrite.headers),
            timeout_s=MAX_LATE_S,
            limit_bytes=MAX_LIST_BYTES if lists else MAX_ANSWER_BYTES,
        )
        endpoint.lacks_health_page = asks_for_models(lists, answer.status)
        has_retry_after = "retry-after" in answer.headers
        outcome = answer_outcome(check, answer.status, answer.body, has_retry_after=has_retry_after)
        if outcome is ProbeOutcome.GOOD and (endpoint.reported.wake_methods or endpoint.models_due()):
            # An endpoint that another agent lets sleep must receive no requests, so its models are always due.
            await _read_models(endpoint, connections)
    except CredentialRejected as error:
        endpoint.reject_credential(str(error))
        return ProbeOutcome.UNREADY, "it rejects the credential"
    except NotReady as error:
        return ProbeOutcome.UNREADY, f"it does not list its models: {error}"
    except TimedOut:
        return ProbeOutcome.SLOW, "no answer to the query of its models"
    except UpstreamError as error:
        return ProbeOutcome.UNREACHABLE, f"the health probe failed: {error}"
    if answer.status in UNAUTHORIZED and spec.credential_file:
        endpoint.reject_credential(f"GET {target} answers {answer.status}")
    if outcome is ProbeOutcome.UNREADY:
        return outcome, unready_because(check, answer.status, answer.body)
    return outcome, "it is busy" if outcome is ProbeOutcome.BUSY else ""


async def _read_models(endpoint: Endpoint, connections: UpstreamPool) -> None:
    """Read which models are loaded and do not sleep, again if policy, entry or kind change while the engine answers."""
    reported, asked = endpoint.reported, None
    while asked != (asks := (endpoint.kind, endpoint.spec, endpoint.rewrite or NO_REWRITE, reported.wake_methods)):
        asked = asks
        engine, spec, rewrite = ENGINES[asks[0]], asks[1], asks[2]
        if engine.facts and reported.are_pages_due(endpoint.now(), ready=endpoint.health.ready):
            reported.set_pages(await fetch_facts(spec, rewrite, engine.facts, connections))
        listed = await fetch_loaded_models(spec, rewrite, engine.models, connections)
        listed = await without_asleep(listed, endpoint, rewrite, connections)
    endpoint.set_loaded_models(listed.models, listed.adapters, listed.facts)


def _may_lack_health_page(endpoint: Endpoint) -> bool:
    """Whether nothing states the health path, so that an ordinary server of OpenAI's API may have none."""
    return endpoint.kind is EngineKind.AUTO and endpoint.spec.health.path is None


def _next_in_s(endpoint: Endpoint, siblings: int) -> float:
    health, interval_s = endpoint.health, endpoint.health_check.interval_s
    settled = health.state is EndpointState.READY or (health.state is EndpointState.DOWN and health.hits == 0)
    return max(interval_s if settled else interval_s * FAST, siblings / MAX_PER_S)
