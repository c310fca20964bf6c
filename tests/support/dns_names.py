"""The planet's policy with entries and DNS names, and a name server that answers for it from what a test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from penstock.dns.name_answer import EntryState, NameServerView
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy, DnsZone
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from regional_agent.dns.backend_socket import BackendSocket
from regional_agent.dns.name_resolver import NameResolver
from tests.support import planet

ZONE = DnsZone(
    "api.example.com",
    {"ns1.api.example.com": ("192.0.2.53",), "ns.example.net": ()},
    "hostmaster.example.com",
)

ENTRIES = {
    "eu-de": RegionEntry("https://eu-de.example.com", ("192.0.2.10", "2001:db8::10")),
    "eu-es": RegionEntry("https://eu-es.example.com", ("192.0.2.20", "2001:db8::20")),
    "us-east": RegionEntry("https://us-east.example.com", ("198.51.100.30",)),
}
ADDRESSES = {name: entry.addresses[0] for name, entry in ENTRIES.items()}

_PLACES = {
    "203.0.113.0": Location("DE", None, 50.1, 8.7),
    "198.18.0.0": Location("US", None, 38.9, -77.0),
    "198.18.4.0": Location("ES", None, 40.4, -3.7),
}
"""Locations of the networks that tests send as client subnets."""


def _place_of(address: IPv4Address | IPv6Address) -> Location:
    bits = 24 if address.version == 4 else 56
    return _PLACES.get(str(ip_network((address, bits), strict=False).network_address), NOWHERE)


def _place_of_network(network: IPv4Network | IPv6Network) -> Location:
    first = _place_of(network.network_address)
    return first if first == _place_of(network.broadcast_address) else NOWHERE


EVERYWHERE = frozenset(ENTRIES)
EU = frozenset({"eu-de", "eu-es"})


def a_name(name: str, **fields: Any) -> DnsName:
    """A compiled name of the zone."""
    return DnsName(f"{name}.{ZONE.name}", zone=ZONE.name, **{"covers": EVERYWHERE, **fields})


NAMES = (
    a_name("eu", tenants=("personal",)),
    a_name("open", tenants=("open",)),
    a_name("near", tenants=("open",), strategy=DnsStrategy.NEAREST),
    a_name("first", tenants=("open",), strategy=DnsStrategy.FAILOVER, failover_order=("us-east", "eu-de", "eu-es")),
    a_name("page", tenants=("personal",), last_resort=("203.0.113.99",)),
    a_name("us-only", tenants=("personal",), covers=frozenset({"us-east"})),
)


def dns_policy(base: Policy | None = None, names: tuple[DnsName, ...] = NAMES) -> Policy:
    """A policy whose regions have entries, and with names."""
    base = base or planet.policy()
    regions = {name: msgspec.structs.replace(base.regions[name], entry=ENTRIES[name]) for name in base.regions}
    return msgspec.structs.replace(
        base, regions=regions, dns_zones={ZONE.name: ZONE}, dns_names={name.name: name for name in names}
    )


def all_live(**states: RegionState) -> dict[str, EntryState]:
    """Every region healthy and ready, but for the given states; names have _ for -."""
    ready = frozenset({planet.MODEL})
    return {name: EntryState(states.get(name.replace("-", "_"), RegionState.HEALTHY), ready) for name in ENTRIES}


class NameServer:
    """What answers: a test may change `policy`, `states` and `plans`."""

    def __init__(self, policy: Policy, plans: Mapping[str, RegionPlan] | None = None) -> None:
        self.config = SimpleNamespace(policy=policy)
        self.states = all_live()
        self.plans: Mapping[str, RegionPlan] = plans or {}
        self.answered: list[tuple[str, str]] = []
        self.locator: Any = SimpleNamespace(locate=_place_of, locate_network=_place_of_network)
        self.resolver = NameResolver(
            cast("Any", self.config),
            self.locator,
            lambda policy: NameServerView(self.states, self.plans),
            Random(1),
            lambda name, answer: self.answered.append((name, answer)),
        )

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[BackendSocket]:
        """The socket at which PowerDNS asks."""
        socket = BackendSocket(path, self.resolver.answer)
        await socket.listen()
        try:
            yield socket
        finally:
            await socket.close()
