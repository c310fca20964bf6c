"""Limit of failed logins per client address: a burst, then a constant rate. A limited address cannot log in."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from penstock.admission.client_network import client_network

BURST = 20
"""Number of failures after which an address is limited."""

REFILL_S = 3.0
"""Time (s) after which one failure is forgiven."""

MAX_ADDRESSES = 10_000
"""Maximum number of tracked addresses; above that, the address whose last failure is the oldest is dropped."""


class LoginFailures:
    """A leaky bucket of failures for each address. IPv6 addresses are grouped by /64, the prefix of one customer.

    Args:
        clock: monotonic time (s).
        burst: number of failures after which an address is limited.
        refill_s: time (s) after which one failure is forgiven.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, burst: int = BURST, refill_s: float = REFILL_S
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._refill_s = refill_s
        self._full_until: OrderedDict[str, float] = OrderedDict()
        """Time (s) at which all failures of an address are forgiven, by address or IPv6 prefix."""

    def __len__(self) -> int:
        return len(self._full_until)

    def wait_s(self, address: str) -> int:
        """Return the time (s) until the address may log in; 0: now."""
        over = self._full_until.get(client_network(address), 0.0) - self._clock() - (self._burst - 1) * self._refill_s
        return max(0, math.ceil(over))

    def note(self, address: str) -> None:
        """Count a failed login."""
        network, now = client_network(address), self._clock()
        until = max(now, self._full_until.pop(network, now)) + self._refill_s
        self._full_until[network] = min(until, now + self._burst * self._refill_s)
        while len(self._full_until) > MAX_ADDRESSES:
            self._full_until.popitem(last=False)
