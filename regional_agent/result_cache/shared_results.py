"""Shares kept responses with the other agents of the region through Redis.

While Redis is unreachable or slow, look-ups find nothing within LOOKUP_TIMEOUT_S, and responses wait to be stored up to
a bound.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.policy.kinds.result_cache import ResultCache
from penstock.result_cache.cached_result import STORED, CachedResult, decode_result, encode_result
from penstock.wire.region_key import RegionKey
from penstock.wire.session import BadSignature
from regional_agent.result_cache.result_cache_metrics import ResultCacheMetrics
from regional_agent.result_cache.results_script import RESULTS_SCRIPT, results_keys
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.shared_load.shared_entries import EntryKind, Operation, SharedEntries

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
