"""The Redis script that the agents of a region run to publish their own load and read the others' in one round trip.

Each agent writes its whole state under a lease, not increments, so a write that is lost, repeated or followed by a
flush or a restart does no harm, and the counts of a killed agent disappear with its lease. A higher epoch replaces a
lower one of the same name, so a restarted agent is not counted twice. If the agent with the lower epoch still runs
because it finishes requests, the script returns 0 and that agent continues under another name. A lease that ends later
than any agent can set was written before Redis's clock was set back, or by another Redis before a failover, and is
removed: running agents write theirs again.

All keys of a region share a hash tag and thus lie on one node of a cluster:
    penstock:v1:{<region>}:agents         sorted set: agent name -> end of its lease (ms, Redis's clock)
    penstock:v1:{<region>}:agent:<name>   hash: epoch, load (JSON, see `shared_load.PublishedLoad`)
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

MAX_AGENTS = 256
"""Agents of one region whose load is read."""

MAX_LOAD_BYTES = 1 << 20
"""Maximum size of the load that one agent publishes, decoded on the event loop. 4096 endpoints need half of it."""

EXCHANGE = """
local index, own_key = KEYS[1], KEYS[2]
local name, epoch, lease_ms, load, prefix, max_agents, max_bytes = unpack(ARGV)
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local stored_epoch = tonumber(redis.call('HGET', own_key, 'epoch') or '0')
local current = stored_epoch <= tonumber(epoch)
lease_ms = tonumber(lease_ms)

if current and lease_ms > 0 then
  redis.call('HSET', own_key, 'epoch', epoch, 'load', load)
  redis.call('PEXPIRE', own_key, lease_ms)
  redis.call('ZADD', index, now_ms + lease_ms, name)
  redis.call('PEXPIRE', index, lease_ms)
elseif current then
  redis.call('DEL', own_key)
  redis.call('ZREM', index, name)
end

redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. now_ms)
if lease_ms > 0 then
  redis.call('ZREMRANGEBYSCORE', index, '(' .. now_ms + 2 * lease_ms, '+inf')
end
local reply = {current and 1 or 0}
for _, other in ipairs(redis.call('ZRANGE', index, 0, max_agents - 1)) do
  if other ~= name or not current then
    local published = redis.call('HGET', prefix .. other, 'load')
    if published then
      reply[#reply + 1] = #published <= tonumber(max_bytes) and published or ''
    end
  end
end
return reply
"""
"""KEYS: index, key of this agent. ARGV: name, epoch, lease in ms (0 removes the agent), its load, prefix of the agents'
keys, maximum number of agents, maximum bytes per agent.

Returns 1 if `epoch` is the newest of `name`, else 0, followed by the load of each other agent, empty where it is too
large.
"""


def index_key(region: str) -> str:
    """The key of the set of a region's agents."""
    return f"penstock:v1:{{{region}}}:agents"


def agent_prefix(region: str) -> str:
    """The prefix of the keys of a region's agents."""
    return f"penstock:v1:{{{region}}}:agent:"


class RedisScript:
    """A connection to Redis that runs one script, about a hundred times a second.

    Uses redis-py's connection, which handles URLs, TLS, authentication and the protocol, without redis-py's client:
    packing, routing, retrying and timing a command there costs four times as much CPU as everything else.
    Reconnects after any failure. The caller limits the time of a run.
    """

    def __init__(self, url: str, script: str, connect_timeout_s: float) -> None:
        """Create a connection that is opened by the first `run`.

        Args:
            url: Redis URL, as redis-py accepts it.
            script: Lua source.
            connect_timeout_s: timeout (s) of opening the connection.
        """
        pool = redis.asyncio.ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._script = script.encode()
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest().encode()

    async def run(self, keys: tuple[str, ...], args: tuple[str | bytes | int, ...]) -> Any:
        """Run the script and return its reply. Not to be called again before it has returned.

        Raises:
            RedisError, OSError: Redis is unreachable or returned an error.
        """
        # A connection whose command was cancelled has disconnected itself, so no earlier reply is left in it.
        if not self._connection.is_connected:
            await self._connection.connect()
        rest = [b"%d" % len(keys), *map(_bytes, keys), *map(_bytes, args)]
        try:
            try:
                return await self._request([b"EVALSHA", self._digest, *rest])
            except NoScriptError:
                return await self._request([b"EVAL", self._script, *rest])
        except RedisError:
            # After a failover the server may be a read-only replica: the next run resolves the name again.
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Disconnect."""
        await self._connection.disconnect(nowait=True)

    async def _request(self, words: list[bytes]) -> Any:
        command = b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))
        await self._connection.send_packed_command(command, check_health=False)
        return await self._connection.read_response()


def _bytes(word: str | bytes | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
