"""Which document of the policy applies to a request, and the key under which its response is kept.

Every field that can change the response is part of the key, so that a change of one makes all earlier entries
unreachable: no entry has to be found and deleted for it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.policy.kinds.result_cache import CacheScope, ResultCache
from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass
from penstock.tenancy.permissions import permits_name

KEY_BYTES: Final = 32

_encode = msgspec.msgpack.Encoder().encode


def keeps_route(policy: Policy, route: str) -> bool:
    """Whether responses of a route are kept for any tenant."""
    return any(permits_name((cache.routes,), route) for cache in policy.result_caches or ())


def cache_for(policy: Policy, route: str, tenant: str) -> ResultCache | None:
    """Return the document by which responses of a route are kept for a tenant; None if they are not kept."""
    for cache in policy.result_caches or ():
        if permits_name((cache.routes,), route) and permits_name((cache.tenants,), tenant):
            return cache
    return None


def may_keep(region: str, permitted: ResidencyClass) -> bool:
    """Whether responses to requests that the regions of `permitted` may serve may be kept in `region`."""
    return region in permitted.regions


class KeyFields(msgspec.Struct, frozen=True, array_like=True):
    """What the key of a response consists of, besides policy and tenant."""

    model: str
    """The model or model version that serves the request."""
    adapter: str
    """The requested adapter; empty for none."""
    route: str
    target: bytes
    """Path and query."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Header fields of the client that the engine receives."""
    body: bytes
    """See `deterministic_requests.DeterministicRequest`."""
    residency_class: str
    """Name of the residency class: a response by a region that another request may not use is not its response."""
    purge: str
    """See `CachePurges.newest`."""


def result_key(policy: Policy, cache: ResultCache, tenant: str, fields: KeyFields) -> bytes:
    """Return the key of a response: KEY_BYTES that differ if any of the arguments that concern the response differs.

    The documents of model and route are part of the key, the rest of the policy is not.
    """
    owner = "" if cache.scope is CacheScope.SHARED else tenant
    parts = (cache.name, owner, _origin(policy, fields.model, fields.route), fields)
    return blake2b(_encode(parts), digest_size=KEY_BYTES).digest()


def _origin(policy: Policy, model_name: str, route_name: str) -> bytes:
    """Return a digest of the documents of a model and a route, without their places in the bundle."""
    found = policy.result_origins.get((model_name, route_name))
    if found is None:
        model = policy.models.get(model_name)
        route = next((replace(each, source="") for each in policy.routes if each.name == route_name), None)
        encoded = msgspec.json.encode((model, route), order="deterministic")
        found = policy.result_origins[model_name, route_name] = blake2b(encoded, digest_size=KEY_BYTES).digest()
    return found
