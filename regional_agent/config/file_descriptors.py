"""How many files and sockets this process may have open, and what part of them clients may take.

An agent that has none left serves nobody: it cannot connect to engines, is taken for dead by whoever probes it, and
takes engines and peers for dead itself. So clients are turned away before that.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

MIN_OWN = 64
"""Descriptors kept for ourselves: listeners, logs, state, the store, Redis, control planes, probes of a few engines."""

OWN_PART = 8
"""With many descriptors, one in so many is: probes of many engines, and connections to engines that are kept idle."""

MAX_FOR_ADMIN = 1024

ENOUGH = 1 << 20
"""Linux lets no process have more, unless it is told to."""


class Shares(NamedTuple):
    """Connections that each face may have at once."""

    admin: int
    peer: int
    traffic: int


def raise_limit() -> int:
    """Take as many descriptors as this process may have without being privileged, up to ENOUGH; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def shares_of(descriptors: int) -> Shares:
    """What clients, peers and operators may take of so many descriptors.

    Each request that is carried takes two: its client's, and its engine's. Those who are turned away take some more for
    as long as it takes to tell them (`Listener.crowded`). Clients get three quarters.
    """
    left = max(0, descriptors - max(MIN_OWN, descriptors // OWN_PART))
    admin = max(1, min(MAX_FOR_ADMIN, left // 16))
    carried = int(max(0, left - 2 * admin) / 2.25)
    peer = max(1, carried // 4)
    return Shares(admin, peer, max(1, carried - peer))
