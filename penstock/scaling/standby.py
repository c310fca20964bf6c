"""What standby regions take over: while an active region is lost, its demand is ordered in the standby regions first.

The order does not wait until the clients of the lost region have entered elsewhere: the last expected demand of the
lost region counts at once, and as much less of the demand that has grown in the other regions since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.fleet.snapshot import Snapshot
from penstock.health.region_health import RegionState
from penstock.planning.share_moves import Key
from penstock.policy.policy import Policy
from penstock.scaling.replicas import Expected, Need

AWAY: Final = frozenset({RegionState.FAILED, RegionState.DRAINING, RegionState.RECOVERING})
"""States of an active region in which standby regions take over, the failback ramp included."""


class Takeover(msgspec.Struct, frozen=True):
    """How long standby regions took to take over from lost regions."""

    lost: tuple[str, ...]
    """The lost active regions, by name."""
    began_at: float
    """Unix time (s) of the first order of endpoints."""
    ready_after_s: float | None = None
    """Time (s) until the standby regions had all endpoints ready that the loss asks for, those of a larger order that
    followed included; null: not yet."""
    ended_after_s: float | None = None
    """Time (s) until the lost regions were back, their failback ramp included; null: not yet."""


class Displaced(NamedTuple):
    """The expected demand, as it counts while regions are lost."""

    expected: Mapping[Key, Expected]
    lost: frozenset[tuple[str, str]]
    """Every (region, model) that is lost; its demand counts in standby regions."""


class StandbyWatch:
    """Follows the active regions while its control plane leads."""

    def __init__(self) -> None:
        self._before: Mapping[Key, Expected] = {}
        """The expected demand of the last moment without a lost region."""
        self._had: frozenset[tuple[str, str]] = frozenset()
        """Every (region, model) of that moment that had endpoints."""
        self._lost: frozenset[str] = frozenset()
        """The lost active regions at the last step."""
        self._ordered: Mapping[tuple[str, str], int] = {}
        """The order (endpoints by region and model) that was met when the takeover was last reported as ready."""
        self.takeover: Takeover | None = None
        """The current takeover, or the last one; None if there was none."""

    def is_due(self, policy: Policy, snapshot: Snapshot) -> bool:
        """Whether other active regions are lost than at the last step, so that standby regions have another order."""
        return _has_standby(policy) and _lost(policy, snapshot) != self._lost

    def step(
        self,
        policy: Policy,
        snapshot: Snapshot,
        pools: Collection[tuple[str, str]],
        expected: Mapping[Key, Expected],
        now: float,
    ) -> Displaced:
        """The demand as it counts at `now` (Unix time, s).

        Args:
            policy: the roles of the regions.
            snapshot: the states of the regions.
            pools: every (region, model) that has endpoints.
            expected: the expected demand.
        """
        lost = self._lost = _lost(policy, snapshot)
        if not lost or not _has_standby(policy):
            self._before, self._had = expected, frozenset(pools)
            self._end(now)
            return Displaced(expected, frozenset())
        if self.takeover is None or self.takeover.ended_after_s is not None:
            self.takeover = Takeover(tuple(sorted(lost)), now)
        gone = frozenset(key for key in self._had if key[0] in lost)
        return Displaced(self._displaced(policy, expected, gone), gone)

    def observe(self, needed: Mapping[tuple[str, str], Need], ready: Mapping[tuple[str, str], int], now: float) -> None:
        """Record whether the endpoints are ready that a takeover needs.

        Args:
            needed: the needs, by region and model.
            ready: the ready endpoints, by region and model.
        """
        known = self.takeover
        if known is None or known.ended_after_s is not None:
            return
        ordered = {key: need.endpoints for key, need in needed.items() if need.lost in known.lost}
        if known.ready_after_s is not None and all(self._ordered.get(key, 0) >= ordered[key] for key in ordered):
            return
        is_ready = bool(ordered) and all(ready.get(key, 0) >= ordered[key] for key in ordered)
        self._ordered = ordered if is_ready else {}
        self.takeover = msgspec.structs.replace(known, ready_after_s=now - known.began_at if is_ready else None)

    def _end(self, now: float) -> None:
        known = self.takeover
        if known is not None and known.ended_after_s is None:
            self.takeover = msgspec.structs.replace(known, ended_after_s=now - known.began_at)

    def _displaced(
        self, policy: Policy, expected: Mapping[Key, Expected], gone: frozenset[tuple[str, str]]
    ) -> dict[Key, Expected]:
        """The demand of the lost regions as before, and the other demand without what has moved there."""
        homed = {key: row for key, row in self._before.items() if (self._home(policy, key, row), key.model) in gone}
        found = {key: _at_least(row, expected.get(key)) for key, row in homed.items()}
        for model in {key.model for key in expected}:
            others = {key: row for key, row in expected.items() if key.model == model and key not in homed}
            now_per_s = _total(others.values())
            before_per_s = _total(row for key, row in self._before.items() if key.model == model and key not in homed)
            moved = min(
                max(0.0, now_per_s - before_per_s), _total(row for key, row in homed.items() if key.model == model)
            )
            part = 1.0 - moved / now_per_s if now_per_s > 0.0 else 1.0
            found |= {
                key: Expected(row.requests_per_s * part, row.regions, row.measured_per_s * part)
                for key, row in others.items()
            }
        return found

    def _home(self, policy: Policy, key: Key, row: Expected) -> str:
        servers = frozenset(region for region, model in self._had if model == key.model) & row.regions
        if not servers or key.origin not in policy.regions:
            return ""
        return policy.nearest_first(key.origin, servers & policy.regions.keys())[0]


def _lost(policy: Policy, snapshot: Snapshot) -> frozenset[str]:
    regions = policy.regions.items()
    return frozenset(name for name, region in regions if not region.is_standby and snapshot.state(name) in AWAY)


def _has_standby(policy: Policy) -> bool:
    return any(region.is_standby for region in policy.regions.values())


def _at_least(row: Expected, now: Expected | None) -> Expected:
    # Without measured demand: after the takeover, no peak keeps endpoints in the standby region.
    per_s, regions = (0.0, row.regions) if now is None else (now.requests_per_s, now.regions)
    return Expected(max(row.requests_per_s, per_s), regions)


def _total(rows: Iterable[Expected]) -> float:
    return sum(row.requests_per_s for row in rows)
