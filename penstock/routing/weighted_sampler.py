"""Where a request runs while nothing speaks against the plan: a draw from its class's shares, made ready with the plan.

Most requests, on most days, go as the plan says whatever other regions are like. So it is while every region that the
plan gives their class to is there and whole, and home, if it is one of them, keeps nobody waiting. `choose_region` then
comes to the same, by the same draw; this spares it the look at everybody else.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

import msgspec

from penstock.health.region_health import RegionState
from penstock.planning.plan import ClassPlan, RegionPlan
from penstock.policy.residency import ResidencyClass
from penstock.routing.region_selection import NOTHING_TRIED, RegionView, Where, is_usable, odds

_WHOLE = RegionView(RegionState.HEALTHY, ready=True)


class Draw(msgspec.Struct, frozen=True):
    """What a plan says of one traffic class, while nothing speaks against it."""

    ways: tuple[Where, ...]
    up_to: tuple[float, ...]
    """Where on a scale from 0 each of the ways ends."""
    away: frozenset[str]
    """The regions other than home among them."""
    at_home: bool
    """Whether home is."""

    def within(self, permitted: ResidencyClass) -> bool:
        """Whether all of it is elsewhere than in a forbidden region; home was looked at before."""
        return self.away <= permitted.regions

    def take(self, rng: Random) -> Where:
        """One of the ways, each as often as its share is large."""
        up_to = self.up_to
        return self.ways[bisect(up_to, rng.random() * up_to[-1], 0, len(up_to) - 1) if len(up_to) > 1 else 0]


def draw_of(plan: ClassPlan, origin: str) -> Draw | None:
    """The draw of one class; None where the plan gives it to nobody."""
    servers = {arc.server: _WHOLE for arc in plan.arcs if arc.share > 0.0}
    if not servers:
        return None
    shares, reasons = odds(plan, servers, NOTHING_TRIED, tuple(servers), origin, 1.0)
    return Draw(
        tuple(Where(server, reasons[server], spends_credit=False) for server in shares),
        tuple(accumulate(shares.values())),
        frozenset(shares) - {origin},
        origin in shares,
    )


def draws_of(plan: RegionPlan) -> dict[tuple[str, str], Draw]:
    """The draws of a plan, by traffic class (model, residency class)."""
    # A class that is there twice counts as `RegionPlan.lookup` finds it: the first.
    return {
        (one.model, one.residency): draw
        for one in reversed(plan.classes)
        if (draw := draw_of(one, plan.region)) is not None
    }


def takes_its_share(view: RegionView) -> bool:
    """Whether another region takes all that the plan gives it."""
    return view.ready and view.weight >= 1.0 and is_usable(view)
