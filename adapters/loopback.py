"""Detects loopback hosts: connections to other hosts are encrypted, unless a setting allows plain text (ADR 16)."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, or a name that always resolves to one (RFC 6761, section 6.3)."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def is_protected(url: str) -> bool:
    """Whether requests to a URL are protected from other machines: https, or http on a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
