"""Arrival rates by model and residency class, smoothed over a few seconds.

An exponentially weighted rate, updated once per report: it follows a step in demand within about its time constant and
needs no history. The hot path increments a counter per request.
"""

from __future__ import annotations

from math import exp
from typing import Final

TIME_CONSTANT_S: Final = 3.0
"""Time constant (s) of the rate, after which the rate has followed 63 % of a step in demand. With a shorter time, the
rate is mostly noise at a few requests per second."""

FORGET_BELOW_PER_S: Final = 0.01
"""Rate (1/s) below which a decayed rate is dropped."""

MAX_CLASSES: Final = 1024
"""Maximum number of traffic classes tracked at once. The policy bounds models and classes; this limit bounds the cost
of a mistake in the policy."""


class ArrivalRate:
    """Arrival rates of one traffic class. The owner increments the counts; `settle` converts them into rates."""

    def __init__(self, regions: tuple[str, ...]) -> None:
        """`regions` are the members of the residency class."""
        self.regions = regions
        self.arrived = 0
        """Requests with a priority since the last call of `settle`."""
        self.per_s = 0.0
        self.batch_arrived = 0
        """Batch requests since the last call of `settle`."""
        self.batch_per_s = 0.0

    def settle(self, elapsed_s: float, watched_s: float) -> None:
        """Updates the rate with the requests that arrived in the last `elapsed_s` seconds.

        Args:
            watched_s: time since counting began, in seconds. While it is short, the newest count weighs more, so that
                an agent that has just started reports its demand at once rather than after several time constants.
        """
        weight = (1.0 - exp(-elapsed_s / TIME_CONSTANT_S)) / (1.0 - exp(-watched_s / TIME_CONSTANT_S))
        self.per_s += weight * (self.arrived / elapsed_s - self.per_s)
        self.batch_per_s += weight * (self.batch_arrived / elapsed_s - self.batch_per_s)
        self.arrived = self.batch_arrived = 0
