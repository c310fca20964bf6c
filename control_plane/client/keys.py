"""Where things are in the store. The version in the root lets a new layout stand beside an old one."""

from __future__ import annotations

ROOT = "/penstock/v1/"

LEADER = ROOT + "leader"
"""Held with the leader's lease; its create revision is the fencing epoch."""

CONTROL_PLANES = ROOT + "control-planes/"
AGENTS = ROOT + "agents/"
POLICIES = ROOT + "policies/"
PLANS = ROOT + "plans/"


def control_plane(name: str) -> str:
    """A control plane's registration; lives as long as its lease."""
    return CONTROL_PLANES + name


def agent(region: str, name: str) -> str:
    """An agent's registration; lives as long as its lease."""
    return f"{AGENTS}{region}/{name}"


def policy(digest: str) -> str:
    """A compiled policy, immutable: the key is the digest of the content."""
    return POLICIES + digest


def plan(region: str) -> str:
    """The one key that tells a region what to do; names its policy by digest."""
    return PLANS + region
