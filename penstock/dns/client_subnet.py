"""Client subnets of DNS queries: where a query comes from, and what that states about the place of its client."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from penstock.policy.geography import Location

MIN_PREFIX_BITS: Final = {4: 16, 6: 32}
"""Minimum length of a client subnet's prefix, by IP version. A shorter one has clients of many places, so that it
states nothing; resolvers send 24 and 56 (RFC 7871, section 11.1)."""


class Subnet(NamedTuple):
    """Where a query comes from."""

    network: IPv4Network | IPv6Network | None
    """The client subnet if it states a place, else the address of the resolver; None if neither can be read."""
    is_client: bool
    """Whether `network` is a client subnet."""


def subnet_of(remote: str, real_remote: str) -> Subnet:
    """Return where a query comes from. A subnet that cannot be read, or is too large for a place, states nothing.

    Args:
        remote: address of the resolver.
        real_remote: client subnet (RFC 7871); without one, PowerDNS names the resolver in both fields.
    """
    resolver = _address_of(remote)
    of_resolver = Subnet(None if resolver is None else ip_network(resolver), is_client=False)
    try:
        network = ip_network(real_remote.partition("%")[0], strict=False)
    except ValueError:
        return of_resolver
    is_whole = network.prefixlen == network.max_prefixlen
    if network.prefixlen < MIN_PREFIX_BITS[network.version] or (is_whole and network.network_address == resolver):
        return of_resolver
    return Subnet(network, is_client=True)


def is_same_place(first: Location, last: Location) -> bool:
    """Whether two parts of a subnet are in one country and subdivision, on which residency depends."""
    return (first.country, first.subdivision) == (last.country, last.subdivision)


def _address_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address in any of its forms, without its zone; None if it cannot be read."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
