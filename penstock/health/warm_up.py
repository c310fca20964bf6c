"""How much a newcomer gets: its weight grows from a tenth to whole, so that nobody herds onto an idle, cold endpoint.

This is Envoy's slow start (docs/root/intro/arch_overview/upstream/load_balancing/slow_start.rst) with its default
least weight and a straight ramp, in steps, so that endpoints which came at about the same time stay equal and ties
between them are still broken at random.
"""

from __future__ import annotations

from math import ceil

STEPS = 10
"""Weights that a ramp passes through; the least one is 1 / STEPS."""

STILL_WARM_S = 3.0
"""One that was out for less time (s) is as warm as it was: caches and compiled graphs outlive a lost connection."""


def warm_up_weight(since_s: float, warm_up_s: float) -> float:
    """The weight (0-1] of an endpoint that may take requests since `since_s` seconds.

    Args:
        since_s: how long it has been in; never negative.
        warm_up_s: how long the ramp takes; 0 has none.
    """
    if since_s >= warm_up_s:
        return 1.0
    return max(1, ceil(STEPS * since_s / warm_up_s)) / STEPS


def warm_since(was_warm_since: float, out_since: float, now: float) -> float:
    """Since when an endpoint that comes back at `now` has been warming up: after a blink no ramp begins anew.

    Args:
        was_warm_since: from when it counted before (s); infinite if it never was in.
        out_since: when it went out, in seconds.
        now: the same clock.
    """
    return was_warm_since if now - out_since < STILL_WARM_S and was_warm_since <= out_since else now
