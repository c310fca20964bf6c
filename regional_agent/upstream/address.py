"""The address of an engine or a peer agent, and the syntax of the host in it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.wire.reserved_addresses import NUMBER_LAST

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
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
    if _NAME.fullmatch(text) and not NUMBER_LAST.fullmatch(text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
