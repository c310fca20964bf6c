"""Ends a leadership that another control plane can do better: the clock is or was wrong, or no agent reports."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog

from control_plane.leadership.clock_check import ClockCheck
from control_plane.leadership.leader_elector import LeaderElector
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.steady_clock import SteadyClock
from penstock.leadership.giving_way import MIN_PATIENCE_S, judge

CHECK_S = 5.0
"""Interval (s) of the checks."""

_log = structlog.get_logger(__name__)


class GivingWay:
    """Compares the clock with the system clock, and follows whether agents report to the leader.

    Args:
        elector: the leadership of this control plane.
        clock: the clock of this control plane.
        fleet: the snapshot of agents' reports.
        clocks: compares the clock with those of agents.
        has_others: returns whether agents, and another control plane, are registered.
        on_set: called after the clock was set.
    """

    def __init__(
        self,
        elector: LeaderElector,
        clock: SteadyClock,
        fleet: FleetSnapshot,
        clocks: ClockCheck,
        has_others: Callable[[], bool],
        on_set: Callable[[], None] = lambda: None,
    ) -> None:
        self._elector = elector
        self._clock = clock
        self._fleet = fleet
        self._clocks = clocks
        self._has_others = has_others
        self._on_set = on_set
        self._patience_s = MIN_PATIENCE_S

    async def tick(self) -> None:
        """Set a clock that is wrong, and end a leadership during which it was, or without reports."""
        behind_s, leads = self._clock.behind_s, self._elector.epoch is not None
        if behind_s:
            # The ages of reports jump with the clock, so that a leader could take all regions for failed.
            _log.warning("the system clock was set", by_s=round(behind_s, 1), led=leads)
            self._elector.step_down()
            self._clock.set()
            self._on_set()
        elif leads:
            now, led_s = self._clock(), self._elector.role_age_s
            ages_s = [now - held.received_at for held in self._fleet.snapshot.agents.values()]
            ahead_s = self._clocks.difference_to_agents_s()
            gives_way, self._patience_s = judge(
                min(ages_s, default=inf),
                led_s,
                self._patience_s,
                has_others=self._has_others(),
                clock_ahead_s=ahead_s,
            )
            if gives_way:
                _log.error(
                    "no agent whose clock agrees reports to this leader, which gives way",
                    led_s=round(led_s),
                    clock_ahead_s=round(ahead_s),
                )
                self._elector.step_down()
