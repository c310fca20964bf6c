"""Shares kept responses with the other agents of the region through Redis.

While Redis is unreachable or slow, look-ups find nothing within LOOKUP_TIMEOUT_S, and responses wait to be stored up to
a bound.

The responses of one `ResultCache` document are one hash, beside a sorted set of their keys by expiry. A store removes
expired responses, and as many of those that expire first as the bound of the document needs. The script does not
interpret stored values: agents authenticate the responses that they read.

    penstock:v1:{<region>}:results:<document>          hash: key -> response; the empty key: size of all (bytes)
    penstock:v1:{<region>}:results-expiry:<document>   sorted set: key by time of expiry (ms)
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.policy.kinds.result_cache import SMALL_BYTES, ResultCache
from penstock.result_cache.cached_result import ENTRY_OVERHEAD_BYTES, STORED, CachedResult, decode_result, encode_result
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import RegionKey
from regional_agent.result_cache.result_cache_metrics import ResultCacheMetrics
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.shared_load.shared_entries import EntryKind, Operation, SharedEntries

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


PURPOSE: Final = "kept-results"
"""Purpose for which the region's key authenticates the entries."""

LOOKUP_TIMEOUT_S: Final = 0.05
"""Maximum time (s) that a look-up delays its request."""

REST_S: Final = 1.0
"""Time (s) without look-ups after one that took too long."""

BATCH: Final = 16
"""Maximum number of look-ups, and of stores, in one exchange."""

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Maximum size (bytes) of the responses that wait to be stored; further ones are dropped."""


class SharedResults:
    """The kept responses in the Redis of one region."""

    def __init__(
        self, redis: RegionRedis, metrics: ResultCacheMetrics, rng: Random, lookup_timeout_s: float = LOOKUP_TIMEOUT_S
    ) -> None:
        """Create a connection that `start` opens.

        Args:
            redis: the Redis of the region.
            rng: jitter of reconnects.
            lookup_timeout_s: maximum time (s) of a look-up.
        """
        kind = EntryKind(PURPOSE, "kept responses", RESULTS_SCRIPT, open_result, BATCH, False)
        self._entries = SharedEntries(redis, kind, rng, metrics.redis_failures.inc)
        self._region = redis.region
        self._metrics = metrics
        self._lookup_timeout_s = lookup_timeout_s
        self._rests_until = 0.0
        self.start = self._entries.start
        self.stop = self._entries.stop
        self.status = self._entries.status

    @property
    def is_asked(self) -> bool:
        """Whether look-ups are sent to Redis: it is reachable, and was fast enough."""
        return self._entries.is_asked and time.monotonic() >= self._rests_until

    async def find(self, cache: ResultCache, key: bytes) -> CachedResult | None:
        """Return a stored response; None if there is none, or Redis does not return it in time. Does not raise."""
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                return await self._entries.find(self._operation(cache, key, b""))
        except TimeoutError:
            self._metrics.redis_failures.inc()
            self._rests_until = time.monotonic() + REST_S
            return None

    def store(self, cache: ResultCache, result: CachedResult) -> None:
        """Queue a response to be stored; dropped if too many wait."""
        stored = replace(result, key=STORED + result.key) if result.stored_bytes else result
        sealed = self._entries.key.seal(encode_result(stored))
        if sum(len(waiting.value) for waiting in self._entries.stores) + len(sealed) > MAX_WAITING_BYTES:
            self._metrics.redis_failures.inc()
            return
        self._entries.store(self._operation(cache, result.key, sealed))

    def _operation(self, cache: ResultCache, key: bytes, value: bytes) -> Operation[CachedResult]:
        limits = (cache.max_age_s * 1000, cache.max_bytes)
        return Operation(results_keys(self._region, cache.name), key, value, limits)


def open_result(sealed: bytes, key: str | bytes, region_key: RegionKey) -> CachedResult:
    """Read the response that an agent of the region stored under `key`.

    Raises:
        BadSignature: no agent of the region stored the response under `key`, or it is malformed.
    """
    try:
        result = decode_result(region_key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None
    own = result.key.removeprefix(STORED) if result.stored_bytes else result.key
    if own != key:
        raise BadSignature("the entry is stored under another key than its own")
    return replace(result, key=own)
