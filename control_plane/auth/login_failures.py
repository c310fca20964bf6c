"""Failed logins by client address: so many at once, then so many a minute, and meanwhile nobody from there gets in."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

BURST = 20
"""Failures that an address may have at once."""

REFILL_S = 3.0
"""Time (s) after which one more is forgiven."""

MAX_ADDRESSES = 10_000
"""Addresses remembered; beyond it, the one that failed least lately is forgiven."""


class LoginFailures:
    """A bucket of failures for each address (of IPv6: each /64, which is one customer's).

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_until: OrderedDict[str, float] = OrderedDict()
        """When each address's failures are all forgiven."""

    def __len__(self) -> int:
        return len(self._full_until)

    def wait_s(self, address: str) -> int:
        """How long (s) nobody from this address gets in; 0: now."""
        over = self._full_until.get(_network(address), 0.0) - self._clock() - (BURST - 1) * REFILL_S
        return max(0, math.ceil(over))

    def note(self, address: str) -> None:
        """Count a failure."""
        network, now = _network(address), self._clock()
        until = max(now, self._full_until.pop(network, now)) + REFILL_S
        self._full_until[network] = min(until, now + BURST * REFILL_S)
        while len(self._full_until) > MAX_ADDRESSES:
            self._full_until.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return (int(parsed) >> 64).to_bytes(8, "big").hex()
    return str(parsed)
