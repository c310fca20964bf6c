"""Shares the locations of objects with the other agents of the region through Redis.

Redis stores the digest of each identifier, and the authenticated location. While Redis is unreachable, look-ups fail at
once, and the newest stores wait.

Each tenant has a hash from the digest of an identifier to an authenticated location, and a sorted set of the digests by
their last use, of which the least recently used ones are removed. Both expire. The script does not rely on the stored
values: agents authenticate the locations that they read.

    penstock:v1:{<region>}:objects:<tenant>       hash: digest -> location
    penstock:v1:{<region>}:objects-used:<tenant>  sorted set: digest by time of use (µs)
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from random import Random
from typing import Annotated, Final

import msgspec

from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS, OBJECT_LIFETIME_S, ObjectLocation
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import RegionKey
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.shared_load.shared_entries import EntryKind, Operation, SharedEntries

MAX_ENTRY_BYTES: Final = 4096
"""Maximum size (bytes) of a stored location; a larger location is deleted when it is sought."""

EVICTIONS: Final = 16
"""Maximum number of expired objects, and of surplus objects, that one store removes."""

OBJECTS_SCRIPT: Final = f"""
local lifetime_ms, max_objects = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local began_us, lifetime_us = clock[1] * 1000000 + clock[2], lifetime_ms * 1000
local reply = {{}}

local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', key)
  end
end

local function remove(objects, used, fields)
  if #fields > 0 then
    redis.call('HDEL', objects, unpack(fields))
    redis.call('ZREM', used, unpack(fields))
  end
end

for i = 1, #KEYS, 2 do
  local objects, used, field, value = KEYS[i], KEYS[i + 1], ARGV[i + 2], ARGV[i + 3]
  -- The clock stands still in a script; objects of one exchange are used in their order.
  local now_us = began_us + i
  expect(objects, 'hash')
  expect(used, 'zset')
  if redis.call('HLEN', objects) > 2 * max_objects + {EVICTIONS} then
    redis.call('DEL', objects, used)
  end
  if value == '' then
    local stored = redis.call('HGET', objects, field)
    if stored then
      local used_us = redis.call('ZSCORE', used, field)
      if #stored > {MAX_ENTRY_BYTES} or not used_us or tonumber(used_us) < now_us - lifetime_us then
        remove(objects, used, {{field}})
        stored = false
      else
        redis.call('ZADD', used, now_us, field)
      end
    end
    reply[#reply + 1] = stored or ''
  else
    redis.call('HSET', objects, field, value)
    redis.call('ZADD', used, now_us, field)
    remove(objects, used, redis.call('ZRANGEBYSCORE', used, '-inf', now_us - lifetime_us, 'LIMIT', 0, {EVICTIONS}))
    local surplus = math.min(redis.call('ZCARD', used) - max_objects, {EVICTIONS})
    if surplus > 0 then
      remove(objects, used, redis.call('ZRANGE', used, 0, surplus - 1))
    end
  end
  redis.call('PEXPIRE', objects, lifetime_ms)
  redis.call('PEXPIRE', used, lifetime_ms)
end
return reply
"""
"""KEYS: hash and sorted set for each object. ARGV: lifetime (ms), maximum number of objects of a tenant, then for each
object its digest and the location to store; an empty location requests the stored one.

Returns the locations of the requested objects, in their order; an empty string for an object that was not found.
"""


def object_keys(region: str, tenant: str) -> tuple[str, str]:
    """The keys of the hash and of the sorted set of a tenant's objects."""
    # Names of tenants can contain any character, so the keys contain a digest of the name.
    name = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"penstock:v1:{{{region}}}:objects:{name}", f"penstock:v1:{{{region}}}:objects-used:{name}"


PURPOSE: Final = "shared-objects"
"""Purpose for which the region's key authenticates the entries."""

MAX_TENANT_OBJECTS: Final = 20_000
"""Maximum number of objects of one tenant in Redis, about 400 bytes each. The least recently used are evicted first."""

BATCH: Final = 64
"""Maximum number of stores, and of look-ups, in one exchange."""

REPEAT_S: Final = 0.03
"""Time (s) after which a failed look-up is repeated once, since another agent may be storing the object."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]


class _Entry(msgspec.Struct, frozen=True):
    """The location of one object, as stored."""

    field: _Name
    """The digest under which the entry is stored; the entry is rejected under any other digest."""
    model: _Name
    region: _Name
    endpoint: _Name


_decoder = msgspec.json.Decoder(_Entry)


class SharedObjects:
    """The locations of objects in the Redis of one region."""

    def __init__(
        self,
        redis: RegionRedis,
        rng: Random,
        max_tenant_objects: int = MAX_TENANT_OBJECTS,
    ) -> None:
        """Create a connection that `start` opens.

        Args:
            redis: the Redis of the region.
            rng: jitter of reconnects.
            max_tenant_objects: maximum number of objects of one tenant in Redis.
        """
        head = (int(OBJECT_LIFETIME_S * 1000), max_tenant_objects)
        kind = EntryKind(PURPOSE, "objects of other agents", OBJECTS_SCRIPT, open_location, BATCH, True, head)
        self.entries = SharedEntries(redis, kind, rng, lambda: None)
        self._region = redis.region
        self.start = self.entries.start
        self.stop = self.entries.stop
        self.status = self.entries.status

    def publish(self, tenant: str, object_id: str, location: ObjectLocation) -> None:
        """Queue the location of an object to be stored. A full queue drops its oldest location."""
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS:
            return
        field = _digest(tenant, object_id)
        entry = _Entry(field, location.model, location.region, location.endpoint)
        sealed = self.entries.key.seal(msgspec.json.encode(entry))
        self.entries.store(Operation(object_keys(self._region, tenant), field, sealed))

    async def find(self, tenant: str, object_id: str) -> ObjectLocation | None:
        """The location of an object of a tenant; None if the object is unknown, or Redis is unreachable."""
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS:
            return None
        found = await self._find(tenant, object_id)
        if found is None and self.entries.up:
            await asyncio.sleep(REPEAT_S)
            found = await self._find(tenant, object_id)
        return found

    async def _find(self, tenant: str, object_id: str) -> ObjectLocation | None:
        if not self.entries.is_asked:
            return None
        return await self.entries.find(Operation(object_keys(self._region, tenant), _digest(tenant, object_id)))


def open_location(sealed: bytes, field: str | bytes, key: RegionKey) -> ObjectLocation:
    """Decode the location that an agent of the region stored under `field`.

    Raises:
        BadSignature: no agent of the region stored the location under `field`, or it is malformed.
    """
    try:
        entry = _decoder.decode(key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None
    if entry.field != field:
        raise BadSignature("the entry is stored under another name than its own")
    return ObjectLocation(entry.model, entry.region, entry.endpoint)


def _digest(tenant: str, object_id: str) -> str:
    """The digest under which an object is stored. Redis does not receive the identifier itself, because engines accept
    an identifier as the only reference to a stored object."""
    return blake2b(f"{len(tenant)}:{tenant}{object_id}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


assert MAX_ENTRY_BYTES > 4 * 256 * 2
