"""Division of an amount among agents by demand: max-min fairness, the rest in proportion.

Source: Bertsekas, Gallager: Data Networks, 2nd edition, section 6.5.2 (max-min flow control).
"""

from __future__ import annotations

from collections.abc import Sequence


def water_filling(total: float, demands: Sequence[float]) -> list[float]:
    """Return the part of each agent: no more than its demand, and no agent with unmet demand has less than another.

    Args:
        total: amount to divide.
        demands: amounts wanted.
    """
    parts = [0.0] * len(demands)
    left, waiting = total, len(demands)
    for index in sorted(range(len(demands)), key=demands.__getitem__):
        parts[index] = min(demands[index], left / waiting)
        left -= parts[index]
        waiting -= 1
    return parts


def shares(total: float, demands: Sequence[float], earlier: Sequence[float]) -> list[float]:
    """Return the share of each agent of the whole; the sum is 1.

    What exceeds the demand is divided in proportion to it. Without any demand, shares stay as they were, since a tenant
    probably continues where it was served last.

    Args:
        demands: amounts wanted.
        earlier: the shares in force.
    """
    wanted = sum(demands)
    if wanted <= 0.0:
        known = sum(earlier)
        return [share / known for share in earlier] if known > 0.0 else [1.0 / len(demands)] * len(demands)
    if wanted <= total:
        return [demand / wanted for demand in demands]
    return [part / total for part in water_filling(total, demands)]
