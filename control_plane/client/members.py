"""Who is registered in the store, and where they are reached."""

from __future__ import annotations

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A control plane, as it registers itself and as the leader key names it."""

    name: str
    url: str
    """Base URL of its HTTP API."""


class AgentMember(msgspec.Struct, frozen=True):
    """An agent, as it registers itself."""

    region: str
    name: str
    peer_url: str
    """Base URL where other regions' agents reach it: forwarded requests and probes."""
    admin_url: str
    """Base URL of its metrics and status."""
    epoch: int
    """Which incarnation of that name this is; a restarted agent has a larger one."""
