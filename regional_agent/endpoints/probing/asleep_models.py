"""Queries which models of an endpoint sleep: an engine may list a model as loaded while it sleeps."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.policy.kinds.on_demand import WakeMethod
from penstock.policy.policy import BYTES_PER_GB
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.probing.endpoint_models import MAX_LIST_BYTES, TIMEOUT_S, LoadedModels, NotReady
from regional_agent.on_demand.engine_calls import ASLEEP_PAGES, asleep, running_models
from regional_agent.routing.engine_request import RequestRewrite
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool

_REMEDIES: Final = {WakeMethod.VLLM: "; start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"}


async def without_asleep(
    listed: LoadedModels, endpoint: Endpoint, rewrite: RequestRewrite, connections: UpstreamPool
) -> LoadedModels:
    """Return the loaded models without those that sleep.

    Raises:
        NotReady: the engine does not report what sleeps, so that requests could reach a model that does.
        UpstreamError: the engine did not respond.
    """
    sleeping: frozenset[str] = frozenset()
    for method, page in ASLEEP_PAGES.items():
        names = {model: rewrite.engine_name(model) for model in endpoint.reported.models_with(method)}
        if names:
            request = FetchRequest(rewrite.target(page), rewrite.headers)
            answer = await fetch(
                connections, endpoint.address, request, timeout_s=TIMEOUT_S, limit_bytes=MAX_LIST_BYTES
            )
            if answer.status != 200:
                raise NotReady(f"GET {page} answers {answer.status}{_REMEDIES.get(method, '')}")
            try:
                sleeping |= asleep(method, answer.body, names)
                if method is WakeMethod.OLLAMA and endpoint.spec.memory_gb is not None:
                    running = running_models(answer.body, names, endpoint.spec.memory_gb * BYTES_PER_GB)
                    endpoint.reported.size_bytes.update(running.needed_bytes)
                    endpoint.reported.other_bytes = running.other_bytes
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise NotReady(f"GET {page}: {error}") from None
    if not sleeping:
        return listed
    loaded = frozenset(endpoint.spec.models) if listed.models is None else listed.models
    return listed._replace(models=loaded - sleeping)
