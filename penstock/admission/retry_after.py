"""When a refused client should retry."""

from __future__ import annotations

from math import ceil
from random import Random

from penstock.policy.kinds.models import DEFAULT_MAX_WAIT_S

MIN_RETRY_S = 1.0
"""Minimum Retry-After (s); also used if the time to retry is unknown."""

MAX_RETRY_S = 120.0
"""Maximum Retry-After (s), before the retries are spread."""

MIN_SPREAD_S = 2
"""Minimum interval (s) over which the retries of clients that were refused together are spread."""

MAX_DIGITS = 9
"""Maximum number of digits of a Retry-After that is read."""

MAX_SPREAD_S = 60
"""Maximum such interval (s): the end of a day or month is not postponed by hours."""


def retry_after_s(wait_s: float, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> float:
    """Return the time (s) after which a refused client should retry: when the wait has fallen to half of the maximum.

    The result is between MIN_RETRY_S and MAX_RETRY_S.

    Args:
        wait_s: present wait (s) of one more request.
        max_wait_s: maximum wait (s) of a request.
    """
    return max(MIN_RETRY_S, min(wait_s - max_wait_s / 2, MAX_RETRY_S))


def stated_retry_after_s(value: bytes) -> float:
    """Return the time (s) that a Retry-After states; 0 for none, and for a date."""
    return float(value) if value.isdigit() and len(value) <= MAX_DIGITS else 0.0


def spread_retry_after_s(wait_s: float, rng: Random) -> int:
    """Return the Retry-After of a refused client, in whole seconds, spread at random.

    Clients that are refused together would retry together and be refused again, so their retries are spread evenly over
    an interval of half of `wait_s`, at least MIN_SPREAD_S and at most MAX_SPREAD_S.

    Args:
        wait_s: minimum time until the retry, in seconds.
    """
    earliest_s = ceil(max(MIN_RETRY_S, wait_s))
    return earliest_s + rng.randrange(max(MIN_SPREAD_S, min(ceil(earliest_s / 2), MAX_SPREAD_S)) + 1)
