"""Expected wait of a request in a pool: the estimate that spillover compares between regions."""

from __future__ import annotations

from collections.abc import Iterable

MEMORY_COMPLETIONS = 100
"""Number of completions that the mean service time remembers; up to this number, it is the plain mean. Service times
differ by a factor of a hundred, and after a burst the long requests end last, so with a shorter memory the region would
appear slow."""


def expected_wait_s(in_flight: int, slots: int, service_s: float) -> float:
    """Returns the time until a slot is free for one more request, in seconds.

    With every slot busy, one becomes free each `service_s / slots` on average, and requests queued earlier take the
    first ones. Infinite for a pool without slots, which never starts a request.
    """
    if slots <= 0:
        return float("inf")
    return max(0, in_flight - slots + 1) * service_s / slots


def headroom_slots(in_flight: int, slots: int, target_utilisation: float) -> int:
    """Returns the number of requests that a pool may accept up to its target utilisation; never negative."""
    return max(0, int(slots * target_utilisation) - in_flight)


def mean_with(mean_s: float, completions: int, service_s: float) -> float:
    """Returns the mean service time (s) after one more completion; the initial prior counts as one completion."""
    remembered = completions + 2 if completions < MEMORY_COMPLETIONS - 2 else MEMORY_COMPLETIONS
    return mean_s + (service_s - mean_s) / remembered


def pool_service_s(endpoints: Iterable[tuple[int, float]], prior_s: float) -> float:
    """Returns the mean service time (s) of a pool from each endpoint's slots and mean: the turnover time of its slots.

    Slots are weighted by the rate at which they become free, so that a slow half does not slow down a fast half.

    Args:
        prior_s: returned for a pool without slots.
    """
    slots, per_s = 0, 0.0
    for count, service_s in endpoints:
        slots += count
        per_s += count / max(service_s, 1e-6)
    return slots / per_s if per_s > 0.0 else prior_s
