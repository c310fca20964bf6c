"""Which hosts are this machine: connections to others are encrypted, unless a setting allows plain text (ADR 16)."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, or a name that only ever resolves to one (RFC 6761, section 6.3)."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
