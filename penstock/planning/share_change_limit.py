"""Limits on how far shares move in one tick: changes are small unless a region is lost.

The distance between two share tables is total variation: the part of the traffic that moves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

DEADBAND = 0.02
"""Maximum distance (0-1) of a move that is attributed to noise of the demand estimate, and not made."""

MIN_SHARE = 1e-6
"""Shares below this (0-1) are rounding errors and are dropped."""


def moved_share(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The part (0-1) of the traffic that changes its region between two share tables that each sum to 1."""
    return sum(abs(after.get(k, 0.0) - before.get(k, 0.0)) for k in before.keys() | after.keys()) / 2


def step_towards(
    before: Mapping[str, float], target: Mapping[str, float], max_step: float, alive: Container[str]
) -> dict[str, float]:
    """Move from one share table towards another by at most `max_step` of the traffic.

    If a region that has a share can no longer serve, the whole target is applied at once. A move within the deadband is
    not made, unless it removes a region: spillover that has ended must not leave a remainder.

    Args:
        before: shares in force, which sum to 1; if empty, the whole target is applied.
        target: target shares, which sum to 1.
        max_step: the part (0-1) of the traffic that may change its region now.
        alive: regions that can take traffic.
    """
    if not before or any(share > 0.0 and server not in alive for server, share in before.items()):
        return dict(target)
    distance = moved_share(before, target)
    if distance <= DEADBAND and before.keys() <= target.keys():
        return dict(before)
    if distance <= max_step:
        return dict(target)
    part = max_step / distance
    mixed = {
        server: before.get(server, 0.0) + part * (target.get(server, 0.0) - before.get(server, 0.0))
        for server in before.keys() | target.keys()
    }
    return normalised(mixed)


def ramped(shares: Mapping[str, float], limits: Mapping[str, float], candidates: Iterable[str]) -> dict[str, float]:
    """Limit the shares of regions on a failback ramp and give the rest to regions without a limit.

    Args:
        shares: a share table that sums to 1.
        limits: the maximum share (0-1) of each region on a ramp; other regions have no limit.
        candidates: regions that may take the rest if every region in `shares` is limited, best first. If all of them
            are limited, the table is returned unchanged, since a region on its ramp is better than none.
    """
    granted = {server: min(share, limits.get(server, 1.0)) for server, share in shares.items()}
    held_back = sum(shares.values()) - sum(granted.values())
    if held_back <= 0.0:
        return dict(shares)
    unlimited = {server: share for server, share in shares.items() if server not in limits and share > 0.0}
    candidate = next((name for name in candidates if name not in limits), None)
    if not unlimited and candidate is None:
        return dict(shares)
    takers = unlimited if unlimited or candidate is None else {candidate: 1.0}
    total = sum(takers.values())
    for server, part in takers.items():
        granted[server] = granted.get(server, 0.0) + held_back * part / total
    return normalised(granted)


def normalised(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts as shares that sum to 1, without those below MIN_SHARE.

    Raises:
        ZeroDivisionError: every amount is zero.
    """
    total = sum(amounts.values())
    kept = {server: amount for server, amount in amounts.items() if amount / total > MIN_SHARE}
    whole = sum(kept.values())
    return {server: amount / whole for server, amount in kept.items()}
