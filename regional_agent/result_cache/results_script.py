"""The Redis script that stores and finds kept responses.

The responses of one `ResultCache` document are one hash, beside a sorted set of their keys by expiry. A store removes
expired responses, and as many of those that expire first as the bound of the document needs. The script does not
interpret stored values: agents authenticate the responses that they read.

    penstock:v1:{<region>}:results:<document>          hash: key -> response; the empty key: size of all (bytes)
    penstock:v1:{<region>}:results-expiry:<document>   sorted set: key by time of expiry (ms)
"""

from __future__ import annotations

from typing import Final

from penstock.policy.kinds.result_cache import SMALL_BYTES
from penstock.result_cache.cached_result import ENTRY_OVERHEAD_BYTES

MAX_STORED_BYTES: Final = SMALL_BYTES + 4096
"""Maximum size (bytes) of a stored response, with its header fields and its tag."""

MAX_REPLY_BYTES: Final = 4 << 20
"""Maximum size (bytes) of the responses that one exchange reads; further ones count as not found."""

EVICTIONS: Final = 64
"""Maximum number of expired responses, and of others, that one store removes."""

RESULTS_SCRIPT: Final = f"""
local bytes_left, reply = {MAX_REPLY_BYTES}, {{}}
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', key)
  end
end

for i = 1, #KEYS, 2 do
  local results, expiry = KEYS[i], KEYS[i + 1]
  local key, value = ARGV[2 * i - 1], ARGV[2 * i]
  local lifetime_ms, max_bytes = tonumber(ARGV[2 * i + 1]), tonumber(ARGV[2 * i + 2])
  expect(results, 'hash')
  expect(expiry, 'zset')
  if value == '' then
    local size = redis.call('HSTRLEN', results, key)
    if size > 0 and size <= {MAX_STORED_BYTES} and size <= bytes_left then
      bytes_left = bytes_left - size
      reply[#reply + 1] = redis.call('HGET', results, key)
    else
      reply[#reply + 1] = ''
    end
  else
    if redis.call('ZCARD', expiry) == 0 then
      redis.call('DEL', results)
    end
    local total = tonumber(redis.call('HGET', results, '') or '0') or 0
    local function remove(field)
      local size = redis.call('HSTRLEN', results, field)
      if size > 0 then
        total = total - size - {ENTRY_OVERHEAD_BYTES}
        redis.call('HDEL', results, field)
      end
      redis.call('ZREM', expiry, field)
    end
    remove(key)
    for _, field in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now_ms, 'LIMIT', 0, {EVICTIONS})) do
      remove(field)
    end
    local needed, evicted = #value + {ENTRY_OVERHEAD_BYTES}, 0
    while total + needed > max_bytes and evicted < {EVICTIONS} do
      local first = redis.call('ZRANGE', expiry, 0, 0)[1]
      if not first then break end
      remove(first)
      evicted = evicted + 1
    end
    if total + needed <= max_bytes then
      redis.call('HSET', results, key, value)
      redis.call('ZADD', expiry, now_ms + lifetime_ms, key)
      total = total + needed
    end
    redis.call('HSET', results, '', string.format('%.0f', total))
    for _, each in ipairs({{results, expiry}}) do
      if redis.call('PTTL', each) < lifetime_ms then
        redis.call('PEXPIRE', each, lifetime_ms)
      end
    end
  end
end
return reply
"""
"""KEYS: hash and sorted set of each operation. ARGV: for each operation the key, the response to store, its lifetime
(ms) and the maximum size (bytes) of the document's responses; an empty response requests the stored one.

Returns the requested responses, in their order; an empty string for one that was not found.
"""


def results_keys(region: str, document: str) -> tuple[str, str]:
    """Return the Redis keys of the hash and of the sorted set of a `ResultCache` document."""
    prefix = f"penstock:v1:{{{region}}}:results"
    return f"{prefix}:{document}", f"{prefix}-expiry:{document}"
