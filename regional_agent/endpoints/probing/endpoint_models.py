"""Queries which models an engine has loaded, and which of them sleep.

A healthy engine may not have loaded all configured models, and may list a model as loaded while it sleeps.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.health.engines.engine_facts import EngineFacts, combined, listed_model, read_facts
from penstock.health.engines.engine_kinds import DEFAULT_TAG, FactsPage, ModelDiscovery
from penstock.health.health_check import NO_PAGE
from penstock.policy.kinds.on_demand import WakeMethod
from penstock.policy.policy import BYTES_PER_GB
from penstock.retries.retry_rules import UNAUTHORIZED
from penstock.routes.classify import MAX_MODEL
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_fields import MAX_MODELS, EndpointSpec
from regional_agent.on_demand.engine_calls import ASLEEP_PAGES, asleep, running_models
from regional_agent.routing.request_rewrite import RequestRewrite
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TooLarge, UpstreamError

TIMEOUT_S = 2.0
"""Timeout (s) of a query; a timeout counts as a slow health probe."""

PAGE_TIMEOUT_S = 0.5
"""Timeout (s) of a page on which an engine reports about itself. All of them together leave the health probe, which has
2 s, the time that it needs: an engine that serves while its metrics hang is not down."""

MODELS_PATH = "/v1/models"
MAX_LIST_BYTES = 1 << 20
MAX_LISTED = 4096
"""Maximum number of models read from an engine's list."""
MAX_ADAPTER_FACTS = 32
"""Maximum number of adapters whose revisions are compared, the first by name."""

UNSUPPORTED = UNAUTHORIZED | NO_PAGE
"""Statuses of an engine that has no list of models, or denies access to it where no credential is configured."""


class NotReady(Exception):
    """The engine is not ready to list its models."""


class CredentialRejected(NotReady):
    """The engine rejected the configured credential; the message contains the request and the status."""


class LoadedModels(NamedTuple):
    """The models and adapters that an engine reports as loaded."""

    models: frozenset[str] | None
    """The endpoint's models, by their names in the policy; None if the engine does not report them."""
    adapters: frozenset[str] = frozenset()
    """Names of the adapters of these models."""
    facts: EngineFacts = EngineFacts()
    """What the list states about these models and adapters."""


class _Listed(msgspec.Struct):
    id: str
    parent: Any = None
    """Name of the base model in the engine, if this is an adapter."""
    root: Any = None
    """Path or revision of the weights."""
    max_model_len: Any = None
    """Maximum tokens of prompt and answer together."""


class _List(msgspec.Struct):
    data: list[_Listed]


_lists = msgspec.json.Decoder(_List)


async def fetch_loaded_models(
    spec: EndpointSpec, rewrite: RequestRewrite, discovery: ModelDiscovery, connections: UpstreamPool
) -> LoadedModels:
    """Query which of the endpoint's models are loaded, and which adapters of them.

    Raises:
        CredentialRejected: the engine rejected the configured credential.
        NotReady: the engine returned a server error.
        UpstreamError: the engine did not respond.
    """
    if discovery is ModelDiscovery.LISTED:
        return await _listed(spec, rewrite, connections)
    if discovery is ModelDiscovery.EACH:
        return LoadedModels(await _each(spec, rewrite, connections))
    return LoadedModels(None)


async def _listed(spec: EndpointSpec, rewrite: RequestRewrite, connections: UpstreamPool) -> LoadedModels:
    try:
        status, body = await _get(spec, rewrite, MODELS_PATH, connections)
    except TooLarge:
        return LoadedModels(None)
    if status >= 500 and status not in UNSUPPORTED:
        raise NotReady(f"status {status}")
    if status != 200:
        return LoadedModels(None)
    try:
        listed = _lists.decode(body).data[:MAX_LISTED]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return LoadedModels(None)
    # Ollama lists names with their tag, and serves `latest` for a name without one.
    entries = {model.id.removesuffix(DEFAULT_TAG): model for model in listed} | {model.id: model for model in listed}
    names = {rewrite.engine_name(model) for model in spec.models}
    loaded = [model for model in spec.models if rewrite.engine_name(model) in entries]
    about = [(model, entries[rewrite.engine_name(model)]) for model in loaded]
    adapters = frozenset(
        model.id
        for model in listed
        if isinstance(model.parent, str)
        and model.parent in names
        and model.id not in names
        and len(model.id) <= MAX_MODEL
    )
    about += [(name, entries[name]) for name in sorted(adapters)[:MAX_ADAPTER_FACTS]]
    return LoadedModels(
        frozenset(loaded),
        adapters,
        combined(tuple(listed_model(model, entry.root, entry.max_model_len) for model, entry in about)),
    )


async def fetch_facts(
    spec: EndpointSpec, rewrite: RequestRewrite, pages: tuple[FactsPage, ...], connections: UpstreamPool
) -> EngineFacts:
    """Read what an engine reports about itself on these pages.

    A page that cannot be read states nothing, whatever the reason: no request needs it, and what stands before the
    engine may refuse or cut off what clients never ask.
    """
    names = {model: rewrite.engine_name(model) for model in spec.models}
    parts = []
    for page in pages:
        try:
            status, body = await _get(spec, rewrite, page.value, connections, PAGE_TIMEOUT_S)
        except (CredentialRejected, UpstreamError):
            continue
        if status == 200:
            parts.append(read_facts(page, body, names))
    return combined(tuple(parts))


async def _each(spec: EndpointSpec, rewrite: RequestRewrite, connections: UpstreamPool) -> frozenset[str]:
    loaded = set()
    for model in spec.models[:MAX_MODELS]:
        name = quote(rewrite.engine_name(model), safe="")
        status, _ = await _get(spec, rewrite, f"/v2/models/{name}/ready", connections)
        if status == 200:
            loaded.add(model)
    return frozenset(loaded)


async def _get(
    spec: EndpointSpec, rewrite: RequestRewrite, path: str, connections: UpstreamPool, timeout_s: float = TIMEOUT_S
) -> tuple[int, bytes]:
    answer = await fetch(
        connections,
        spec.address,
        FetchRequest(rewrite.target(path), rewrite.headers),
        timeout_s=timeout_s,
        limit_bytes=MAX_LIST_BYTES,
    )
    if answer.status in UNAUTHORIZED and spec.credential_file:
        raise CredentialRejected(f"GET {rewrite.target(path)} answers {answer.status}")
    return answer.status, answer.body


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
    if not endpoint.reported.wake_methods:
        return listed
    # A list that the engine does not have cannot state that a model new to the entry sleeps.
    loaded = frozenset(endpoint.spec.models) if listed.models is None else listed.models
    return listed._replace(models=loaded - sleeping)
