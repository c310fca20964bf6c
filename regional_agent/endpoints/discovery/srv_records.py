"""Endpoints of SRV records (RFC 2782): each target and port, with its priority and weight.

A record is queried again when its answer expires. If a query fails or has no answer, the last answer stays in use and
the status shows its age. A target whose own query fails keeps its last addresses. Endpoints of a higher priority number
are used while no lower number has a ready endpoint. Within one priority the slots of an endpoint are proportional to
its weight; without weights all endpoints have the same slots.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.wire.reserved_addresses import without_reserved
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.discovery.discovered_server import MAX_SERVERS, DiscoveredServer, expanded
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_options import InvalidField, text
from regional_agent.upstream.address import Address, is_host

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

MIN_TTL_S: Final = 5.0
MAX_TTL_S: Final = 300.0
"""Bounds of the time (s) between two queries; a TTL outside of the bounds is replaced by the nearer bound."""
RETRY_S: Final = 5.0
"""Time (s) until a failed query is repeated."""
TIMEOUT_S: Final = 5.0
"""Timeout (s) of one query, over all name servers."""
CHECK_S: Final = 0.2
"""Interval (s) between two checks for due queries and for the readiness of endpoints."""
FALLBACK_AFTER_S: Final = 2.0
"""Time (s) without a ready endpoint after which the endpoints of the next priority are used as well."""
RETURN_AFTER_S: Final = 10.0
"""Time (s) with a ready endpoint of a lower priority number after which the endpoints of higher numbers drain."""

_SERVICE_NAME: Final = re.compile(r"(_[A-Za-z0-9-]{1,62})\.(_tcp)\.(.+)")

log = structlog.get_logger()


class SrvEntry(msgspec.Struct, frozen=True):
    """An entry of the endpoints file with the name of an SRV record."""

    template: EndpointSpec
    """Template of the endpoints; its address has no host and port."""
    record: str

    def expanded(self, servers: Iterable[DiscoveredServer]) -> tuple[EndpointSpec, ...]:
        """Return the endpoints of the servers, with slots by weight."""
        servers = tuple(servers)
        heaviest: dict[int, int] = {}
        for server in servers:
            heaviest[server.priority] = max(heaviest.get(server.priority, 0), server.weight)
        slots = self.template.slots
        servers = tuple(
            msgspec.structs.replace(server, slots=max(1, round(slots * server.weight / heaviest[server.priority])))
            if heaviest[server.priority]
            else server
            for server in servers
        )
        return expanded(self.template, servers)


class SrvAnswer(msgspec.Struct):
    """The state of one record."""

    servers: tuple[DiscoveredServer, ...] = ()
    """The last successful answer."""
    resolved_at: float | None = None
    """Time (s) of the last successful answer."""
    problem: str = ""
    """Why the last query failed; empty if it succeeded."""
    due_at: float = 0.0
    """Time (s) of the next query."""
    priorities: int = 1
    """Number of priorities in use, from the lowest priority number on."""
    changes_since: float | None = None
    """Time (s) since which another number of priorities is required; None if the current number is right."""

    def servers_in_use(self) -> list[DiscoveredServer]:
        """Return the servers of the priorities in use."""
        used = sorted({server.priority for server in self.servers})[: self.priorities]
        return [server for server in self.servers if server.priority in used]

    def update_priorities(self, ready: Set[tuple[str, int]], now: float) -> bool:
        """Update the number of priorities in use, by the addresses of ready endpoints; returns whether it changed."""
        all_priorities = sorted({server.priority for server in self.servers})
        with_ready = {server.priority for server in self.servers if (server.address, server.port) in ready}
        used = all_priorities[: self.priorities]
        lowest = next((number for number, priority in enumerate(used, 1) if priority in with_ready), None)
        wanted = min(self.priorities + 1, max(1, len(all_priorities))) if lowest is None else lowest
        if wanted == self.priorities:
            self.changes_since = None
            return False
        if self.changes_since is None:
            self.changes_since = now
        if now - self.changes_since < (FALLBACK_AFTER_S if wanted > self.priorities else RETURN_AFTER_S):
            return False
        self.priorities, self.changes_since = wanted, None
        return True


class SrvResolver:
    """Queries the SRV records of the endpoints file, and stores the last answer of each."""

    def __init__(
        self,
        rng: Random,
        on_change: Callable[[], None],
        ready: Callable[[], Set[tuple[str, int]]],
        make_resolver: Callable[[], Resolver] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a resolver that queries nothing yet.

        Args:
            rng: adds jitter to the query interval.
            on_change: called after the endpoints of a record have changed.
            ready: returns host and port of each ready endpoint.
            make_resolver: returns a resolver; None uses the name servers of the system.
            clock: monotonic, in seconds.
        """
        self.answers: dict[str, SrvAnswer] = {}
        self._rng = rng
        self._on_change = on_change
        self._ready = ready
        self._make_resolver = make_resolver or _system_resolver
        self._clock = clock

    def use(self, records: Iterable[str], stored: Mapping[str, Sequence[DiscoveredServer]]) -> None:
        """Set the records to query; `stored` contains the answers of an earlier run, by record."""
        self.answers = {
            record: self.answers.get(record) or SrvAnswer(tuple(stored.get(record, ()))) for record in records
        }

    def servers(self, record: str) -> list[DiscoveredServer]:
        """Return the servers of a record that are in use."""
        return self.answers[record].servers_in_use()

    def has_answered(self) -> bool:
        """Whether every record was queried at least once, successfully or not."""
        return all(answer.resolved_at is not None or answer.problem for answer in self.answers.values())

    def status(self) -> dict[str, Any]:
        """Return the targets of each record and the age of the answer, for the status page."""
        now = self._clock()
        return {
            record: {
                "targets": [
                    f"{Address(server.address, server.port)} priority {server.priority} weight {server.weight}"
                    for server in answer.servers
                ],
                "priorities_in_use": answer.priorities,
                "age_s": None if answer.resolved_at is None else round(now - answer.resolved_at, 1),
                "problem": answer.problem or None,
            }
            for record, answer in self.answers.items()
        }

    async def keep_resolving(self) -> None:
        """Query each record when its answer expires, until cancelled."""
        while True:
            due = [record for record, answer in self.answers.items() if answer.due_at <= self._clock()]
            if any(await asyncio.gather(*(self.resolve(record) for record in due))):
                self._on_change()
            await sleep_until_tick(CHECK_S)

    async def keep_updating_priorities(self) -> None:
        """Update the priorities in use by the readiness of endpoints, until cancelled. Waits for no query."""
        while True:
            if self.answers:
                ready, now = self._ready(), self._clock()
                if [each for each in self.answers.values() if each.update_priorities(ready, now)]:
                    self._on_change()
            await sleep_until_tick(CHECK_S)

    async def resolve(self, record: str) -> bool:
        """Query a record and the addresses of its targets; returns whether the servers have changed."""
        answer = self.answers.get(record)
        if answer is None:
            return False
        from dns.exception import DNSException  # only agents with SRV entries load dnspython

        try:
            servers, ttl_s = await _query(self._make_resolver(), record, answer.servers)
        except (DNSException, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
            if problem != answer.problem:
                log.warning("cannot resolve SRV record; the last answer stays in use", record=record, problem=problem)
            answer.problem, answer.due_at = problem, self._clock() + RETRY_S * self._rng.uniform(0.8, 1.2)
            return False
        changed = servers != answer.servers
        if changed or answer.problem:
            log.info("SRV record resolved", record=record, targets=len(servers))
        answer.servers, answer.resolved_at, answer.problem = servers, self._clock(), ""
        answer.due_at = self._clock() + min(max(ttl_s, MIN_TTL_S), MAX_TTL_S) * self._rng.uniform(0.9, 1.0)
        return changed


def read_record(value: Any) -> tuple[str, bool]:
    """Parse `[https://]_service._tcp.name`; returns the name, and whether TLS is used. Raises InvalidField."""
    given = text(value)
    record = given.removeprefix("https://")
    match = _SERVICE_NAME.fullmatch(record)
    if match is None or not is_host(record):
        raise InvalidField("not the name of an SRV record; write one such as _http._tcp.engines.example.com")
    return record, record != given


def domain_of(record: str) -> str:
    """Return the domain of a record: its name without service and protocol."""
    return record.split(".", 2)[2].rstrip(".")


def _system_resolver() -> Resolver:
    from dns.asyncresolver import Resolver

    return Resolver()


async def _query(
    resolver: Resolver, record: str, last: Sequence[DiscoveredServer]
) -> tuple[tuple[DiscoveredServer, ...], float]:
    """Return the servers of a record, and the time (s) for which the answer is valid.

    If the only target is the root (`.`), the service does not exist at this domain (RFC 2782): no servers are returned.

    Args:
        last: the last answer, with the addresses of targets whose query fails.

    Raises:
        DNSException, OSError: the query of the record failed, or the queries of all targets.
    """
    from dns.resolver import NXDOMAIN, NoAnswer

    found = await resolver.resolve(record, "SRV", search=True, lifetime=TIMEOUT_S)
    ttl_s = float(found.rrset.ttl if found.rrset is not None else MIN_TTL_S)
    records = [each for each in found if each.target.to_text() != "."][:MAX_SERVERS]
    if not records:
        return (), ttl_s
    hosts = sorted({each.target.to_text() for each in records})
    answers = await asyncio.gather(*(_addresses(resolver, host) for host in hosts), return_exceptions=True)
    resolved = {host: answer for host, answer in zip(hosts, answers, strict=True) if isinstance(answer, tuple)}
    if not resolved:
        raise next(answer for answer in answers if isinstance(answer, BaseException))
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, NXDOMAIN | NoAnswer):
            resolved[host] = tuple(server.address for server in last if server.target == host), RETRY_S
    servers = {
        (address, each.port): DiscoveredServer(
            address, each.port, priority=each.priority, weight=each.weight, target=each.target.to_text()
        )
        for each in records
        for address in resolved.get(each.target.to_text(), ((), 0.0))[0]
    }
    return tuple(servers[key] for key in sorted(servers)), min([ttl_s, *(ttl for _, ttl in resolved.values())])


async def _addresses(resolver: Resolver, host: str) -> tuple[tuple[str, ...], float]:
    """Return the IPv4 addresses of a target, or its IPv6 addresses if it has none, and their time to live (s).

    Raises:
        DNSException, OSError: the query failed, or the target has only reserved addresses.
    """
    from dns.resolver import NoAnswer

    try:
        found = await resolver.resolve(host, "A", lifetime=TIMEOUT_S)
    except NoAnswer:
        found = await resolver.resolve(host, "AAAA", lifetime=TIMEOUT_S)
    addresses = without_reserved(host, (each.address for each in found))
    return tuple(addresses), float(found.rrset.ttl if found.rrset is not None else MIN_TTL_S)
