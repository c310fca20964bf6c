"""Where engines and peer agents listen, and the connections to them that are kept for the next request."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from regional_agent.http.write_batcher import Outgoing
from regional_agent.upstream.host_addresses import HostAddresses, Resolve
from regional_agent.upstream.host_names import is_host
from regional_agent.upstream.tcp_keepalive import VANISHED_S, notice_vanishing
from regional_agent.upstream.upstream_connection import UpstreamConnection
from regional_agent.upstream.upstream_sink import ConnectFailed

CONNECT_TIMEOUT_S: Final = 1.0
"""A listener in reach answers a SYN within a round trip; longest terrestrial ones are below 0.4 s."""

TLS_TIMEOUT_S: Final = 3.0
"""A TLS handshake takes two more round trips and some arithmetic."""

MAX_IDLE_PER_ADDRESS: Final = 64
"""Connections kept for reuse to one address."""

CLOSING_S: Final = 0.01
"""What it takes (s) until connections that were closed are gone."""

_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    tls: bool = False
    """Whether it speaks TLS."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in `http://host:port[/...]`, or https.

        Raises:
            ValueError: it is not such a URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not is_host(parts.hostname or "") or not parts.port:
            raise ValueError(f"{url!r} is not of the form http://host:port (or https)")
        return cls(str(parts.hostname), parts.port, parts.scheme == "https")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UpstreamPool:
    """Idle connections by address. `take` is synchronous; only a new connection needs `connect`."""

    def __init__(
        self, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context, resolve: Resolve | None = None
    ) -> None:
        """Starts empty.

        Args:
            tls: gives the context for a new connection to an address that speaks TLS.
            resolve: None is the system's resolver.
        """
        self.outgoing = Outgoing()
        self._hosts = HostAddresses(resolve)
        self._idle: dict[Address, list[UpstreamConnection]] = {}
        self._tls = tls

    def take(self, address: Address) -> UpstreamConnection | None:
        """The most recently used idle connection to `address`, if any still stands."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.usable():
                return connection
        return None

    async def connect(self, address: Address, timeout_s: float | None = None) -> UpstreamConnection:
        """A new connection; raises ConnectFailed."""
        allowed_s = timeout_s if timeout_s is not None else TLS_TIMEOUT_S if address.tls else CONNECT_TIMEOUT_S
        try:
            async with asyncio.timeout(allowed_s):
                return await self._open_or_make_room(address)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConnectFailed(f"cannot connect to {address}: {error or 'timed out'}") from error

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is whole, up to a bound."""
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = []
        if len(idle) < MAX_IDLE_PER_ADDRESS:
            idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that closed while idle, and the address with its last one."""
        idle = self._idle.get(connection.address)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    async def _open_or_make_room(self, address: Address) -> UpstreamConnection:
        """Where this process has no descriptor left, idle connections are worth less than the one that is needed."""
        try:
            return await self._open(address)
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS or not self._idle:
                raise
        self.close()
        await asyncio.sleep(CLOSING_S)
        return await self._open(address)

    async def _open(self, address: Address) -> UpstreamConnection:
        loop, tls = asyncio.get_running_loop(), self._tls() if address.tls else None
        failed: OSError | None = None
        for host in await self._hosts.of(address.host):
            try:
                transport, connection = await loop.create_connection(
                    lambda: cast(asyncio.Protocol, UpstreamConnection(self, address)),
                    host,
                    address.port,
                    ssl=tls,
                    server_hostname=address.host if tls is not None else None,
                )
            except OSError as error:
                failed = error
            else:
                notice_vanishing(transport.get_extra_info("socket"), VANISHED_S)
                return cast(UpstreamConnection, connection)
        raise failed or OSError("it has no address")

    def close(self) -> None:
        """Close every idle connection."""
        for connection in [one for idle in self._idle.values() for one in idle]:
            connection.abort()
        self._idle.clear()
