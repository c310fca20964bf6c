"""Idle connections to engines and peer agents, kept for reuse, and the opening of new connections."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

from penstock.wire.identity import BadIdentity
from regional_agent.http.write_batcher import WriteBatcher
from regional_agent.tcp_keepalive import UPSTREAM_TIMEOUT_S, set_tcp_timeout
from regional_agent.upstream.address import Address, host_and_port
from regional_agent.upstream.host_addresses import HostAddresses, Resolve
from regional_agent.upstream.upstream_connection import ConnectionOwner, UpstreamConnection
from regional_agent.upstream.upstream_sink import ConnectFailed

CONNECT_TIMEOUT_S: Final = 1.0
"""Default time limit (s) of connecting without TLS. A reachable server acknowledges a SYN within a round trip; the
longest terrestrial round trips take less than 0.4 s."""

TLS_TIMEOUT_S: Final = 3.0
"""Default time limit (s) of connecting with TLS, whose handshake takes two more round trips and some computation."""

STALL_S: Final = 0.1
"""Delay (s) of the end of a time limit from which the process stalled."""

MAX_IDLE_PER_ADDRESS: Final = 64
"""Maximum number of idle connections to one address."""

CLOSE_DELAY_S: Final = 0.01
"""Time (s) until the descriptors of closed connections are free."""

Verify = Callable[[Address, bytes], None]
"""Raises BadIdentity unless the server at an address may have the certificate (DER) that it sent."""


class ServerTrust(NamedTuple):
    """The TLS settings of connections to one address, if they differ from the settings of the pool."""

    tls: Callable[[], ssl.SSLContext] | None
    """Returns the context for a new connection; None for the context of the pool."""
    server_name: str
    """Name that the server's certificate must contain; empty for the host of the address."""


_POOL_TRUST: Final = ServerTrust(None, "")

_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


DEFAULT_MAX_MOVED_S: Final = 30.0
"""Default of the maximum time (s) for which connections are reused after DNS ceased to list their address."""

LOOK_UP_SHARE: Final = 1 / 6
ABSENT_SHARE: Final = 2 / 3
"""Parts (0-1) of that time: between two look-ups, and after which an address that was not returned counts as moved. A
name server may return some of many addresses in turn. The rest is for slow look-ups."""

MAX_HOST_LINES: Final = 4096
"""Maximum number of addresses whose Host header is cached; a full cache is cleared."""


class PoolCounts:
    """Counts of a pool's connections since its start."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        """Those of `opened` that have closed."""
        self.failed = 0
        """Connections that could not be opened."""
        self.reused = 0
        """Requests for which an idle connection was taken."""
        self.connecting = 0
        """Requests that wait for a connection that is being opened."""


class UpstreamPool(ConnectionOwner):
    """Idle connections by address. `take` is synchronous; only a new connection needs `connect`."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        resolve: Resolve | None = None,
        verify: Verify | None = None,
        max_moved_s: float = DEFAULT_MAX_MOVED_S,
    ) -> None:
        """Create an empty pool.

        Args:
            tls: returns the context for a new connection to an address that uses TLS.
            resolve: None uses the system's resolver.
            verify: verifies each server that uses TLS, in addition to what the context verifies.
            max_moved_s: maximum time (s) for which connections are reused after DNS ceased to list their address.
        """
        self.batcher = WriteBatcher()
        self.counts = PoolCounts()
        self._hosts = HostAddresses(resolve)
        self._idle: dict[Address, list[UpstreamConnection]] = {}
        self._tls = tls
        self._verify = verify
        self._trust: Mapping[Address, ServerTrust] = {}
        self._host_lines: dict[Address, bytes] = {}
        self.serial: set[Address] = set()
        """Addresses whose servers may serve one connection at a time, and the next only when that one closes. What the
        agent fetches there for itself closes its connection."""
        self._awaited: set[Address] = set()
        """Those of them at which a probe waits, so that no connection is kept."""
        self._look_up_every_s = max_moved_s * LOOK_UP_SHARE
        self._max_absent_s = max_moved_s * ABSENT_SHARE
        self._look_up_at: dict[Address, float] = {}
        """When to look up the host of an address again (s), for addresses with a host name and open connections."""
        self._look_ups: set[asyncio.Task[None]] = set()

    def use_trust(self, trust: Mapping[Address, ServerTrust]) -> None:
        """Use separate TLS settings for these addresses.

        Connections that were opened with other settings are closed: idle connections immediately, all others after
        their current request.
        """
        before, self._trust = self._trust, trust
        self._host_lines.clear()
        for address in [address for address in self._idle if trust.get(address) != before.get(address)]:
            for connection in self._idle.pop(address):
                connection.abort()

    def host_line(self, address: Address) -> bytes:
        """Return the Host header of requests to `address`: its host, or the name that the certificate must contain."""
        return self._host_lines.get(address) or self._add_host_line(address)

    def _add_host_line(self, address: Address) -> bytes:
        if len(self._host_lines) >= MAX_HOST_LINES:
            self._host_lines.clear()
        trust = self._trust.get(address)
        name = trust.server_name if trust is not None and address.tls else ""
        named = address._replace(host=name or address.server_name or address.host)
        line = self._host_lines[address] = b"host: %b\r\n" % str(named).encode()
        return line

    def take(self, address: Address) -> UpstreamConnection | None:
        """Return the most recently used idle connection to `address`, or None."""
        if address in self._look_up_at:
            self._keep_looking_up(address)
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                self.counts.reused += 1
                return connection
        return None

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return sum([len(idle) for idle in self._idle.values()])

    async def connect(self, address: Address, timeout_s: float | None = None) -> UpstreamConnection:
        """Open a new connection; raises ConnectFailed.

        A time limit that ends late, because this process stalled, says nothing about the server: it is set once more.
        """
        allowed_s = timeout_s if timeout_s is not None else TLS_TIMEOUT_S if address.tls else CONNECT_TIMEOUT_S
        self.counts.connecting += 1
        try:
            return await self._connect(address, allowed_s)
        finally:
            self.counts.connecting -= 1

    async def _connect(self, address: Address, allowed_s: float) -> UpstreamConnection:
        loop, may_repeat = asyncio.get_running_loop(), True
        while True:
            due_at = loop.time() + allowed_s
            try:
                async with asyncio.timeout(allowed_s):
                    return await self._open_or_free_descriptors(address)
            except (OSError, TimeoutError, ValueError, BadIdentity) as error:
                if may_repeat and isinstance(error, TimeoutError) and loop.time() > due_at + STALL_S:
                    may_repeat = False
                    continue
                self.counts.failed += 1
                raise ConnectFailed(f"cannot connect to {address}: {error or 'timed out'}") from error

    def connection(self, address: Address) -> UpstreamConnection:
        """Return a connection to `address` that this pool owns and that has no transport yet."""
        connection = UpstreamConnection(self, self.batcher, address)
        connection.host_line = self.host_line(address)
        return connection

    def ip_and_port(self, address: Address) -> str:
        """Return `ip:port` of an address, by the last look-up of its host; empty if no look-up has succeeded."""
        ip = self._hosts.last(address.host)
        return host_and_port(ip, address.port) if ip else ""

    def keep_none(self, address: Address) -> None:
        """Close the idle connections to an address, and others once their response is complete, until `keep`."""
        self._awaited.add(address)
        for connection in self._idle.pop(address, []):
            connection.abort()

    def keep(self, address: Address) -> None:
        """Keep connections to an address again."""
        self._awaited.discard(address)

    def release(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose response is complete; close it if enough are idle or its TLS settings changed."""
        if self._awaited and connection.address in self._awaited:
            connection.abort()
            return
        if (self._trust or connection.trust is not None) and connection.trust != self._trust.get(connection.address):
            connection.abort()
            return
        if self._has_moved(connection):
            connection.abort()
            return
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = []
        if len(idle) < MAX_IDLE_PER_ADDRESS:
            idle.append(connection)
        else:
            connection.abort()

    def discard(self, connection: UpstreamConnection) -> None:
        """Remove a connection that closed, and its address if no idle connection is left."""
        self.counts.closed += 1
        idle = self._idle.get(connection.address)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    async def _open_or_free_descriptors(self, address: Address) -> UpstreamConnection:
        """Open a connection; if no file descriptor is left, close the idle connections and try again."""
        try:
            return await self._open(address)
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS or not self._idle:
                raise
        self.close()
        await asyncio.sleep(CLOSE_DELAY_S)
        return await self._open(address)

    async def _open(self, address: Address) -> UpstreamConnection:
        loop, tls, server_name, trust = asyncio.get_running_loop(), None, None, self._trust.get(address)
        if address.tls:
            own_tls, own_name = trust if trust is not None else _POOL_TRUST
            tls, server_name = (own_tls or self._tls)(), own_name or address.server_name or address.host
        failed: OSError | None = None
        for host in await self._hosts.of(address.host):
            try:
                transport, connection = await loop.create_connection(
                    lambda: cast(asyncio.Protocol, self.connection(address)),
                    host,
                    address.port,
                    ssl=tls,
                    server_hostname=server_name,
                )
            except OSError as error:
                failed = error
            else:
                self.counts.opened += 1
                if tls is not None and self._verify is not None:
                    self._verify_server(transport, address)
                set_tcp_timeout(transport.get_extra_info("socket"), UPSTREAM_TIMEOUT_S)
                opened = cast(UpstreamConnection, connection)
                opened.trust = trust
                if host != address.host:
                    opened.host = host
                    self._remember_name(address)
                return opened
        raise failed or OSError("the host has no address")

    def _has_moved(self, connection: UpstreamConnection) -> bool:
        """Whether DNS has ceased to list the address of a connection."""
        host = connection.host
        return host != "" and self._hosts.absent_s(connection.address.host, host) >= self._max_absent_s

    def _remember_name(self, address: Address) -> None:
        if address not in self._look_up_at:
            if len(self._look_up_at) >= MAX_HOST_LINES:
                del self._look_up_at[next(iter(self._look_up_at))]
            self._look_up_at[address] = asyncio.get_running_loop().time() + self._look_up_every_s

    def _keep_looking_up(self, address: Address) -> None:
        """Look up the host of an address again if that is due, in the background."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < self._look_up_at[address]:
            return
        self._look_up_at[address] = now + self._look_up_every_s
        task = loop.create_task(self._close_moved(address))
        self._look_ups.add(task)
        task.add_done_callback(self._look_ups.discard)

    async def _close_moved(self, address: Address) -> None:
        """Look up the host of an address, and close the idle connections to addresses that it no longer has."""
        await self._hosts.refresh(address.host, self._look_up_every_s / 2)
        idle = self._idle.get(address, ())
        for connection in [connection for connection in idle if self._has_moved(connection)]:
            connection.abort()

    def _verify_server(self, transport: asyncio.Transport, address: Address) -> None:
        assert self._verify is not None
        try:
            self._verify(address, transport.get_extra_info("ssl_object").getpeercert(binary_form=True))
        except BadIdentity:
            transport.abort()
            raise

    def close(self) -> None:
        """Close every idle connection."""
        for connection in [connection for idle in self._idle.values() for connection in idle]:
            connection.abort()
        self._idle.clear()


class UpstreamPools:
    """The connections of the agent, by the kind of target."""

    def __init__(
        self,
        endpoints: UpstreamPool,
        peers: UpstreamPool | None = None,
        control_planes: UpstreamPool | None = None,
    ) -> None:
        """`peers` has the connections to other regions' agents; a pool that is None is that of `endpoints`."""
        self.endpoints = endpoints
        self.peers = peers or endpoints
        self.control_planes = control_planes or endpoints
