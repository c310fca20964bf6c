"""DNS resolution for upstream connections, which keeps the last result.

A name is resolved again when its addresses are older than FRESH_S. While old addresses exist, a connection waits at
most REFRESH_TIMEOUT_S for the new result, so a slow, unreachable or misconfigured resolver does not stop traffic to a
server whose address is unchanged. Reserved addresses (`penstock/wire/reserved_addresses.py`) are used only if the
configuration contains them, not if a name resolves to them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from math import inf

import msgspec

from penstock.wire.reserved_addresses import without_reserved

FRESH_S = 5.0
"""Age (s) up to which addresses are used without a new look-up; endpoint discovery polls DNS at the same rate."""

REFRESH_TIMEOUT_S = 0.2
"""Maximum time (s) that a connection waits for new addresses while old addresses exist."""

MAX_HOSTS = 4096

MAX_ADDRESSES = 16
"""Maximum number of addresses of one host that are cached and tried."""

MAX_REMEMBERED = 256
"""Maximum number of addresses of one host whose last appearance is remembered, the latest ones."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a host's addresses in the order to try them; raises OSError or ValueError if resolution fails."""


class _Entry(msgspec.Struct):
    addresses: tuple[str, ...] = ()
    """The result of the last successful look-up."""
    listed_at: dict[str, float] = {}
    """When a look-up last returned an address (s), for the latest addresses."""
    resolved_at: float = 0.0
    lookup: asyncio.Task[None] | None = None
    error: Exception | None = None
    """The error of the last failed look-up."""


class HostAddresses:
    """A cache of host names and their addresses."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        """Create an empty cache; `resolve` None uses the system's resolver."""
        self._resolve = resolve or _resolve_by_system
        self._entries: dict[str, _Entry] = {}

    async def of(self, host: str) -> Sequence[str]:
        """Return the addresses of `host`; an IP address resolves to itself.

        Raises:
            OSError, ValueError: the look-up failed, and no earlier look-up succeeded.
        """
        entry = self._entries.get(host)
        if entry is None:
            if _is_address(host):
                return (host,)
            if len(self._entries) >= MAX_HOSTS:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[host] = _Entry()
        if entry.addresses and asyncio.get_running_loop().time() - entry.resolved_at < FRESH_S:
            return entry.addresses
        if entry.lookup is None:
            entry.lookup = asyncio.create_task(self._look_up(host, entry))
        await asyncio.wait((entry.lookup,), timeout=REFRESH_TIMEOUT_S if entry.addresses else None)
        if not entry.addresses and entry.error is not None:
            raise entry.error
        return entry.addresses

    def last(self, host: str) -> str:
        """Return the first address of the last look-up of `host`, or `host` if it is an address; empty without one."""
        if _is_address(host):
            return host
        entry = self._entries.get(host)
        return entry.addresses[0] if entry is not None and entry.addresses else ""

    async def refresh(self, host: str, max_age_s: float) -> None:
        """Look up a host that was resolved before, unless its addresses are newer than `max_age_s` (s).

        Returns at once if a look-up is in progress, since a name server may never answer.
        """
        entry = self._entries.get(host)
        if entry is None or entry.lookup is not None:
            return
        if asyncio.get_running_loop().time() - entry.resolved_at >= max_age_s:
            entry.lookup = asyncio.create_task(self._look_up(host, entry))
            await asyncio.wait((entry.lookup,))

    def absent_s(self, host: str, address: str) -> float:
        """Return for how long look-ups of `host` have not returned an address (s); 0 if the last one returned it.

        Time without a successful look-up does not count.
        """
        entry = self._entries.get(host)
        if entry is None or not entry.addresses:
            return 0.0
        listed_at = entry.listed_at.get(address)
        return inf if listed_at is None else entry.resolved_at - listed_at

    async def _look_up(self, host: str, entry: _Entry) -> None:
        try:
            addresses = without_reserved(host, await self._resolve(host))
            if not addresses:
                raise OSError("the host has no address")
        except (OSError, ValueError) as error:
            entry.error = error
        else:
            entry.addresses = tuple(addresses)[:MAX_ADDRESSES]
            entry.resolved_at = asyncio.get_running_loop().time()
            listed_at = entry.listed_at | dict.fromkeys(entry.addresses, entry.resolved_at)
            newest = sorted(listed_at, key=listed_at.__getitem__)[-MAX_REMEMBERED:]
            entry.listed_at = {address: listed_at[address] for address in newest}
        finally:
            entry.lookup = None


async def _resolve_by_system(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


@lru_cache(MAX_HOSTS)
def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
