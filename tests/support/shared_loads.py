"""Reads the loads that the agents of a region publish through Redis."""

from __future__ import annotations

import redis

from penstock.wire.region_key import RegionKey, RegionKeys
from regional_agent.shared_load.published_load import PublishedLoad, open_load
from regional_agent.shared_load.redis_script import loads_key
from tests.support.identities import authority


def region_keys(region: str) -> RegionKeys:
    """The sealing key of a region of the test fleet."""
    return RegionKeys(authority().region_key(region))


def published_loads(client: redis.Redis, region: str) -> list[PublishedLoad]:
    """The loads in Redis; fails if a load was not published by an agent of the region."""
    stored = client.hgetall(loads_key(region))
    assert isinstance(stored, dict)
    key = RegionKey(region_keys(region), region)
    return [open_load(sealed, key) for sealed in stored.values()]


def has_no_load(load: PublishedLoad) -> bool:
    """Whether an agent has neither requests nor a queue."""
    return not load.loads and not load.waiting
