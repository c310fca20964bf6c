"""Shares kept responses with the other agents of the region through Redis.

One exchange runs at a time. While Redis is unreachable or slow, look-ups find nothing within LOOKUP_TIMEOUT_S, and
responses wait to be stored up to a bound.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from random import Random
from typing import Final

import msgspec
import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.policy.kinds.result_cache import ResultCache
from penstock.result_cache.cached_result import CachedResult, decode_result, encode_result
from penstock.wire.region_key import RegionKey
from penstock.wire.session import BadSignature
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.result_cache.result_cache_metrics import ResultCacheMetrics
from regional_agent.result_cache.results_script import RESULTS_SCRIPT, results_keys
from regional_agent.shared_load.redis_script import RedisScript, RegionRedis

PURPOSE: Final = "kept-results"
"""Purpose for which the region's key authenticates the entries."""

LOOKUP_TIMEOUT_S: Final = 0.05
"""Maximum time (s) that a look-up delays its request."""

REST_S: Final = 1.0
"""Time (s) without look-ups after one that took too long."""

TIMEOUT_S: Final = 0.25
"""Timeout (s) of connecting to Redis, and of one exchange."""

BATCH: Final = 16
"""Maximum number of look-ups, and of stores, in one exchange."""

MAX_WAITING: Final = 1024
"""Maximum number of waiting look-ups; further ones find nothing."""

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Maximum size (bytes) of the responses that wait to be stored; further ones are dropped."""

BACKOFF_BASE_S: Final = 0.1
BACKOFF_CAP_S: Final = 2.0

_FAILURES: Final = (RedisError, OSError, TimeoutError)

log = structlog.get_logger()


class _Operation:
    """The store or the look-up of one response."""

    __slots__ = ("cache", "found", "key", "value")

    def __init__(self, cache: ResultCache, key: bytes, value: bytes) -> None:
        self.cache = cache
        self.key = key
        self.value = value
        """The sealed response to store; empty for a look-up."""
        self.found: asyncio.Future[CachedResult | None] | None = None


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
        self._redis = RedisScript(redis.address, RESULTS_SCRIPT, TIMEOUT_S)
        self._key = RegionKey(redis.keys, redis.region, PURPOSE)
        self._region = redis.region
        self._metrics = metrics
        self._rng = rng
        self._lookup_timeout_s = lookup_timeout_s
        self._stores: deque[_Operation] = deque()
        self._waiting_bytes = 0
        self._finds: deque[_Operation] = deque()
        self._wanted = asyncio.Event()
        self._rests_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.up = True
        """Whether the last exchange succeeded."""
        self.rejected = 0
        """Number of rejected entries: malformed, or not stored by an agent of the region."""

    def start(self) -> None:
        """Start the exchange of responses."""
        self._tasks = [keep_running("kept responses", self._keep_exchanging)]

    async def stop(self) -> None:
        """Stop, and disconnect; responses that wait to be stored are lost."""
        await cancel(self._tasks)
        self._tasks = []
        self._give_up_finding()
        await self._redis.aclose()

    @property
    def is_asked(self) -> bool:
        """Whether look-ups are sent to Redis: it is reachable, and was fast enough."""
        return self.up and time.monotonic() >= self._rests_until and len(self._finds) < MAX_WAITING

    async def find(self, cache: ResultCache, key: bytes) -> CachedResult | None:
        """Return a stored response; None if there is none, or Redis does not return it in time. Does not raise."""
        operation = _Operation(cache, key, b"")
        operation.found = asyncio.get_running_loop().create_future()
        self._finds.append(operation)
        self._wanted.set()
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                return await operation.found
        except TimeoutError:
            self._metrics.redis_failures.inc()
            self._rests_until = time.monotonic() + REST_S
            return None

    def store(self, cache: ResultCache, result: CachedResult) -> None:
        """Queue a response to be stored; dropped if too many wait."""
        sealed = self._key.seal(encode_result(result))
        if self._waiting_bytes + len(sealed) > MAX_WAITING_BYTES:
            self._metrics.redis_failures.inc()
            return
        self._waiting_bytes += len(sealed)
        self._stores.append(_Operation(cache, result.key, sealed))
        self._wanted.set()

    def status(self) -> dict[str, object]:
        """The state for the status page."""
        return {"up": self.up, "rejected": self.rejected}

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                await self._exchange()
            except _FAILURES as error:
                self._metrics.redis_failures.inc()
                if self.up:
                    reason = str(error) or type(error).__name__
                    log.warning("kept responses are not found while Redis is unreachable", reason=reason)
                self.up = False
                self._give_up_finding()
                await asyncio.sleep(full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng))
                failures += 1
                self._wanted.set()
            else:
                failures = 0
                self.up = True

    async def _exchange(self) -> None:
        """Execute up to BATCH waiting look-ups, and as many stores. The stores of a failed exchange are lost."""
        self._wanted.clear()
        finds = [self._finds.popleft() for _ in range(min(BATCH, len(self._finds)))]
        stores = [self._stores.popleft() for _ in range(min(BATCH, len(self._stores)))]
        self._waiting_bytes -= sum(len(store.value) for store in stores)
        keys: list[str] = []
        words: list[str | bytes | int] = []
        for operation in (*finds, *stores):
            keys += results_keys(self._region, operation.cache.name)
            cache = operation.cache
            words += (operation.key, operation.value, cache.max_age_s * 1000, cache.max_bytes)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._redis.run(tuple(keys), tuple(words))
            if not isinstance(reply, list) or len(reply) != len(finds):
                raise RedisError("the reply is not that of the script")
        except BaseException:
            for find in finds:
                _resolve(find, None)
            raise
        for find, sealed in zip(finds, reply, strict=True):
            _resolve(find, self._opened(find, sealed))
        if self._finds or self._stores:
            self._wanted.set()

    def _opened(self, operation: _Operation, sealed: object) -> CachedResult | None:
        """Return the response in a stored value; None if the value is empty, malformed or not authentic."""
        if not isinstance(sealed, bytes) or not sealed:
            return None
        try:
            return open_result(sealed, operation.key, self._key)
        except BadSignature as error:
            self.rejected += 1
            log.warning("entry in Redis rejected", document=operation.cache.name, reason=str(error))
            return None

    def _give_up_finding(self) -> None:
        while self._finds:
            _resolve(self._finds.popleft(), None)


def open_result(sealed: bytes, key: bytes, region_key: RegionKey) -> CachedResult:
    """Read the response that an agent of the region stored under `key`.

    Raises:
        BadSignature: no agent of the region stored the response under `key`, or it is malformed.
    """
    try:
        result = decode_result(region_key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None
    if result.key != key:
        raise BadSignature("the entry is stored under another key than its own")
    return result


def _resolve(operation: _Operation, result: CachedResult | None) -> None:
    # The future is already cancelled if the look-up took too long, or the client has disconnected.
    if operation.found is not None and not operation.found.done():
        operation.found.set_result(result)
