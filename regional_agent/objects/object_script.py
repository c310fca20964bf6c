"""The Redis script that stores and finds the locations of objects.

Each tenant has a hash from the digest of an identifier to an authenticated location, and a sorted set of the digests by
their last use, of which the least recently used ones are removed. Both expire. The script does not rely
on the stored values: agents authenticate the locations that they read.

    penstock:v1:{<region>}:objects:<tenant>       hash: digest -> location
    penstock:v1:{<region>}:objects-used:<tenant>  sorted set: digest by time of use (µs)
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

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
