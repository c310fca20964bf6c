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
  local agent = holder and holder:gsub('/waits$', '')
  if agent and agent ~= ARGV[1] then
    if holder == agent then return i end
    if i == 1 then return -1 end
  end
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1] .. ARGV[3], 'PX', ARGV[2])
end
return 0
"""
"""KEYS: the claim, and others that make it needless. ARGV: name of the agent, lifetime (ms; 0 gives the claim back),
WAITS if the agent waits to try again, else empty. Returns the first claim of another agent that does not wait, from 1;
-1 if that of the first key waits; 0 if there is none, and the first claim is now held."""

WAITS: Final = "/waits"
"""Ends the value of a claim whose agent has failed, and tries again later. No name of an agent has a slash."""

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

    async def claim(
        self, endpoint: str, model: str, for_s: float, *, without_redis: bool = True, waits: bool = False
    ) -> bool:
        """Whether this agent may wake an endpoint, or let one sleep; then no other agent may for `for_s` seconds.

        Args:
            endpoint: its name; EVERY_ENDPOINT for all of the model.
            without_redis: the result if Redis does not answer. Every agent may wake: engines accept a repeated request,
                and a webhook has to.
            waits: this agent has failed, and tries again later.
        """
        found = await self._run((endpoint,), model, for_s, WAITS if waits else "")
        return found == 0 if found is not None else without_redis

    async def claim_one(self, endpoints: Sequence[str], model: str, for_s: float) -> int:
        """Claim the first of these endpoints to wake it, unless another agent is about to wake any of them.

        Returns:
            0: it is claimed. -1: another agent has failed to wake it, and tries again later. Else the number, from 1,
            of the endpoint that another agent wakes.
        """
        return await self._run(endpoints, model, for_s) or 0

    async def _run(self, endpoints: Sequence[str], model: str, for_s: float, ending: str = "") -> int | None:
        """Run the script; None if Redis does not answer."""
        if self._script is None:
            return 0
        claims = tuple(f"penstock:v1:{{{self._region}}}:wake:{endpoint}:{model}" for endpoint in endpoints)
        try:
            async with self._lock, asyncio.timeout(TIMEOUT_S):
                return int(str(await self._script.run(claims, (self._agent, round(for_s * 1000), ending))))
        except (RedisError, OSError, ValueError) as error:
            log.warning("no claim in Redis", endpoint=endpoints[0], model=model, error=str(error))
            return None

    async def close(self) -> None:
        """Disconnect."""
        if self._script is not None:
            await self._script.aclose()
