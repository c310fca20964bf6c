"""Queries which models an engine has loaded: a healthy engine may not have loaded all configured models."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from penstock.health.engine_kinds import ModelDiscovery
from regional_agent.endpoints.endpoint_fields import MAX_MODELS, EndpointSpec
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import TooLarge

TIMEOUT_S = 2.0
"""Timeout (s) of a query; a timeout counts as a slow health probe."""

MAX_LIST_BYTES = 1 << 20
MAX_LISTED = 4096
"""Maximum number of models read from an engine's list."""

UNSUPPORTED = frozenset({401, 403, 404, 405, 501})
"""Statuses of an engine that has no list of models, or denies access to it."""


class NotReady(Exception):
    """The engine is not ready to list its models."""


class _Listed(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Listed]


_lists = msgspec.json.Decoder(_List)


async def fetch_loaded_models(
    spec: EndpointSpec, discovery: ModelDiscovery, connections: UpstreamPool
) -> frozenset[str] | None:
    """Query which of the endpoint's models are loaded; None if the engine does not report them.

    Raises:
        NotReady: the engine returned a server error.
        UpstreamError: the engine did not respond.
    """
    if discovery is ModelDiscovery.LISTED:
        return await _listed(spec, connections)
    if discovery is ModelDiscovery.EACH:
        return await _each(spec, connections)
    return None


async def _listed(spec: EndpointSpec, connections: UpstreamPool) -> frozenset[str] | None:
    try:
        status, body = await _get(spec.address, "/v1/models", connections)
    except TooLarge:
        return None
    if status >= 500 and status not in UNSUPPORTED:
        raise NotReady
    if status != 200:
        return None
    try:
        listed = _lists.decode(body).data[:MAX_LISTED]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return frozenset(model.id for model in listed).intersection(spec.models)


async def _each(spec: EndpointSpec, connections: UpstreamPool) -> frozenset[str]:
    loaded = set()
    for model in spec.models[:MAX_MODELS]:
        status, _ = await _get(spec.address, f"/v2/models/{quote(model, safe='')}/ready", connections)
        if status == 200:
            loaded.add(model)
    return frozenset(loaded)


async def _get(address: Address, target: str, connections: UpstreamPool) -> tuple[int, bytes]:
    answer = await fetch(connections, address, target, timeout_s=TIMEOUT_S, limit_bytes=MAX_LIST_BYTES)
    return answer.status, answer.body
