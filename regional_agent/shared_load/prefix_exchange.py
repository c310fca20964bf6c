"""Exchanges with the other agents of the region which endpoints hold which prompts, through a stream in Redis.

What is lost costs a cache hit and nothing else: entries that are trimmed, flushed or missed are not sent again, and
while Redis is down every agent uses its own notes. An agent that starts reads what the others noted in the last
minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.routing.affinity import HELD_S, AffinityIndex
from penstock.wire.region_key import RegionKey, RegionKeys
from penstock.wire.session import BadSignature
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.shared_load.published_prefixes import PURPOSE, PublishedPrefixes, open_prefixes, seal_prefixes
from regional_agent.shared_load.redis_script import RedisAddress, RedisScript
from regional_agent.shared_load.shared_load_exchange import BACKOFF_BASE_S, BACKOFF_CAP_S, FAILURES, TIMEOUT_S

INTERVAL_S = 0.05
"""Time (s) between two exchanges while there is something to publish or to read."""

IDLE_INTERVAL_S = 0.25
"""The same while there is nothing."""

MAX_ENTRIES = 1024
"""Entries that the stream keeps; older ones are trimmed."""

PAGE_ENTRIES = 64
"""Entries that one exchange reads."""

MAX_ENTRY_BYTES = 64 * 1024
"""Larger entries are skipped; MAX_UNPUBLISHED keys need less than half of it."""

MAX_CLOCK_DIFFERENCE_S = 5.0
"""Entries that are published later than this (s) from now are rejected."""

EXCHANGE = f"""
local key, after, entry, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local kind = redis.call('TYPE', key).ok
if kind ~= 'none' and kind ~= 'stream' then redis.call('DEL', key) end
if entry ~= '' then
  if redis.pcall('XADD', key, 'MAXLEN', {MAX_ENTRIES}, '*', 'e', entry).err then
    redis.call('DEL', key)
    redis.call('XADD', key, '*', 'e', entry)
  end
  redis.call('PEXPIRE', key, lease_ms)
end
local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
local reply = {{newest[1] and newest[1][1] or '0-0'}}
local page = redis.pcall('XRANGE', key, '(' .. after, '+', 'COUNT', {PAGE_ENTRIES})
if page.err then page = {{}} end
for _, found in ipairs(page) do
  local value = found[2][2]
  reply[#reply + 1] = found[1]
  reply[#reply + 1] = #value <= {MAX_ENTRY_BYTES} and value or ''
end
return reply
"""
"""KEYS: the region's stream. ARGV: id after which to read, entry to add or an empty string, the stream's lifetime (ms).

Returns the id of the newest entry, followed by id and value of each entry. A stream to which no entry can be added,
because a stranger added one with the greatest id, is deleted; readers go on after its newest entry.
"""

log = structlog.get_logger()


def prefixes_key(region: str) -> str:
    """The key of the stream of a region's agents."""
    return f"penstock:v1:{{{region}}}:prefixes"


class PrefixExchange:
    """Publishes the notes of an AffinityIndex to the other agents of the region, and adds theirs to it."""

    def __init__(
        self,
        index: AffinityIndex,
        is_known: Callable[[str], bool],
        *,
        redis: RedisAddress,
        region_keys: RegionKeys,
        region: str,
        agent: str,
        epoch: int,
        rng: Random,
    ) -> None:
        """Create an exchange that is not connected before `start`.

        Args:
            index: where this agent sent requests.
            is_known: whether the directory of agents knows an agent of this region; entries of others do not count.
            redis: the Redis of the region.
            region_keys: authenticate what the region's agents publish; see `RegionKey`.
            region: name of the region.
            agent: name of this agent.
            epoch: of this start of the agent.
            rng: jitter of reconnects.
        """
        self.rejected = 0
        """Entries that no agent of the region has published."""
        self._index = index
        self._is_known = is_known
        self._redis = RedisScript(redis, EXCHANGE, TIMEOUT_S)
        self._region_key = RegionKey(region_keys, region, PURPOSE)
        self._key = prefixes_key(region)
        self._agent = agent
        self._epoch = epoch
        self._rng = rng
        self._read_until = "0-0"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to exchange."""
        self._index.publishes = True
        self._task = keep_running("shared prefixes", self._keep_exchanging)

    async def stop(self) -> None:
        """End the exchange; what was published stays for the other agents."""
        if self._task is not None:
            await cancel([self._task])
        self._index.publishes = False
        await self._redis.aclose()

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            try:
                exchanged = await self._exchange()
            except FAILURES:
                await asyncio.sleep(
                    max(
                        INTERVAL_S,
                        full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng),
                    )
                )
                failures += 1
                continue
            failures = 0
            await asyncio.sleep(INTERVAL_S if exchanged else IDLE_INTERVAL_S)

    async def _exchange(self) -> bool:
        """One round trip; whether anything was published or read."""
        notes = self._index.take_unpublished()
        entry = b""
        if notes:
            entry = seal_prefixes(PublishedPrefixes(self._agent, self._epoch, time.time(), notes), self._region_key)
        async with asyncio.timeout(2 * TIMEOUT_S):
            reply = await self._redis.run((self._key,), (self._read_until, entry, int(HELD_S * 1000)))
        if not isinstance(reply, list) or len(reply) % 2 != 1:
            raise RedisError("the reply is not that of the script")
        newest, *entries = reply
        self._receive(entries[1::2])
        self._read_until = _later_read(entries[-2] if entries else newest)
        return bool(notes or entries)

    def _receive(self, sealed: Sequence[bytes]) -> None:
        unix_s, now = time.time(), time.monotonic()
        for entry in sealed:
            try:
                published = open_prefixes(entry, self._region_key)
            except BadSignature as error:
                if not self.rejected:
                    log.warning("entry in Redis rejected", key=self._key, reason=str(error))
                self.rejected += 1
                continue
            age_s = unix_s - published.sent_at
            own = published.agent == self._agent and published.epoch == self._epoch
            if own or not -MAX_CLOCK_DIFFERENCE_S <= age_s < HELD_S or not self._is_known(published.agent):
                continue
            for endpoint, keys in published.keys.items():
                self._index.receive(endpoint, keys, now - max(0.0, age_s))


def _later_read(last: bytes) -> str:
    """The id after which to read next. An id that Redis did not make starts from the beginning."""
    with suppress(UnicodeDecodeError, ValueError):
        milliseconds, _, number = last.decode().partition("-")
        return f"{int(milliseconds)}-{int(number)}"
    return "0-0"
