"""Which clients count as one: those of one IPv4 address, or of one /64 of IPv6, which is what one household has."""

from __future__ import annotations

import socket

_NETWORK_BYTES = 8
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def counted_as(address: str) -> str | bytes:
    """What the connections of an address are counted by.

    Args:
        address: as the socket gives it; IPv4 in IPv6 clothes is IPv4.
    """
    if ":" not in address:
        return address
    try:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return address
    if packed.startswith(_IPV4_IN_IPV6):
        return socket.inet_ntop(socket.AF_INET, packed[len(_IPV4_IN_IPV6) :])
    return packed[:_NETWORK_BYTES]
