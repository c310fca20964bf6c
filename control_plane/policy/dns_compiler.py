"""Compiles the DNS names of a bundle: the zone and the regions of each, and what contradicts other documents."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from msgspec import UNSET
from msgspec.structs import replace

from adapters.configuration.strict_yaml import Path
from control_plane.policy.catalogue import Catalogue
from control_plane.policy.documents import Document
from control_plane.policy.references import References
from penstock.policy.kinds.dns_names import DnsName, DnsZone
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.regions import Region


def compile_dns_names(catalogue: Catalogue, references: References) -> list[DnsName]:
    """Return the compiled names; adds what is wrong with names, zones and entries to `references.errors`."""
    entries = {region.name: region.entry for _, region in catalogue.of(Region) if isinstance(region.entry, RegionEntry)}
    _check_addresses(catalogue, references)
    zones = catalogue.names.get("DnsZone", {})
    return [_compiled(document, name, zones, entries, references) for document, name in catalogue.of(DnsName)]


def _compiled(
    document: Document,
    name: DnsName,
    zones: Mapping[str, Document],
    entries: Mapping[str, RegionEntry],
    references: References,
) -> DnsName:
    errors = references.errors
    zone = max((zone for zone in zones if name.name.endswith(f".{zone}")), key=len, default="")
    if not zone:
        problem = "is in no zone" if name.name not in zones else "is the name of a zone, which cannot have a CNAME"
        errors.append(document.error(("name",), problem, "add a DnsZone that contains the name, or correct it"))
    if zone:
        _check_parent(document, ("name",), name.name, zone, references)
    covers = frozenset(references.names_of("Region"))
    if name.regions is not UNSET:
        covers = references.regions_in(name.regions.jurisdictions).union(name.regions.regions)
    for index, region in enumerate(name.failover_order):
        if region not in covers and references.has("Region", region):
            problem = f"{region} is not among the regions of the name"
            errors.append(document.error(("failover_order", index), problem, "add it to `regions`, or remove it"))
    if name.failover_order:
        covers &= frozenset(name.failover_order)
    resolvable = [
        region for region in covers if region in entries and (entries[region].addresses or entries[region].cname)
    ]
    if references.complete and not resolvable:
        remedy = "write `entry` with `addresses` or `cname` in the documents of its regions"
        errors.append(document.error((), "no region of the name has addresses", remedy))
    taken = {address: region for region, entry in entries.items() for address in entry.addresses}
    for index, address in enumerate(name.last_resort):
        if address in taken:
            problem = f"{address} is an address of the region {taken[address]}"
            errors.append(document.error(("last_resort", index), problem, "name an address of no region"))
    clients = name.clients
    return replace(
        name,
        zone=zone,
        covers=covers,
        client_countries=frozenset() if clients is UNSET else references.countries(clients.countries),
        client_subdivisions=frozenset() if clients is UNSET else frozenset(clients.subdivisions),
    )


def _check_parent(document: Document, path: Path, name: str, zone: str, references: References) -> None:
    """Check that the name above `name` has records."""
    parent = name.partition(".")[2]
    if parent != zone and parent not in references.names_of("DnsName") and parent not in references.names_of("DnsZone"):
        # Resolvers that learn of no records at the parent do not ask for names below it (RFC 8020).
        problem = f"is below {parent}, which has no records"
        remedy = f"use a name directly below {zone}, or add a DnsName or DnsZone {parent}"
        references.errors.append(document.error(path, problem, remedy))


def _check_addresses(catalogue: Catalogue, references: References) -> None:
    """Check that every address can be parsed, and that no two regions have the same entry."""
    owners: dict[str, str] = {}
    for document, region in catalogue.of(Region):
        if not isinstance(region.entry, RegionEntry):
            continue
        entry = region.entry
        found: list[tuple[Path, str]] = [
            (("entry", "addresses", index), address) for index, address in enumerate(entry.addresses)
        ]
        _parse(document, found, references)
        found += [(("entry", field), value) for field in ("cname", "url") if (value := getattr(entry, field))]
        for path, value in found:
            owner = owners.setdefault(value, region.name)
            if owner != region.name:
                problem = f"{value} is the entry of the region {owner}"
                references.errors.append(document.error(path, problem, "give each region an entry of its own"))
    for document, zone in catalogue.of(DnsZone):
        for host, addresses in zone.name_servers.items():
            if host.endswith(f".{zone.name}"):
                _check_parent(document, ("name_servers", host), host, zone.name, references)
            if host in references.names_of("DnsName"):
                remedy = "give the name server a name of its own"
                references.errors.append(document.error(("name_servers", host), "is the name of a DnsName", remedy))
            _parse(document, [(("name_servers", host, at), each) for at, each in enumerate(addresses)], references)
    for document, name in catalogue.of(DnsName):
        _parse(document, [(("last_resort", at), each) for at, each in enumerate(name.last_resort)], references)


def _parse(document: Document, addresses: list[tuple[Path, str]], references: References) -> None:
    for path, address in addresses:
        try:
            canonical = str(ip_address(address))
        except ValueError:
            canonical = ""
        if canonical != address:
            remedy = f"write it as {canonical}" if canonical else "write an IPv4 or IPv6 address"
            references.errors.append(document.error(path, "is not an address as it is written in full", remedy))
