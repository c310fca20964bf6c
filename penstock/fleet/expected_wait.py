"""How long a request would wait here: the estimate that spillover compares between regions."""

from __future__ import annotations

from collections.abc import Iterable

MEMORY_COMPLETIONS = 100
"""A mean service time remembers about this many completions; until there are as many, it is their plain mean. Requests
differ by a hundred to one, and after a burst the long ones end last: a shorter memory takes them for a slow region."""


def expected_wait_s(in_flight: int, slots: int, service_s: float) -> float:
    """Time until a slot is free for one more request, in seconds.

    With every slot busy, one frees each `service_s / slots` on average, and those queued before take the first ones.
    Nothing that runs means infinity: a pool without slots never starts anything.
    """
    if slots <= 0:
        return float("inf")
    return max(0, in_flight - slots + 1) * service_s / slots


def headroom_slots(in_flight: int, slots: int, target_utilisation: float) -> int:
    """How many more requests a pool may take before it passes its target; never negative."""
    return max(0, int(slots * target_utilisation) - in_flight)


def mean_with(mean_s: float, completions: int, service_s: float) -> float:
    """The mean service time (s) after one more completion; the prior that it began with counts as one of them."""
    remembered = completions + 2 if completions < MEMORY_COMPLETIONS - 2 else MEMORY_COMPLETIONS
    return mean_s + (service_s - mean_s) / remembered


def pool_service_s(endpoints: Iterable[tuple[int, float]], prior_s: float) -> float:
    """Mean service time (s) of a pool from each endpoint's slots and own mean: the time in which its slots turn over.

    Slots weigh by the rate they free at, so that a fast half is not slowed down by a slow one; `prior_s` stands for a
    pool that has none.
    """
    slots, per_s = 0, 0.0
    for count, service_s in endpoints:
        slots += count
        per_s += count / max(service_s, 1e-6)
    return slots / per_s if per_s > 0.0 else prior_s
