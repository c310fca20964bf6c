"""The utilisation that pools hold without missing the service objectives, as learned from misses.

An objective that is missed while a pool's slots are busy shows that the target utilisation of the policy is too high
for its engines. The limit is then learned, so that the number of endpoints follows from demand, and does not fall again
as soon as the objective is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.fleet.snapshot import FRESH_S, FadedPool, Snapshot
from penstock.policy.service_objective import ObjectiveReport, Wanted
from penstock.rollout.objective_analysis import counted

MIN_UTILISATION: Final = 0.3
"""Utilisation (0-1) below which more endpoints help no objective, and lowest limit."""

CUT: Final = 0.9
"""Factor of the utilisation at which an objective was missed."""

SETTLE_S: Final = 600.0
"""Minimum time (s) between two cuts besides the cold start: answers are counted over five minutes."""

RELAX_S: Final = 7 * 86_400.0
"""Time (s) in which a limit rises from 0 to 1."""


class _Limit(msgspec.Struct):
    share: float
    cut_at: float
    relaxed_at: float


class UtilisationLimits:
    """Learned limits by (region, model), below the target utilisation of the policy."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, str], _Limit] = {}

    def update(
        self,
        missed: frozenset[tuple[str, str]],
        seen: Mapping[tuple[str, str], FadedPool],
        cold_start_s: Mapping[str, float],
        target: float,
        now: float,
    ) -> dict[tuple[str, str], float]:
        """Return the limits (0-1) that are below `target`.

        Args:
            missed: the (region, model) whose objective is missed.
            seen: the reported pools.
            cold_start_s: cold start (s) by model.
            target: target utilisation (0-1) of the policy.
            now: Unix time (s).
        """
        for limit in self._limits.values():
            limit.share += (now - limit.relaxed_at) / RELAX_S
            limit.relaxed_at = now
        self._limits = {key: limit for key, limit in self._limits.items() if limit.share < target and key in seen}
        for key in missed & seen.keys():
            slots, in_flight = seen[key].report.slots, seen[key].report.in_flight
            used = min(1.0, in_flight / slots) if slots else 0.0
            limit = self._limits.get(key, _Limit(target, float("-inf"), now))
            if used > MIN_UTILISATION and now - limit.cut_at >= SETTLE_S + cold_start_s.get(key[1], 0.0):
                share = max(MIN_UTILISATION, CUT * min(used, limit.share))
                self._limits[key] = _Limit(share, now, now)
        return {key: limit.share for key, limit in self._limits.items()}


def missed_objectives(snapshot: Snapshot, now: float) -> frozenset[tuple[str, str]]:
    """The (region, model) of whose clients' recent answers more were late than the objective and chance permit."""
    rows: dict[tuple[str, Wanted], list[ObjectiveReport]] = {}
    for (region, _), held in snapshot.agents.items():
        if now - held.received_at <= FRESH_S:
            for row in held.report.objectives:
                rows.setdefault((region, row.wanted), []).append(row)
    found = set()
    for (region, wanted), reports in rows.items():
        answers = sum(row.answers for row in reports)
        if counted(reports[0], answers, sum(row.within for row in reports)).is_broken:
            found.add((region, wanted[0]))
    return frozenset(found)
