"""Addresses that no server of a fleet has, such as those of metadata services, also where an IPv6 address embeds them.

Metadata services of clouds return credentials to every process of a virtual machine, so an address that comes from the
network is checked before anything is sent to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

_THIS_HOST: Final = IPv4Network("0.0.0.0/8")
"""RFC 1122, section 3.2.1.3."""

_NETWORKS: Final = (
    _THIS_HOST,
    *map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments (RFC 6890); Oracle's metadata service has one of them
            "100.100.100.200/32",  # metadata service of Alibaba
            "168.63.129.16/32",  # wire server of Azure
            "fd00:ec2::/32",  # metadata and other services of AWS
            "fd20:ce::/32",  # metadata service of Google
            "fd00:42::42/128",  # metadata service of Scaleway
            "fd00:a9fe:a9fe::/48",  # metadata service of Linode
            "fd00:c1::a9fe:a9fe/128",  # metadata service of Oracle
        ),
    ),
)
"""Networks that the properties of `ipaddress` do not cover."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""Upper half of an interface identifier that ends with an IPv4 address (RFC 5214, section 6.1)."""

_LOOPBACK: Final = IPv6Address("::1")

NUMBER_LAST: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")
"""Resolvers parse a name that ends in a number as an IPv4 address in another notation (inet_aton(3))."""


def is_reserved(host: str) -> bool:
    """Returns whether `host` is an address that no server has; a name is none.

    These are unspecified, multicast, link-local, broadcast and reserved addresses, metadata services, IPv6 addresses
    that embed one of them, and every IPv4 address in another notation than that of four decimal numbers. Loopback and
    private addresses are not reserved.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return NUMBER_LAST.fullmatch(host) is not None
    if isinstance(address, IPv4Address):
        return _is_reserved(address)
    # Without the zone, which is no part of the address and of none of its properties.
    address = IPv6Address(int(address))
    embedded = list(_embedded(address))
    if any(map(_is_reserved, embedded)):
        return True
    is_assigned = bool(embedded) or address == _LOOPBACK
    return not is_assigned and (address.is_site_local or _is_reserved(address))


def is_public(address: str) -> bool:
    """Returns whether an IP address belongs to a server on the Internet: not reserved, and neither it nor an address
    that it embeds is private, loopback or shared (RFC 6598).
    """
    parsed = ip_address(address.partition("%")[0])
    if is_reserved(address) or not parsed.is_global:
        return False
    return isinstance(parsed, IPv4Address) or all(embedded.is_global for embedded in _embedded(parsed))


def without_reserved(host: str, addresses: Iterable[str]) -> list[str]:
    """Returns the addresses of a DNS name, without reserved addresses.

    Raises:
        OSError: the name resolves only to reserved addresses.
    """
    addresses = list(addresses)
    usable = [address for address in addresses if not is_reserved(address)]
    if addresses and not usable:
        raise OSError(f"{host} resolves to a link-local, broadcast or metadata address, which is not used")
    return usable


def _is_reserved(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_unspecified
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
        or any(address in network for network in _NETWORKS)
    )


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yields the IPv4 addresses that an IPv6 address embeds; more than one where its form is ambiguous."""
    number = int(address)
    last = IPv4Address(number & 0xFFFF_FFFF)
    if any(address in network for network in (_MAPPED, _TRANSLATED, _NAT64)):
        yield last
    elif address in _LOCAL_NAT64:
        # The length of the prefix is unknown; the wrong ones mostly yield an address of 0.0.0.0/8.
        forms = [last, *(_rfc6052(number, prefix_bits) for prefix_bits in (48, 56, 64))]
        yield from [form for form in forms if form not in _THIS_HOST] or forms
    elif address in _COMPATIBLE and address != _LOOPBACK:
        yield last
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (number >> 32) & 0xFFFF_FFFF in _ISATAP:
        yield last


def _rfc6052(number: int, prefix_bits: int) -> IPv4Address:
    """Returns the IPv4 address that follows a prefix; bits 64 to 71 are skipped (RFC 6052, section 2.2)."""
    without_gap = (number >> 64 << 56) | (number & (1 << 56) - 1)
    return IPv4Address(without_gap >> (120 - prefix_bits - 32) & 0xFFFF_FFFF)
