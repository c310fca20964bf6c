"""The records that a name server answers for one name of the policy's zones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.policy.kinds.dns_names import DnsName, DnsZone
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy

SERIAL = 1
"""Serial number of every zone: zones are not transferred, so that no other server compares it."""

REFRESH_S, RETRY_S, EXPIRE_S = 3600, 600, 86_400
"""Times (s) of the SOA record for secondary servers, which zones do not have."""

ADDRESS_TYPES: Final = ("A", "AAAA")
"""Types of records with addresses."""


class Record(msgspec.Struct, frozen=True):
    """One resource record."""

    name: str
    kind: str
    """Type of the record, such as `A`."""
    content: str
    """Content in the form of zone files."""
    ttl_s: int


def zone_records(zone: DnsZone, name: str) -> list[Record]:
    """Return the records of a zone itself and of name servers in the zone; empty for another name."""
    if name == zone.name:
        times = f"{SERIAL} {REFRESH_S} {RETRY_S} {EXPIRE_S} {zone.negative_ttl_s}"
        soa = Record(name, "SOA", f"{next(iter(zone.name_servers))}. {zone.contact}. {times}", zone.ttl_s)
        return [soa, *(Record(name, "NS", f"{host}.", zone.ttl_s) for host in zone.name_servers)]
    return address_records(name, zone.name_servers.get(name, ()), zone.ttl_s)


def empty_names(zones: Mapping[str, DnsZone], names: Iterable[str]) -> frozenset[str]:
    """Return the names between `names` and their zones. They exist, without records (RFC 8020): a resolver that asks
    for a name part by part (RFC 9156) would otherwise stop there."""
    found: set[str] = set()
    for name in (*names, *(host for zone in zones.values() for host in zone.name_servers)):
        zone, parent = zone_of(zones, name), name.partition(".")[2]
        while zone is not None and len(parent) > len(zone.name):
            found.add(parent)
            parent = parent.partition(".")[2]
    return frozenset(found)


def empty_record(name: str) -> Record:
    """Return the record by which PowerDNS knows that a name exists that has no other one."""
    return Record(name, "ENT", "", 0)


def region_records(policy: Policy, name: DnsName, region: str) -> list[Record]:
    """Return the records with which a name resolves to a region."""
    entry = policy.regions[region].entry
    if not isinstance(entry, RegionEntry):
        return []
    if entry.cname:
        return [Record(name.name, "CNAME", f"{entry.cname}.", name.ttl_s)]
    return address_records(name.name, entry.addresses, name.ttl_s)


def last_resort_records(name: DnsName) -> list[Record]:
    """Return the records that a name has while no permitted region is live; empty without a last resort."""
    return address_records(name.name, name.last_resort, name.ttl_s)


def address_records(name: str, addresses: Iterable[str], ttl_s: int) -> list[Record]:
    """Return one record for each IP address."""
    return [Record(name, _type_of(address), address, ttl_s) for address in addresses]


def has_type(policy: Policy, region: str, kind: str) -> bool:
    """Whether the entry of a region has addresses of a type (`A`, `AAAA`)."""
    entry = policy.regions[region].entry
    return isinstance(entry, RegionEntry) and any(_type_of(address) == kind for address in entry.addresses)


def has_cname(policy: Policy, region: str) -> bool:
    """Whether the entry of a region is another name, beside which a name has no addresses."""
    entry = policy.regions[region].entry
    return isinstance(entry, RegionEntry) and bool(entry.cname)


def _type_of(address: str) -> str:
    return "AAAA" if ":" in address else "A"


def zone_of(zones: Mapping[str, DnsZone], name: str) -> DnsZone | None:
    """Return the zone that contains a name; of nested zones, the innermost."""
    while name:
        if name in zones:
            return zones[name]
        name = name.partition(".")[2]
    return None
