"""The address of an engine or a peer agent, and the syntax of the host in it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

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
    server_name: str = ""
    """Name that the TLS handshake requests (SNI, RFC 6066), by which a gateway selects the server; empty for `host`."""

    @classmethod
    def parse(cls, url: str, region: str = "") -> Address:
        """Return the address in `http://host:port[/...]`, or https; `?server_name=NAME` sets the name of the handshake.

        Args:
            region: region of the agent that listens at the address; empty for other servers.

        Raises:
            ValueError: `url` is not of that form.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not is_host(parts.hostname or "") or not parts.port:
            raise ValueError(f"{url!r} is not of the form http://host:port (or https)")
        names = [name for key, name in parse_qsl(parts.query, keep_blank_values=True) if key == "server_name"]
        name = names[-1] if names else ""
        if names and not (parts.scheme == "https" and is_server_name(name)):
            raise ValueError(f"{url!r}: server_name must be a DNS name, of an https URL")
        return cls(str(parts.hostname), parts.port, parts.scheme == "https", region, name)

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_server_name(text: str) -> bool:
    """Whether `text` is a DNS name that a TLS handshake can request (RFC 6066): no IP address."""
    return _NAME.fullmatch(text) is not None and NUMBER_LAST.fullmatch(text) is None and not text.endswith(".")


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
