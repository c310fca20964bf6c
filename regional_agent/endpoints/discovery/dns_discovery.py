"""Endpoints behind a DNS name: one for each of its addresses, resolved periodically.

If the resolver fails or returns no address, the last answer stays in use, and the status shows its age; an engine that
has stopped is detected by its probes. An endpoint whose address is no longer in an answer drains. The port is
configured.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import msgspec
import structlog

from penstock.wire.reserved_addresses import without_reserved
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.upstream.address import Address, is_host

RESOLVE_S = 5.0
"""Interval (s) between two queries of one name; the default TTL of Kubernetes' cluster DNS."""

CHECK_S = 0.2
"""Interval (s) between two checks for due queries; a new host is queried at the next check."""

TIMEOUT_S = 5.0
"""Timeout (s) of a query."""

MAX_ADDRESSES = 256
"""Maximum number of endpoints of one name; further addresses are not used."""

MAX_NAME = 23
"""Maximum characters of an entry's name; its endpoints' names append an address of up to 39."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns a host's addresses, in any order; raises OSError if there is no answer."""

log = structlog.get_logger()


class DnsEntry(msgspec.Struct, frozen=True):
    """An entry of the endpoints file with a host name: one endpoint for each address of the host."""

    template: EndpointSpec
    """Template of the endpoints: `address` contains the host name, and `name` is a prefix."""

    @property
    def host(self) -> str:
        """The host name to resolve."""
        return self.template.address.host

    def expanded(self, addresses: Iterable[str]) -> tuple[EndpointSpec, ...]:
        """Return one endpoint for each address. Every agent generates the same names."""
        template = self.template
        server_name = template.server_name or (self.host if template.address.tls else "")
        return tuple(
            msgspec.structs.replace(
                template,
                name=f"{template.name}-{address.replace(':', '-').strip('-')}",
                address=template.address._replace(host=address),
                server_name=server_name,
            )
            for address in sorted(set(addresses))[:MAX_ADDRESSES]
        )


class Resolution(msgspec.Struct):
    """The state of one host name."""

    addresses: tuple[str, ...] = ()
    """The last successful answer."""
    resolved_at: float | None = None
    """Time (s) of the last successful answer."""
    problem: str = ""
    """Why the last query failed; empty if it succeeded."""


class DnsResolver:
    """Resolves the host names of the endpoints file periodically, and stores the last answer of each."""

    def __init__(
        self,
        rng: Random,
        on_change: Callable[[], None],
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a resolver that queries nothing yet.

        Args:
            rng: adds jitter to the query interval.
            on_change: called after the addresses of a host have changed.
            resolve: resolves a host; None uses the system's resolver in two threads, so that a hung query does not
                block the event loop.
            clock: monotonic, in seconds.
        """
        self.answers: dict[str, Resolution] = {}
        self._rng = rng
        self._on_change = on_change
        self._threads = None if resolve is not None else ThreadPoolExecutor(2, thread_name_prefix="resolver")
        self._resolve = resolve or self._resolve_by_system
        self._clock = clock

    def close(self) -> None:
        """Shut down the threads without waiting for queries in progress."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def use(self, hosts: Iterable[str], stored: Mapping[str, tuple[str, ...]]) -> None:
        """Set the hosts to resolve; answers of other hosts are dropped.

        Args:
            stored: the addresses of an earlier run, by host.
        """
        self.answers = {host: self.answers.get(host) or Resolution(stored.get(host, ())) for host in sorted(set(hosts))}

    async def keep_resolving(self) -> None:
        """Resolve every host each RESOLVE_S until cancelled."""
        next_at: dict[str, float] = {}
        while True:
            now = self._clock()
            due = [host for host in self.answers if next_at.get(host, now) <= now]
            if await self.resolve(due):
                self._on_change()
            next_at = {host: at for host, at in next_at.items() if host in self.answers}
            next_at |= {host: self._clock() + RESOLVE_S * self._rng.uniform(0.8, 1.2) for host in due}
            await sleep_until_tick(CHECK_S)

    async def resolve(self, hosts: Sequence[str]) -> bool:
        """Resolve hosts concurrently; returns whether the addresses of any host have changed."""
        return any(await asyncio.gather(*(self._update(host) for host in hosts)))

    def has_resolved(self) -> bool:
        """Whether every host was queried at least once, successfully or not."""
        return all(answer.resolved_at is not None or answer.problem for answer in self.answers.values())

    def status(self) -> dict[str, Any]:
        """Return the addresses of each host and their age, for the status page."""
        now = self._clock()
        return {
            host: {
                "addresses": answer.addresses,
                "age_s": None if answer.resolved_at is None else round(now - answer.resolved_at, 1),
                "problem": answer.problem or None,
            }
            for host, answer in self.answers.items()
        }

    async def _update(self, host: str) -> bool:
        answer = self.answers.get(host)
        if answer is None:
            return False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = _of_one_family(without_reserved(host, await self._resolve(host)))
        except TimeoutError:
            return self._failed(host, answer, f"no answer within {TIMEOUT_S:g} s")
        except (OSError, UnicodeError) as error:
            return self._failed(host, answer, str(error))
        if not addresses:
            return self._failed(host, answer, "the host has no address")
        changed = addresses != answer.addresses
        if changed or answer.problem:
            log.info("host resolved", host=host, addresses=len(addresses))
        answer.addresses, answer.resolved_at, answer.problem = addresses, self._clock(), ""
        return changed

    def _failed(self, host: str, answer: Resolution, problem: str) -> bool:
        if problem != answer.problem:
            log.warning("cannot resolve host; the last answer stays in use", host=host, problem=problem)
        answer.problem = problem
        return False

    async def _resolve_by_system(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return [str(address[0]).partition("%")[0] for *_, address in found]


def _of_one_family(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the IPv4 addresses if any exist, else all: both families usually lead to the same servers."""
    unique = sorted(set(addresses))
    return tuple([address for address in unique if ":" not in address] or unique)


def dns_address(value: Any) -> Address | None:
    """Parse `name:port`, or `https://name:port`; None if the value has another format."""
    name = value.removeprefix("https://") if isinstance(value, str) else ""
    host, colon, port = name.rpartition(":")
    if (
        not colon
        or ":" in host
        or not is_host(host)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) <= 65535
    ):
        return None
    return Address(host, int(port), tls=name != value)
