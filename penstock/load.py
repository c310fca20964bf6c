"""How long a request would wait here: the estimate that spillover compares between regions."""

from __future__ import annotations


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
