"""The address of an engine or a peer agent, and the syntax of the host in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NUMBER_LAST = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")
"""Resolvers parse a name that ends in a number as an IPv4 address in another notation."""

_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?")


class Address(NamedTuple):
    """Host and port that a server listens on."""

    host: str
    port: int
    tls: bool = False
    """Whether connections to the server use TLS."""
    region: str = ""
    """Region of the agent that listens at the address; empty for other servers."""

    @classmethod
    def parse(cls, url: str, region: str = "") -> Address:
        """Return the address in `http://host:port[/...]`, or https.

        Args:
            region: region of the agent that listens at the address; empty for other servers.

        Raises:
            ValueError: `url` is not of that form.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not is_host(parts.hostname or "") or not parts.port:
            raise ValueError(f"{url!r} is not of the form http://host:port (or https)")
        return cls(str(parts.hostname), parts.port, parts.scheme == "https", region)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """Whether `text` is an IP address or a DNS name (RFC 1123, plus `_`, which some networks use).

    A malformed name is rejected when the configuration is read, not at the first look-up.
    """
    if _NAME.fullmatch(text) and not _NUMBER_LAST.fullmatch(text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


_METADATA: Final = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Metadata services of clouds (Alibaba, Oracle, AWS) whose addresses are not link-local."""


def is_reserved(host: str) -> bool:
    """Whether `host` is an address that no engine has: unspecified, multicast, link-local, or a metadata service.

    Metadata services return credentials to every process of a virtual machine; most have a link-local address.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or IPv6Address(int(address))
    return address.is_unspecified or address.is_multicast or address.is_link_local or address in _METADATA


def without_reserved(host: str, addresses: Iterable[str]) -> list[str]:
    """Return the addresses of a DNS name, without reserved addresses.

    Raises:
        OSError: the name resolves only to reserved addresses.
    """
    addresses = list(addresses)
    usable = [address for address in addresses if not is_reserved(address)]
    if addresses and not usable:
        raise OSError(f"{host} resolves to a link-local or metadata address, which is not used")
    return usable
