"""The key by which limits count client addresses."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

_MAX_CHARS = 64


def client_network(address: str) -> str:
    """Returns the IPv4 address, or the /64 network of an IPv6 address: a household or host usually has a whole /64.

    Args:
        address: as the socket returns it; an IPv4-mapped IPv6 address counts as IPv4. Text that is not an address
            counts as its first _MAX_CHARS characters.
    """
    if ":" not in address:
        return address[:_MAX_CHARS]
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_MAX_CHARS]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> 64:016x}"
