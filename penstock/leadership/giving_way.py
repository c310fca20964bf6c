"""When a leader to which no agent reports gives way to another control plane.

Agents ignore a leader whose clock is far ahead, or have no connection to the leader. Another control plane may receive
their reports.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from penstock.fleet.agent_clocks import MAX_DIFFERENCE_S

MIN_PATIENCE_S = 30.0
"""Time (s) without any report after which a leader gives way first."""

MAX_PATIENCE_S = 960.0
"""Maximum time (s) after which a leader gives way again: the other control plane may receive no reports either."""


class Verdict(NamedTuple):
    """Whether a leader gives way now."""

    gives_way: bool
    patience_s: float
    """Time (s) without any report after which the leader gives way next."""


def judge(
    report_age_s: float, led_s: float, patience_s: float, *, has_others: bool, clock_ahead_s: float = 0.0
) -> Verdict:
    """Return whether a leader gives way: after `patience_s`, which doubles each time until a report arrives.

    Args:
        report_age_s: age (s) of the newest report; inf without one.
        led_s: time (s) since the beginning of the leadership.
        patience_s: of the last verdict, perhaps in an earlier leadership; MIN_PATIENCE_S at first.
        has_others: whether agents, and another control plane, are registered.
        clock_ahead_s: time (s) by which the leader's clock is ahead of those of most agents, or behind (negative).
            Agents whose clocks disagree ignore what the leader writes: their reports do not count.
    """
    if abs(clock_ahead_s) > MAX_DIFFERENCE_S:
        report_age_s = inf
    if report_age_s <= MIN_PATIENCE_S:
        return Verdict(False, MIN_PATIENCE_S)
    if min(report_age_s, led_s) <= patience_s or not has_others:
        return Verdict(False, patience_s)
    return Verdict(True, min(2 * patience_s, MAX_PATIENCE_S))
