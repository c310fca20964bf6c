"""Slow start: a new endpoint's weight grows from a tenth to one, so that requests do not herd onto an idle, cold
endpoint.

This is Envoy's slow start (docs/root/intro/arch_overview/upstream/load_balancing/slow_start.rst) with its default
minimum weight and a linear ramp, in steps, so that endpoints added at about the same time stay equal and ties between
them are still broken at random.
"""

from __future__ import annotations

from math import ceil

STEPS = 10
"""Number of weights that a ramp passes through; the lowest is 1 / STEPS."""

STILL_WARM_S = 3.0
"""Minimum absence (s) after which a new warm-up begins: caches and compiled graphs survive a shorter loss of the
connection."""


def warm_up_weight(since_s: float, warm_up_s: float) -> float:
    """The weight (0-1] of an endpoint that has been able to receive requests for `since_s` seconds.

    Args:
        since_s: time in service; never negative.
        warm_up_s: length of the ramp; 0 for none.
    """
    if since_s >= warm_up_s:
        return 1.0
    return max(1, ceil(STEPS * since_s / warm_up_s)) / STEPS


def warm_since(was_warm_since: float, out_since: float, now: float) -> float:
    """Start (s) of the warm-up of an endpoint that returns at `now`: after a short absence, the previous one.

    Args:
        was_warm_since: the previous start of its warm-up (s); infinite if there was none.
        out_since: start of the absence, in seconds.
        now: the present time (s), by the same clock.
    """
    return was_warm_since if now - out_since < STILL_WARM_S and was_warm_since <= out_since else now
