"""Claims in Redis, by which one agent of a region wakes an endpoint and the others wait for it, and one agent at a time
lets endpoints of a model sleep."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from redis.exceptions import RedisError

from regional_agent.shared_load.redis_script import RedisScript, RegionRedis

TIMEOUT_S: Final = 1.0
"""Maximum time (s) of a claim."""

CLAIM: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""KEYS: the claim. ARGV: name of the agent, lifetime (ms). Returns 1 if no other agent holds the claim."""

EVERY_ENDPOINT: Final = "*"
"""Stands for all endpoints of a model; no endpoint has this name."""

log = structlog.get_logger()


class WakeClaims:
    """The claims of one agent."""

    def __init__(self, agent: str, redis: RegionRedis | None) -> None:
        """`redis` is None for the only agent of a region, which needs no claims."""
        self._agent = agent
        self._region = "" if redis is None else redis.region
        self._script = None if redis is None else RedisScript(redis.address, CLAIM, TIMEOUT_S)
        self._lock = asyncio.Lock()

    async def claim(self, endpoint: str, model: str, for_s: float, *, without_redis: bool = True) -> bool:
        """Whether this agent may wake an endpoint, or let one sleep; then no other agent may for `for_s` seconds.

        Args:
            endpoint: its name; EVERY_ENDPOINT for all of the model.
            without_redis: the result if Redis does not answer. Every agent may wake: engines accept a repeated request,
                and a webhook has to.
        """
        if self._script is None:
            return True
        key = f"penstock:v1:{{{self._region}}}:wake:{endpoint}:{model}"
        try:
            async with self._lock, asyncio.timeout(TIMEOUT_S):
                return bool(await self._script.run((key,), (self._agent, round(for_s * 1000))))
        except (RedisError, OSError) as error:
            log.warning("no claim in Redis", endpoint=endpoint, model=model, proceeds=without_redis, error=str(error))
            return without_redis

    async def close(self) -> None:
        """Disconnect."""
        if self._script is not None:
            await self._script.aclose()
