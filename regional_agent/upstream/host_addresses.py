"""Addresses of the hosts that connections are made to, kept for when nobody answers for a name.

A name is asked for anew when its addresses are some seconds old, and whoever connects waits for that a moment only: a
resolver that is slow, gone, or has forgotten the name stops no traffic to a server that is where it was.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import msgspec

FRESH_S = 5.0
"""Addresses are believed for this long (s) without another question: as often as names of endpoints are asked for."""

PATIENCE_S = 0.2
"""Who has older ones waits no longer (s) for newer."""

MAX_HOSTS = 4096

MAX_ADDRESSES = 16
"""Of one host that are kept and tried."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A host's addresses, in the order to try them; raises OSError or ValueError where there is no answer."""


class _Known(msgspec.Struct):
    addresses: tuple[str, ...] = ()
    """The last good answer."""
    heard_at: float = 0.0
    asking: asyncio.Task[None] | None = None
    problem: Exception | None = None
    """Why there never was one."""


class HostAddresses:
    """What is known of names."""

    def __init__(self, resolve: Resolve | None = None) -> None:
        """Knows none; `resolve` None is the system's resolver."""
        self._resolve = resolve or _ask_system
        self._known: dict[str, _Known] = {}

    async def of(self, host: str) -> Sequence[str]:
        """The addresses of a host, to connect to; of an address, itself.

        Raises:
            OSError, ValueError: there is no answer, and never was one.
        """
        known = self._known.get(host)
        if known is None:
            if _is_address(host):
                return (host,)
            if len(self._known) >= MAX_HOSTS:
                del self._known[next(iter(self._known))]
            known = self._known[host] = _Known()
        if known.addresses and asyncio.get_running_loop().time() - known.heard_at < FRESH_S:
            return known.addresses
        if known.asking is None:
            known.asking = asyncio.create_task(self._ask(host, known))
        await asyncio.wait((known.asking,), timeout=PATIENCE_S if known.addresses else None)
        if not known.addresses and known.problem is not None:
            raise known.problem
        return known.addresses

    async def _ask(self, host: str, known: _Known) -> None:
        try:
            found = await self._resolve(host)
            if not found:
                raise OSError("it has no address")
        except (OSError, ValueError) as problem:
            known.problem = problem
        else:
            known.addresses = tuple(found)[:MAX_ADDRESSES]
            known.heard_at = asyncio.get_running_loop().time()
        finally:
            known.asking = None


async def _ask_system(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
