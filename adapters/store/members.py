"""The registrations of control planes and agents in the store, with their addresses."""

from __future__ import annotations

import re

import msgspec

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


def named(name: str) -> str:
    """Return the name of a region or process if it is valid in keys of the store.

    Raises:
        ValueError: the name is not valid.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is no name; use 1 to 63 lower-case letters, digits, dots, underscores and hyphens, "
            "with a letter or digit at both ends"
        )
    return name


class Member(msgspec.Struct, frozen=True):
    """A control plane: value of its registration, and of the leader key."""

    name: str
    url: str
    """Base URL of the control plane's HTTP API."""


class AgentMember(msgspec.Struct, frozen=True):
    """An agent: value of its registration."""

    region: str
    name: str
    peer_url: str
    """Base URL for forwarded requests and probes from agents of other regions."""
    admin_url: str
    """Base URL of the agent's metrics and status."""
    epoch: int
    """Fencing epoch of the agent; a restarted agent has a larger one."""
    certificate: str = ""
    """Certificate (DER in base64), with which other agents accept route contexts before the agent's first probe."""
    server_name: str = ""
    """Name that other regions' TLS handshakes request, so that a gateway at `peer_url` selects this agent; empty for
    the host of `peer_url`."""

    @property
    def peer_address(self) -> str:
        """`peer_url` with the server name, if any, as `Address.parse` reads it."""
        return f"{self.peer_url}?server_name={self.server_name}" if self.server_name else self.peer_url
