"""Kinds of policy documents: the zones and names that the agents answer in the DNS."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import DERIVED, Conflict, ModelRef, NonEmpty, PolicyStruct, RegionRef, TenantRef, bounds
from penstock.policy.kinds.region_entry import DnsNameText, DnsTtlS, IpText
from penstock.policy.kinds.regions import ClientLocations
from penstock.policy.kinds.residency_rules import RegionSelector


class DnsZone(PolicyStruct, frozen=True):
    """A zone that agents answer authoritatively, through PowerDNS; its parent zone delegates it to `name_servers`."""

    name: DnsNameText
    """Name of the zone, such as `api.example.com`."""
    name_servers: dict[DnsNameText, tuple[IpText, ...]]
    """The zone's name servers, each a PowerDNS beside an agent, and the addresses of those whose name is in the zone;
    `[]` for other names."""
    contact: DnsNameText
    """Mailbox of the responsible person in the form of a SOA record: `hostmaster.example.com` for
    hostmaster@example.com."""
    ttl_s: DnsTtlS = 3600
    """Time (s) for which resolvers cache the zone's own records (SOA, NS, addresses of name servers)."""
    negative_ttl_s: DnsTtlS = 30
    """Time (s) for which resolvers cache that a name does not exist."""

    def conflict(self) -> Conflict | None:
        if not self.name_servers:
            return Conflict("has no name servers", "write `name_servers`, such as ns1.example.net: []")
        inside = f".{self.name}"
        for host, addresses in self.name_servers.items():
            if host.endswith(inside) and not addresses:
                return Conflict(f"the name server {host} is in the zone and has no address", "write its addresses")
        return None


class DnsStrategy(StrEnum):
    """How the answer is chosen among the regions that are permitted and live."""

    SHARES = "shares"
    """A region by the plan's shares of the permitted region that is nearest to the client."""
    NEAREST = "nearest"
    """The region that steering (`/v1/steer`) recommends first: entry maps, then distance."""
    FAILOVER = "failover"
    """The first live region of `failover_order`."""


class DnsName(PolicyStruct, frozen=True):
    """A name that clients resolve, for the fleet, for some tenants, or for one jurisdiction.

    It resolves only to regions that residency permits to all its tenants. Where the location of a client is unknown,
    because its resolver sends no client subnet, it resolves only to regions that residency permits to all its
    `clients`, wherever they are.
    """

    name: DnsNameText
    """The name, such as `eu.api.example.com`: in a `DnsZone`, and not the zone itself."""
    tenants: NonEmpty[tuple[TenantRef, ...]] = ()
    """Tenants that use the name; absent: every tenant."""
    models: NonEmpty[tuple[ModelRef, ...]] = ()
    """Models whose readiness and shares decide; absent: every model."""
    clients: ClientLocations | UnsetType = UNSET
    """Locations of the clients that use the name; absent: anywhere."""
    regions: RegionSelector | UnsetType = UNSET
    """The regions that the name may resolve to, within residency; absent: every region."""
    strategy: DnsStrategy = DnsStrategy.SHARES
    """`shares`: by the plan's shares of the permitted region nearest to the client. `nearest`: the region that steering
    recommends first. `failover`: the first live region of `failover_order`."""
    failover_order: NonEmpty[tuple[RegionRef, ...]] = ()
    """Regions for the strategy `failover`, the primary first; no other region is answered."""
    ttl_s: Annotated[int, bounds(ge=1, le=3600)] = 10
    """Time (s) for which resolvers cache an answer: clients leave a failed region this much later."""
    last_resort: NonEmpty[tuple[IpText, ...]] = ()
    """Addresses that are answered while no permitted region is live, such as those of a page that states the failure;
    no region may have them. Absent: SERVFAIL, after which resolvers ask another name server."""
    zone: Annotated[str, DERIVED] = ""
    """Name of the zone that contains the name."""
    covers: Annotated[frozenset[str], DERIVED] = frozenset()
    """The regions that `regions` and `failover_order` select."""
    client_countries: Annotated[frozenset[str], DERIVED] = frozenset()
    """The countries of `clients`, those of blocs included; empty with `client_subdivisions` for clients anywhere."""
    client_subdivisions: Annotated[frozenset[str], DERIVED] = frozenset()
    """The subdivisions of `clients`."""

    def conflict(self) -> Conflict | None:
        if self.strategy is DnsStrategy.FAILOVER and not self.failover_order:
            return Conflict("has no order of its regions", "write `failover_order`, the primary first")
        if self.strategy is not DnsStrategy.FAILOVER and self.failover_order:
            return Conflict("`failover_order` has no effect", "write `strategy: failover`, or remove it")
        return None
