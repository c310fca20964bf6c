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
    certificate: str = ""
    """DER in base64. Other agents accept this agent's route contexts from the start, before it has probed them."""
