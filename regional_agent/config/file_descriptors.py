"""The share of the open file descriptors of this process that clients may use.

An agent without free descriptors cannot connect to engines, fails its health checks, and marks engines and peers as
down. Therefore clients are rejected before descriptors run out.
"""

from __future__ import annotations

from typing import NamedTuple

MIN_OWN = 64
"""Minimum reserve for the agent itself: listeners, logs, state, store, Redis, control planes, a few engine probes."""

OWN_PART = 8
"""At least 1/OWN_PART of the limit is reserved, for probes of many engines and for idle connections to engines."""

MAX_FOR_ADMIN = 1024
"""Maximum connections of the admin listener."""


class Shares(NamedTuple):
    """Maximum number of connections of each listener."""

    admin: int
    peer: int
    traffic: int


def shares_of(descriptors: int) -> Shares:
    """Return the shares of clients, peers and operators in a limit of `descriptors`.

    Each proxied request uses two descriptors: the client's and the engine's. Rejected clients use further descriptors
    until the rejection is sent (`Listener.crowded`). Clients get three quarters of the connections for proxied
    requests, peers one quarter.
    """
    left = max(0, descriptors - max(MIN_OWN, descriptors // OWN_PART))
    admin = max(1, min(MAX_FOR_ADMIN, left // 16))
    proxied = int(max(0, left - 2 * admin) / 2.25)
    peer = max(1, proxied // 4)
    return Shares(admin, peer, max(1, proxied - peer))
