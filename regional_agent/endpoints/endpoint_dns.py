"""Endpoints behind a DNS name: one for each of its addresses, resolved periodically.

If the resolver fails or returns no address, the last answer stays in use and its age is shown; an engine that has
stopped is detected by its probes. An endpoint whose address is no longer in an answer drains. SRV records are not
queried: the port is configured.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import msgspec
import structlog

from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.upstream.address import Address, is_host

RESOLVE_S = 5.0
"""Time (s) between two questions about one name: what Kubernetes lets its cluster DNS answers live for."""

LOOK_S = 0.2
"""How often (s) it is looked whether one is due; a host that is new is asked for at the next look."""

TIMEOUT_S = 5.0
"""A question without an answer for this long (s) has failed."""

MAX_ADDRESSES = 256
"""Endpoints that one name may stand for; more addresses are not used."""

MAX_NAME = 23
"""Characters of such an entry's name: its endpoints' names have an address of up to 39 after it."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A host's addresses, in any order; raises OSError where there is no answer."""

log = structlog.get_logger()


class DnsEntry(msgspec.Struct, frozen=True):
    """An entry of the endpoints file that stands for as many endpoints as its host has addresses."""

    template: EndpointSpec
    """All but the address and the rest of the name; its address names the host."""

    @property
    def host(self) -> str:
        """What is looked up."""
        return self.template.address.host

    def expanded(self, addresses: Iterable[str]) -> tuple[EndpointSpec, ...]:
        """An endpoint for each address, named alike by every agent."""
        template = self.template
        return tuple(
            msgspec.structs.replace(
                template,
                name=f"{template.name}-{address.replace(':', '-').strip('-')}",
                address=template.address._replace(host=address),
            )
            for address in sorted(set(addresses))[:MAX_ADDRESSES]
        )


class Answer(msgspec.Struct):
    """What is known of one host."""

    addresses: tuple[str, ...] = ()
    """The last good answer."""
    heard_at: float | None = None
    """When it came, in seconds of the monotonic clock."""
    problem: str = ""
    """Why the latest question has no good answer; empty when it has."""


class DnsResolver:
    """Resolves the host names of the endpoints file periodically, and stores the last answer of each."""

    def __init__(
        self,
        rng: Random,
        on_change: Callable[[], None],
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nothing yet.

        Args:
            rng: spreads the questions of several agents.
            on_change: called when a host has other addresses than before.
            resolve: None for the system's resolver, in threads of its own: one that hangs holds up nothing else.
            clock: seconds, monotonic.
        """
        self.answers: dict[str, Answer] = {}
        self._rng = rng
        self._on_change = on_change
        self._threads = None if resolve is not None else ThreadPoolExecutor(2, thread_name_prefix="resolver")
        self._resolve = resolve or self._ask_system
        self._clock = clock

    def close(self) -> None:
        """Let go of the threads; one that hangs in the resolver ends when that does."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def expanded(self, entries: Iterable[EndpointSpec | DnsEntry]) -> tuple[EndpointSpec, ...]:
        """Return the endpoints of the entries by the last answers; hosts without an entry are removed."""
        listed = list(entries)
        hosts = {entry.host for entry in listed if isinstance(entry, DnsEntry)}
        self.answers = {host: self.answers.get(host, Answer()) for host in sorted(hosts)}
        specs: list[EndpointSpec] = []
        for entry in listed:
            specs += entry.expanded(self.answers[entry.host].addresses) if isinstance(entry, DnsEntry) else (entry,)
        return tuple(specs)

    async def keep_asking(self) -> None:
        """Ask for every host each RESOLVE_S; a new one at once."""
        next_at: dict[str, float] = {}
        while True:
            now = self._clock()
            due = [host for host in self.answers if next_at.get(host, now) <= now]
            if await self.ask(due):
                self._on_change()
            next_at = {host: at for host, at in next_at.items() if host in self.answers}
            next_at |= {host: self._clock() + RESOLVE_S * self._rng.uniform(0.8, 1.2) for host in due}
            await sleep_until_tick(LOOK_S)

    async def ask(self, hosts: Sequence[str]) -> bool:
        """Ask for hosts, together; whether any of them has other addresses than before."""
        return any(await asyncio.gather(*(self._ask(host) for host in hosts)))

    def has_asked(self) -> bool:
        """Whether every host was asked for, with an answer or without."""
        return all(answer.heard_at is not None or answer.problem for answer in self.answers.values())

    def status(self) -> dict[str, Any]:
        """For people: what each host was last known as, and how old that is."""
        now = self._clock()
        return {
            host: {
                "addresses": answer.addresses,
                "age_s": None if answer.heard_at is None else round(now - answer.heard_at, 1),
                "problem": answer.problem or None,
            }
            for host, answer in self.answers.items()
        }

    async def _ask(self, host: str) -> bool:
        answer = self.answers.get(host)
        if answer is None:
            return False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = _of_one_family(await self._resolve(host))
        except TimeoutError:
            return self._failed(host, answer, f"no answer within {TIMEOUT_S:g} s")
        except (OSError, UnicodeError) as error:
            return self._failed(host, answer, str(error))
        if not addresses:
            return self._failed(host, answer, "it has no address")
        changed = addresses != answer.addresses
        if changed or answer.problem:
            log.info("resolved", host=host, addresses=len(addresses))
        answer.addresses, answer.heard_at, answer.problem = addresses, self._clock(), ""
        return changed

    def _failed(self, host: str, answer: Answer, problem: str) -> bool:
        if problem != answer.problem:
            log.warning("cannot resolve; the last answer stays", host=host, problem=problem)
        answer.problem = problem
        return False

    async def _ask_system(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return [str(address[0]).partition("%")[0] for *_, address in found]


def _of_one_family(addresses: Iterable[str]) -> tuple[str, ...]:
    """Of a host with addresses of both families those of IPv4: they are the same servers, and count once."""
    found = sorted(set(addresses))
    return tuple([one for one in found if ":" not in one] or found)


def dns_address(value: Any) -> Address | None:
    """The host and port in `name:port`; None where it is not that."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if (
        not colon
        or ":" in host
        or not is_host(host)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) <= 65535
    ):
        return None
    return Address(host, int(port))
