"""Asks an engine which of its models are loaded: one that is well may still be without the model that is wanted."""

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
"""An engine that does not answer for this long (s) is slow, as with its health."""

MAX_LIST_BYTES = 1 << 20
MAX_LISTED = 4096
"""Models of one engine's list that are looked at."""

NOT_THERE = frozenset({401, 403, 404, 405, 501})
"""Statuses of an engine that has no list, or none for us."""


class NotReady(Exception):
    """The engine says that it has nothing to say yet."""


class _Listed(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Listed]


_lists = msgspec.json.Decoder(_List)


async def ask_loaded(spec: EndpointSpec, asked: ModelDiscovery, connections: UpstreamPool) -> frozenset[str] | None:
    """Which of the endpoint's models its engine has; None where it does not say.

    Raises:
        NotReady: it answered with a server error.
        UpstreamError: it did not answer.
    """
    if asked is ModelDiscovery.LISTED:
        return await _listed(spec, connections)
    if asked is ModelDiscovery.EACH:
        return await _each(spec, connections)
    return None


async def _listed(spec: EndpointSpec, connections: UpstreamPool) -> frozenset[str] | None:
    try:
        status, body = await _get(spec.address, "/v1/models", connections)
    except TooLarge:
        return None
    if status >= 500 and status not in NOT_THERE:
        raise NotReady
    if status != 200:
        return None
    try:
        listed = _lists.decode(body).data[:MAX_LISTED]
    except (msgspec.DecodeError, RecursionError):
        return None
    return frozenset(one.id for one in listed).intersection(spec.models)


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
