"""How far shares may move at once: a change is small unless it is an emergency.

Distance between two share tables is total variation: the part of the traffic that would move.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

DEADBAND = 0.02
"""A smaller move than this is noise in the demand estimate, and stays where it was."""

MIN_SHARE = 1e-6
"""A smaller share than this is what rounding left over, not traffic."""


def moved_share(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The part (0-1) of the traffic that changes its server between two share tables that each sum to 1."""
    return sum(abs(after.get(k, 0.0) - before.get(k, 0.0)) for k in before.keys() | after.keys()) / 2


def step_towards(
    before: Mapping[str, float], target: Mapping[str, float], max_step: float, alive: Container[str]
) -> dict[str, float]:
    """Move from one share table towards another by at most `max_step` of the traffic.

    A server that had a share and is no longer `alive` is an emergency: the target is taken whole. A move within the
    deadband is not made, unless it takes away the last of a server's share: spillover that is over must end.

    Args:
        before: shares in force, which sum to 1; empty where there are none, and then the target is taken whole.
        target: shares wanted, which sum to 1.
        max_step: the part (0-1) of the traffic that may change its server now.
        alive: servers that can take traffic.
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
    return without_crumbs(mixed)


def ramped(shares: Mapping[str, float], weights: Mapping[str, float], heirs: Iterable[str]) -> dict[str, float]:
    """Hold back what a server's failback ramp does not grant it yet, and give that to whole servers.

    Args:
        shares: a share table that sums to 1.
        weights: the most (0-1) of it that a server on its ramp may have; one that is not here is whole.
        heirs: servers that may take what nobody in `shares` can, best first. Without any the table stays as it is:
            a returning region is better than none.
    """
    granted = {server: min(share, weights.get(server, 1.0)) for server, share in shares.items()}
    held_back = sum(shares.values()) - sum(granted.values())
    if held_back <= 0.0:
        return dict(shares)
    whole = {server: share for server, share in shares.items() if server not in weights and share > 0.0}
    heir = next((name for name in heirs if name not in weights), None)
    if not whole and heir is None:
        return dict(shares)
    takers = whole if whole or heir is None else {heir: 1.0}
    total = sum(takers.values())
    for server, part in takers.items():
        granted[server] = granted.get(server, 0.0) + held_back * part / total
    return without_crumbs(granted)


def without_crumbs(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts as shares that sum to 1, without those too small to mean anything.

    Raises:
        ZeroDivisionError: every amount is zero, so that there is nothing to share.
    """
    total = sum(amounts.values())
    kept = {server: amount for server, amount in amounts.items() if amount / total > MIN_SHARE}
    whole = sum(kept.values())
    return {server: amount / whole for server, amount in kept.items()}
