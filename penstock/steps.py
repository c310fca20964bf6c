"""How far shares may move at once: a change is small unless it is an emergency.

Distance between two share tables is total variation: the part of the traffic that would move.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

DEADBAND = 0.02
"""A smaller move than this is noise in the demand estimate, and stays where it was."""

SMALLEST_SHARE = 1e-6
"""A smaller share than this is what rounding left over, not traffic."""


def moved_share(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The part (0-1) of the traffic that changes its server between two share tables that each sum to 1."""
    return sum(abs(after.get(k, 0.0) - before.get(k, 0.0)) for k in before.keys() | after.keys()) / 2


def step_towards(
    before: Mapping[str, float], target: Mapping[str, float], largest_step: float, alive: Container[str]
) -> dict[str, float]:
    """Move from one share table towards another by at most `largest_step` of the traffic.

    A server that had a share and is no longer `alive` is an emergency: the target is taken whole. A move within the
    deadband is not made, unless it takes away the last of a server's share: spillover that is over must end.

    Args:
        before: shares in force, which sum to 1; empty where there are none, and then the target is taken whole.
        target: shares wanted, which sum to 1.
        largest_step: the part (0-1) of the traffic that may change its server now.
        alive: servers that can take traffic.
    """
    if not before or any(share > 0.0 and server not in alive for server, share in before.items()):
        return dict(target)
    distance = moved_share(before, target)
    if distance <= DEADBAND and before.keys() <= target.keys():
        return dict(before)
    if distance <= largest_step:
        return dict(target)
    part = largest_step / distance
    mixed = {
        server: before.get(server, 0.0) + part * (target.get(server, 0.0) - before.get(server, 0.0))
        for server in before.keys() | target.keys()
    }
    return without_crumbs(mixed)


def without_crumbs(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts as shares that sum to 1, without those too small to mean anything.

    Raises:
        ZeroDivisionError: every amount is zero, so that there is nothing to share.
    """
    total = sum(amounts.values())
    kept = {server: amount for server, amount in amounts.items() if amount / total > SMALLEST_SHARE}
    whole = sum(kept.values())
    return {server: amount / whole for server, amount in kept.items()}
