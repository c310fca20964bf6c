"""The Redis script with which agents of a region publish their own load and read the other loads in one round trip.

A region is one hash with a field for each start of an agent; a value is an authenticated load (see `published_load`).
Each agent writes its whole state, not increments, so its next write repairs the loss of a write, a repeated write, an
eviction, a flush or a failover. The script does not interpret stored values; it checks only their sizes. Agents
determine from the loads which agents are live, and delete the fields that they reject.

    penstock:v1:{<region>}:loads          hash: <agent>~<epoch> -> load
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from hashlib import sha1
from typing import Any, NamedTuple

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import NoScriptError, RedisError

from adapters.files.watched_files import WatchedFiles
from penstock.wire.region_key import RegionKeys

MAX_AGENTS = 1024
"""Maximum number of fields of a region's hash. A larger hash is deleted, and each agent writes its load again."""

MAX_FIELD_BYTES = 512
"""Maximum size (bytes) of the name of a field; fields with longer names are deleted."""

MAX_LOAD_BYTES = 1 << 20
"""Maximum size (bytes) of the load of one agent; larger loads are deleted. 4096 endpoints need half of it."""

MAX_REPLY_BYTES = 4 << 20
"""Maximum size (bytes) of the loads that one exchange reads and decodes on the event loop."""

EXCHANGE = f"""
local key, own_field, load, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local bytes_left = {MAX_REPLY_BYTES}

local kind = redis.call('TYPE', key).ok
if kind ~= 'none' and (kind ~= 'hash' or redis.call('HLEN', key) > {MAX_AGENTS}) then
  redis.call('DEL', key)
end
for i = 4, #ARGV do
  redis.call('HDEL', key, ARGV[i])
end
redis.call('HSET', key, own_field, load)
redis.call('PEXPIRE', key, lease_ms)

local stored = redis.call('HGETALL', key)
local reply, omitted = {{0}}, 0
for i = 1, #stored, 2 do
  local field, value = stored[i], stored[i + 1]
  if field ~= own_field then
    if #field > {MAX_FIELD_BYTES} or #value > {MAX_LOAD_BYTES} then
      redis.call('HDEL', key, field)
    elseif #value > bytes_left then
      omitted = omitted + 1
    else
      bytes_left = bytes_left - #value
      reply[#reply + 1] = field
      reply[#reply + 1] = value
    end
  end
end
reply[1] = omitted
return reply
"""
"""KEYS: the region's hash. ARGV: field of this agent, its load, lifetime of the hash (ms), fields to delete.

Returns the number of loads that did not fit in the reply, followed by field and load of each other agent.
"""


def loads_key(region: str) -> str:
    """Return the Redis key of the loads of a region's agents."""
    return f"penstock:v1:{{{region}}}:loads"


class RedisAddress(NamedTuple):
    """Address, TLS and password of the region's Redis."""

    url: str
    """Redis URL, as redis-py accepts it, without TLS parameters."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the context for a new connection to a rediss URL; None uses the system's trust store."""
    password: WatchedFiles[bytes | None] | None = None
    """The password in a file; None uses the password in the URL."""


class RegionRedis(NamedTuple):
    """The Redis of one region."""

    address: RedisAddress
    keys: RegionKeys
    """Authenticate the data that the region's agents share; see `RegionKey`."""
    region: str


class _PasswordFile(CredentialProvider):
    """The credentials of a connection: a user, and the password in a file."""

    def __init__(self, username: str | None, file: WatchedFiles[bytes | None]) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and password, or only the password; raises RedisError if the file was never usable."""
        if self._file.content is None:
            raise RedisError(self._file.problem)
        password = self._file.content.decode("utf-8", "replace")
        return (self._username, password) if self._username else (password,)


class RedisScript:
    """A connection to Redis that runs one script, about a hundred times a second.

    Uses redis-py's connection, which handles URLs, TLS, authentication and the protocol, but not redis-py's client:
    packing, routing, retrying and timing a command in the client costs four times as much CPU as the rest of a run.
    Reconnects after any failure. The caller limits the time of a run.
    """

    def __init__(self, server: RedisAddress, script: str, connect_timeout_s: float) -> None:
        """Create a connection that is opened by the first `run`.

        Args:
            server: address, TLS and password of the region's Redis.
            script: Lua source.
            connect_timeout_s: timeout (s) of opening the connection.
        """
        pool = redis.asyncio.ConnectionPool.from_url(
            server.url,
            socket_timeout=None,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        options = pool.connection_kwargs
        if server.password is not None:
            options.pop("password", None)
            options["credential_provider"] = _PasswordFile(options.pop("username", None), server.password)
        self._connection: Any = pool.connection_class(**options)
        self._tls = server.tls if issubclass(pool.connection_class, redis.asyncio.SSLConnection) else None
        self._script = script.encode()
        self._digest = sha1(self._script, usedforsecurity=False).hexdigest().encode()

    async def run(self, keys: tuple[str, ...], args: tuple[str | bytes | int, ...]) -> Any:
        """Run the script and return its reply. Concurrent calls are not supported.

        Raises:
            RedisError, OSError: Redis is unreachable or returned an error.
        """
        # redis-py disconnects a connection whose command is cancelled, so the connection contains no earlier reply.
        if not self._connection.is_connected:
            if self._tls is not None:
                # redis-py reuses the first context that it creates, so the context is replaced to apply rotated files.
                self._connection.ssl_context.context = self._tls()
            await self._connection.connect()
        rest = [b"%d" % len(keys), *map(_bytes, keys), *map(_bytes, args)]
        try:
            try:
                return await self._request([b"EVALSHA", self._digest, *rest])
            except NoScriptError:
                return await self._request([b"EVAL", self._script, *rest])
        except RedisError:
            # After a failover the server may be a read-only replica, so the next run resolves the name again.
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
