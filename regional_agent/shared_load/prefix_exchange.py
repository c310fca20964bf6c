"""Exchanges records of the prefixes that endpoints hold between the agents of a region, through a stream in Redis.

A lost record costs only a cache hit, so entries that are trimmed, flushed or missed are not sent again. While Redis is
unavailable, every agent uses its own records. An agent that starts reads the records of the other agents from the last
minutes. An entry is an authentication tag, then the keys of prompts sent to endpoints in MessagePack.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Annotated

import msgspec
import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.routing.affinity import HELD_S, MAX_UNPUBLISHED, AffinityIndex
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import RegionKey
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.shared_load.redis_script import RedisScript, RegionRedis
from regional_agent.shared_load.shared_load_exchange import BACKOFF_BASE_S, BACKOFF_CAP_S, FAILURES, TIMEOUT_S

PURPOSE = "prefixes"
"""Purpose for which the region's key authenticates the entries; see `RegionKey`."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Keys = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**62)]], msgspec.Meta(max_length=MAX_UNPUBLISHED)]


class PublishedPrefixes(msgspec.Struct, frozen=True, array_like=True):
    """Keys of the prefixes and sessions of requests that an agent sent to endpoints."""

    agent: _Name
    epoch: int
    """Number of the start of the agent."""
    sent_at: float
    """Unix time (s) by the agent's clock."""
    keys: dict[_Name, _Keys]
    """Keys by endpoint; see `affinity.prefix_keys`. Keys are checksums within a tenant and model, without text."""


_decoder = msgspec.msgpack.Decoder(PublishedPrefixes)


def seal_prefixes(published: PublishedPrefixes, key: RegionKey) -> bytes:
    """Encode keys and authenticate them."""
    return key.seal(msgspec.msgpack.encode(published))


def open_prefixes(sealed: bytes, key: RegionKey) -> PublishedPrefixes:
    """Decode the keys that another agent published.

    Raises:
        BadSignature: the entry was not published by an agent of the region, or is invalid.
    """
    try:
        return _decoder.decode(key.open(sealed))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the entry cannot be decoded: {error}") from None


INTERVAL_S = 0.05
"""Time (s) until the next exchange, after an exchange that published or read entries."""

IDLE_INTERVAL_S = 0.25
"""Time (s) until the next exchange, after an exchange that neither published nor read entries."""

MAX_ENTRIES = 1024
"""Maximum number of entries in the stream; older entries are trimmed."""

PAGE_ENTRIES = 64
"""Maximum number of entries that one exchange reads."""

MAX_ENTRY_BYTES = 64 * 1024
"""Maximum size (bytes) of an entry; larger entries are rejected. MAX_UNPUBLISHED keys need up to 36 KiB."""

MAX_CLOCK_DIFFERENCE_S = 5.0
"""Maximum time (s) by which the publication time of an entry may lie in the future; later entries are ignored."""

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

Returns the id of the newest entry, followed by id and value of each entry; the value of a too large entry is empty. A
stream to which no entry can be added, because an entry with the greatest possible id was added from outside, is
deleted; readers continue after the newest entry of the new stream.
"""

log = structlog.get_logger()


def prefixes_key(region: str) -> str:
    """Return the Redis key of the stream of a region's agents."""
    return f"penstock:v1:{{{region}}}:prefixes"


class PrefixExchange:
    """Publishes the records of an AffinityIndex to the region's other agents, and adds their records to the index."""

    def __init__(
        self,
        index: AffinityIndex,
        is_known: Callable[[str], bool],
        redis: RegionRedis,
        agent: AgentInstance,
        rng: Random,
    ) -> None:
        """Create an exchange that is not connected before `start`.

        Args:
            index: records of the endpoints to which this agent sent requests.
            is_known: returns whether the directory contains an agent of this region; other entries are ignored.
            redis: the Redis of the region.
            agent: this start of the agent.
            rng: jitter of reconnects.
        """
        self.rejected = 0
        """Number of entries that were rejected: not published by an agent of the region, or invalid."""
        self._index = index
        self._is_known = is_known
        self._redis = RedisScript(redis.address, EXCHANGE, TIMEOUT_S)
        self._region_key = RegionKey(redis.keys, redis.region, PURPOSE)
        self._key = prefixes_key(redis.region)
        self._agent = agent
        self._rng = rng
        self._read_until = "0-0"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start exchanging records."""
        self._index.publishes = True
        self._task = keep_running("shared prefixes", self._keep_exchanging)

    async def stop(self) -> None:
        """Stop exchanging. Published entries remain available to the other agents."""
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
        """Exchange records in one round trip; returns whether an entry was published or read."""
        notes = self._index.take_unpublished()
        entry = b""
        if notes:
            entry = seal_prefixes(
                PublishedPrefixes(self._agent.name, self._agent.epoch, time.time(), notes), self._region_key
            )
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
            own = published.agent == self._agent.name and published.epoch == self._agent.epoch
            if own or not -MAX_CLOCK_DIFFERENCE_S <= age_s < HELD_S or not self._is_known(published.agent):
                continue
            for endpoint, keys in published.keys.items():
                self._index.receive(endpoint, keys, now - max(0.0, age_s))


def _later_read(last: bytes) -> str:
    """Return the id after which to read next. After an id in an invalid format, reading restarts at the beginning."""
    with suppress(UnicodeDecodeError, ValueError):
        milliseconds, _, number = last.decode().partition("-")
        return f"{int(milliseconds)}-{int(number)}"
    return "0-0"
