"""Keys of kept responses differ if anything differs that concerns the response; purges stay bounded."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from penstock.policy.kinds.result_cache import CacheScope, ResultCache
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.result_cache.cache_control import ANY, Wishes, lifetime_s, wishes_of
from penstock.result_cache.cache_key import KeyFields, cache_for, may_keep, result_key
from penstock.result_cache.cache_purges import EVERY_MODEL, FORGET_AFTER_S, MAX_PURGES, CachePurge, CachePurges
from tests.support.planet import MODEL, policy

CACHE = ResultCache("c", ("openai-*",), ("a*",))
FIELDS = KeyFields(MODEL, "", "openai-embeddings", b"/v1/embeddings", (), b"{}", "eu-de", "")
CHANGED = {
    "model": "v2",
    "adapter": "lora",
    "route": "openai-completions",
    "target": b"/v1/embeddings?a",
    "headers": ((b"openai-beta", b"x"),),
    "body": b'{"a":1}',
    "residency_class": "eu-de+eu-es",
    "purge": "1",
}


def key(fleet: Policy, cache: ResultCache = CACHE, tenant: str = "a", fields: KeyFields = FIELDS) -> bytes:
    return result_key(fleet, cache, tenant, fields)


def test_every_field_changes_the_key() -> None:
    fleet = policy()
    assert CHANGED.keys() == set(KeyFields.__struct_fields__)
    keys = {key(fleet, fields=replace(FIELDS, **{name: value})) for name, value in CHANGED.items()}
    keys |= {key(fleet), key(fleet, tenant="b"), key(fleet, replace(CACHE, name="d"))}
    model = replace(fleet.models[MODEL], adapters=("a-*",))
    keys.add(key(replace(fleet, models={MODEL: model})))
    routes = tuple(replace(route, path=route.path + "x") for route in fleet.routes)
    keys.add(key(replace(fleet, routes=routes)))
    assert len(keys) == len(CHANGED) + 5
    # Neither the rest of the policy nor the place of a route in the bundle matters.
    moved = replace(fleet, tenants={}, routes=tuple(replace(route, source="b:7") for route in fleet.routes))
    assert key(moved) == key(fleet)


def test_only_a_shared_scope_gives_tenants_the_same_key() -> None:
    shared = replace(CACHE, scope=CacheScope.SHARED)
    assert key(policy(), shared, "a") == key(policy(), shared, "b")
    assert key(policy(), CACHE, "a") != key(policy(), CACHE, "b")


def test_the_first_document_by_name_applies() -> None:
    fleet = replace(policy(), result_caches=(CACHE, replace(CACHE, name="d", tenants=("*",))))
    found = [cache_for(fleet, "openai-embeddings", tenant) for tenant in ("a1", "b")]
    assert [cache and cache.name for cache in found] == ["c", "d"]
    assert cache_for(fleet, "triton-infer", "a1") is None
    assert cache_for(policy(), "openai-embeddings", "a1") is None


def test_responses_stay_in_permitted_regions() -> None:
    permitted = residency_class(frozenset({"eu-de", "eu-es"}))
    assert may_keep("eu-de", permitted)
    assert not may_keep("us-east", permitted)


def test_purges_concern_their_model_and_are_bounded() -> None:
    purges = CachePurges()
    for number in range(MAX_PURGES):
        purges = purges.with_purge(CachePurge(f"m{number}", str(number), float(number), "a", "r"))
    assert (purges.newest("m7"), purges.newest("other"), purges.newest("m1", "m2")) == ("7", "", "1 2")
    assert len(purges.with_purge(CachePurge("m7", "again", 2000.0, "a", "r")).purges) == MAX_PURGES
    (all_models,) = purges.with_purge(CachePurge("more", "x", 2000.0, "a", "r")).purges
    assert all_models.model == EVERY_MODEL
    later = purges.with_purge(CachePurge("more", "x", FORGET_AFTER_S + 1000.0, "a", "r"))
    assert (later.newest("m7"), later.newest("more"), len(later.purges)) == ("", "x", MAX_PURGES - 1000)


def test_directives_of_requests_and_responses() -> None:
    assert wishes_of(None) == wishes_of(b"") == wishes_of(b"max-stale=9, x") == ANY
    assert wishes_of(b" Max-Age = 10 ") == Wishes(max_age_s=10.0)
    assert wishes_of(b'max-age="10"') == Wishes(max_age_s=10.0)
    assert wishes_of(b"max-age=-1") == wishes_of(b"no-cache") == wishes_of(None, b"no-cache") == Wishes(max_age_s=0.0)
    assert wishes_of(b"max-age=5, no-store") == Wishes(may_store=False, max_age_s=5.0)
    assert wishes_of(b"max-age=5, max-age=60, Only-If-Cached") == Wishes(max_age_s=5.0, only_kept=True)
    assert wishes_of(b"min-fresh=7") == Wishes(min_fresh_s=7.0)
    assert wishes_of(b"min-fresh=x") == wishes_of(b"min-fresh") == Wishes(min_fresh_s=inf)


@pytest.mark.parametrize(
    ("headers", "kept_s"),
    [
        ({}, inf),
        ({b"cache-control": b"public"}, inf),
        ({b"cache-control": b"public, max-age=5"}, 5.0),
        ({b"cache-control": b"max-age=5, S-MaxAge=9", b"expires": b"0"}, 9.0),
        ({b"cache-control": b"max-age=50", b"age": b"20"}, 30.0),
        ({b"cache-control": b"max-age=5", b"age": b"20"}, 0.0),
        ({b"cache-control": b"max-age=x"}, 0.0),
        ({b"cache-control": b'no-cache="x", max-age=5'}, 0.0),
        ({b"expires": b"Thu, 01 Jan 2099 00:00:00 GMT"}, 0.0),
        ({b"content-encoding": b"gzip"}, 0.0),
    ],
)
def test_a_response_is_kept_as_long_as_its_engine_permits(headers: dict[bytes, bytes], kept_s: float) -> None:
    assert lifetime_s(200, headers) == kept_s
    assert lifetime_s(201, headers) == 0.0
