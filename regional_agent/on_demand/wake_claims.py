"""Claims in Redis, by which one agent of a region wakes an endpoint and the others wait for it, and one agent at a time
lets endpoints of a model sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog
from redis.exceptions import RedisError

from regional_agent.shared_load.redis_script import RedisScript, RegionRedis

TIMEOUT_S: Final = 1.0
"""Maximum time (s) of a claim."""

CLAIM: Final = """
for i, key in ipairs(KEYS) do
  local holder = redis.call('GET', key)
  if holder and holder ~= ARGV[1] then return i end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
"""
"""KEYS: the claim, and others that make it needless. ARGV: name of the agent, lifetime (ms). Returns the first claim
that another agent holds, from 1; 0 if none does, and the first one is now held."""

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

    @property
    def are_shared(self) -> bool:
        """Whether the region may have other agents."""
        return self._script is not None

    async def claim(self, endpoint: str, model: str, for_s: float, *, without_redis: bool = True) -> bool:
        """Whether this agent may wake an endpoint, or let one sleep; then no other agent may for `for_s` seconds.

        Args:
            endpoint: its name; EVERY_ENDPOINT for all of the model.
            without_redis: the result if Redis does not answer. Every agent may wake: engines accept a repeated request,
                and a webhook has to.
        """
        return await self.claimed_elsewhere((endpoint,), model, for_s, without_redis=without_redis) is None

    async def claimed_elsewhere(
        self, endpoints: Sequence[str], model: str, for_s: float, *, without_redis: bool = True
    ) -> str | None:
        """Claim the first of these endpoints, unless another agent holds the claim of any; return that endpoint."""
        if self._script is None:
            return None
        claims = tuple(f"penstock:v1:{{{self._region}}}:wake:{endpoint}:{model}" for endpoint in endpoints)
        try:
            async with self._lock, asyncio.timeout(TIMEOUT_S):
                found = int(str(await self._script.run(claims, (self._agent, round(for_s * 1000)))))
        except (RedisError, OSError, ValueError) as error:
            name = endpoints[0]
            log.warning("no claim in Redis", endpoint=name, model=model, proceeds=without_redis, error=str(error))
            return None if without_redis else name
        return endpoints[found - 1] if found else None

    async def close(self) -> None:
        """Disconnect."""
        if self._script is not None:
            await self._script.aclose()
