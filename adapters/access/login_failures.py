"""Limit of failed logins per client address: a burst, then a constant rate. A limited address cannot log in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from penstock.admission.client_network import client_network
from penstock.admission.leaky_buckets import LeakyBuckets

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
        self._buckets = LeakyBuckets(burst, refill_s, MAX_ADDRESSES)

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, address: str) -> int:
        """Return the time (s) until the address may log in; 0: now."""
        return math.ceil(self._buckets.wait_s(client_network(address), self._clock()))

    def note(self, address: str) -> None:
        """Count a failed login."""
        self._buckets.add(client_network(address), self._clock())
