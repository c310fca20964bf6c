"""How much is asked for: arrival rates by model and residency class, smoothed over a few seconds.

An exponentially weighted rate updated once a report: it follows a step in demand within about its time constant and
needs no history. Requests come in as counts, so the hot path pays one increment.
"""

from __future__ import annotations

from math import exp

import msgspec

TIME_CONSTANT_S = 3.0
"""A step in demand shows to 63 % after this long (s); shorter is mostly noise at a few requests a second."""

FORGET_BELOW_PER_S = 0.01
"""A rate that has decayed to this is dropped."""

MAX_CLASSES = 1024
"""Traffic classes followed at once; policy bounds models and classes, this bounds what a mistake in it costs."""


class Rate(msgspec.Struct):
    """One traffic class's arrivals; its owner counts, `settle` turns counts into a rate."""

    regions: tuple[str, ...]
    """Members of the residency class."""
    arrived: int = 0
    """Since the rate was last settled."""
    per_s: float = 0.0

    def settle(self, elapsed_s: float, watched_s: float) -> None:
        """Take what arrived in the last `elapsed_s` seconds into the rate.

        Args:
            watched_s: how long arrivals have been counted at all, in seconds. While that is short, the newest count
                weighs more: an agent that has just started knows its demand at once and not after a few time constants.
        """
        weight = (1.0 - exp(-elapsed_s / TIME_CONSTANT_S)) / (1.0 - exp(-watched_s / TIME_CONSTANT_S))
        self.per_s += weight * (self.arrived / elapsed_s - self.per_s)
        self.arrived = 0
