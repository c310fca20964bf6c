"""Exponential backoff with jitter, so that the processes of a fleet do not retry in step."""

from __future__ import annotations

from random import Random


def full_jitter_s(attempt: int, *, base_s: float, cap_s: float, rng: Random) -> float:
    """Return a wait time (s) that is drawn uniformly from 0 to the exponential bound.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/ ("Full Jitter").

    Args:
        attempt: number of consecutive failures before the current one, from 0.
        base_s: maximum of the first wait, in seconds.
        cap_s: maximum of every wait, in seconds.
        rng: source of the jitter.
    """
    # 2.0**attempt overflows near 1024, so the exponent is limited; the bound reaches any cap in use long before 32.
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** min(attempt, 32)))
