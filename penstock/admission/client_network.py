"""The keys by which limits count client addresses: the address, and the network around it."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

_MAX_CHARS = 64


def client_network(address: str) -> str:
    """Returns the IPv4 address, or the /64 network of an IPv6 address: a household or host usually has a whole /64.

    Args:
        address: as the socket returns it; an IPv4-mapped IPv6 address counts as IPv4. Text that is not an address
            counts as its first _MAX_CHARS characters.
    """
    parsed = _ipv6(address)
    return parsed if isinstance(parsed, str) else f"{int(parsed) >> 64:016x}"


def client_prefix(address: str) -> str:
    """Returns the /24 network of an IPv4 address, or the /48 of an IPv6 address: what one site or provider assigns.

    Args:
        address: as for `client_network`; text that is not an address is a prefix of its own.
    """
    parsed = _ipv6(address)
    if isinstance(parsed, str):
        octets, dot, _ = parsed.rpartition(".")
        return f"{octets}." if dot else parsed
    return f"{int(parsed) >> 80:012x}"


def _ipv6(address: str) -> IPv6Address | str:
    """Returns an IPv6 address, or the text of another one."""
    if ":" not in address:
        return address[:_MAX_CHARS]
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_MAX_CHARS]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return parsed if parsed.ipv4_mapped is None else str(parsed.ipv4_mapped)
