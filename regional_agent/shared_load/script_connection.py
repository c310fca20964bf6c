"""One connection to Redis that runs one script, a hundred times a second.

It is redis-py's connection, which knows URLs, TLS, passwords and the protocol. Its client is left out: to pack, route,
retry and time a command takes it four times as long as all the rest.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError


class ScriptConnection:
    """Connects by itself, and anew after anything went wrong. Whoever runs the script bounds the time."""

    def __init__(self, url: str, script: str, connect_timeout_s: float) -> None:
        """Nothing is connected yet.

        Args:
            url: as redis-py takes it.
            connect_timeout_s: how long (s) to wait for a connection.
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
        """The script's answer. One at a time.

        Raises:
            RedisError, OSError: Redis is not there, or refuses.
        """
        # A connection that was given up on amid a command has disconnected itself: no answer is left over in it.
        if not self._connection.is_connected:
            await self._connection.connect()
        rest = [b"%d" % len(keys), *map(_bytes, keys), *map(_bytes, args)]
        try:
            return await self._ask([b"EVALSHA", self._digest, *rest])
        except NoScriptError:
            return await self._ask([b"EVAL", self._script, *rest])

    async def aclose(self) -> None:
        """Disconnect."""
        await self._connection.disconnect(nowait=True)

    async def _ask(self, words: list[bytes]) -> Any:
        command = b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))
        await self._connection.send_packed_command(command, check_health=False)
        return await self._connection.read_response()


def _bytes(word: str | bytes | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
