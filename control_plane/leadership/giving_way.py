"""Ends a leadership that another control plane can do better: the clock was wrong, or no agent reports."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from control_plane.leadership.leader_elector import LeaderElector
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.steady_clock import SteadyClock

CHECK_S = 5.0
"""Interval (s) of the checks."""

UNHEARD_S = 30.0
"""Time (s) without any report after which a leader gives way. It doubles with each time in a row, up to
MAX_UNHEARD_S, since the other control plane may receive no reports either."""

MAX_UNHEARD_S = 960.0

_log = structlog.get_logger(__name__)


class GivingWay:
    """Compares the clock with the system clock, and follows whether agents report to the leader.

    Args:
        elector: the leadership of this control plane.
        clock: the clock of this control plane.
        fleet: the snapshot of agents' reports.
        has_others: returns whether agents, and another control plane, are registered.
        on_set: called after the clock was set.
    """

    def __init__(
        self,
        elector: LeaderElector,
        clock: SteadyClock,
        fleet: FleetSnapshot,
        has_others: Callable[[], bool],
        on_set: Callable[[], None] = lambda: None,
    ) -> None:
        self._elector = elector
        self._clock = clock
        self._fleet = fleet
        self._has_others = has_others
        self._on_set = on_set
        self._patience_s = UNHEARD_S

    async def tick(self) -> None:
        """Set a clock that is wrong, and end a leadership during which it was, or without reports."""
        behind_s, leads = self._clock.behind_s, self._elector.epoch is not None
        if behind_s:
            # The ages of reports jump with the clock, so that a leader could take all regions for failed.
            _log.warning("the system clock was set", by_s=round(behind_s, 1), led=leads)
            self._elector.step_down()
            self._clock.set()
            self._on_set()
        elif leads and self._unheard_s() <= UNHEARD_S:
            self._patience_s = UNHEARD_S
        elif leads and self._unheard_s() > self._patience_s and self._has_others():
            # Agents ignore a leader whose clock is far ahead, or have no connection to the leader.
            _log.error("no agent reports to this leader, which gives way", for_s=round(self._unheard_s()))
            self._patience_s = min(2 * self._patience_s, MAX_UNHEARD_S)
            self._elector.step_down()

    def _unheard_s(self) -> float:
        """Time (s) since the last report, at most since the beginning of the leadership."""
        now = self._clock()
        ages_s = [now - held.received_at for held in self._fleet.snapshot.agents.values()]
        return min([*ages_s, self._elector.role_age_s])
