"""Selects the region of most requests with one draw from the plan's shares, prepared when the plan arrives.

A sampler applies while every region to which the plan gives the traffic class accepts its full share and, if home is
one of these regions, no request waits at home. `region_options` and `draw` then return the same choice for the same
random number, but need the views of all other regions.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

import msgspec

from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason, ClassPlan, RegionPlan
from penstock.policy.residency import ResidencyClass, residency_class
from penstock.routing.region_selection import NOTHING_TRIED, RegionChoice, RegionView, is_usable, plan_shares
from penstock.routing.session_home import home_of

_HEALTHY = RegionView(RegionState.HEALTHY, ready=True)


class WeightedSampler(msgspec.Struct, frozen=True):
    """The plan's choices for one traffic class, weighted by share."""

    choices: tuple[RegionChoice, ...]
    cumulative: tuple[float, ...]
    """The sum of the weights up to and including each choice."""
    shares: dict[str, float]
    """Share of each region."""
    remote: frozenset[str]
    """The regions among the choices other than home."""
    includes_home: bool

    def within(self, permitted: ResidencyClass) -> bool:
        """Whether every remote choice is permitted; the residency mask has checked home."""
        return self.remote <= permitted.regions

    def sample(self, rng: Random, session: int | None = None) -> RegionChoice:
        """Return the choice of a session's home; without a session, draw one by the shares."""
        cumulative = self.cumulative
        if len(cumulative) == 1:
            return self.choices[0]
        if session is not None:
            home = home_of(session, self.shares)
            return next(choice for choice in self.choices if choice.region == home)
        return self.choices[bisect(cumulative, rng.random() * cumulative[-1], 0, len(cumulative) - 1)]


def sampler_of(plan: ClassPlan, origin: str) -> WeightedSampler | None:
    """The sampler of one traffic class; None if the plan assigns the class to no region."""
    servers = {arc.server: _HEALTHY for arc in plan.arcs if arc.share > 0.0}
    if not servers:
        return None
    shares, reasons = plan_shares(plan, servers, NOTHING_TRIED, tuple(servers), origin, 1.0)
    return WeightedSampler(
        tuple(RegionChoice(server, reasons[server], spends_credit=False) for server in shares),
        tuple(accumulate(shares.values())),
        shares,
        frozenset(shares) - {origin},
        origin in shares,
    )


def samplers_of(plan: RegionPlan) -> dict[tuple[str, str], WeightedSampler]:
    """The samplers of a plan by traffic class (model, residency class).

    Each model of the plan also has the class of home alone, to which the endpoint picker restricts requests, unless
    home is closed to the model.
    """
    home = plan.region
    choice = RegionChoice(home, ArcReason.HOME, spends_credit=False)
    here = WeightedSampler((choice,), (1.0,), {home: 1.0}, frozenset(), includes_home=True)
    models = {entry.model for entry in plan.classes}
    name = residency_class(frozenset({home})).name
    found = {(model, name): here for model in models if home not in plan.closed_for(model)}
    # Of two entries for one class, the first counts, as in `RegionPlan.lookup`.
    return found | {
        (entry.model, entry.residency): sampler
        for entry in reversed(plan.classes)
        if (sampler := sampler_of(entry, home)) is not None
    }


def accepts_full_share(view: RegionView) -> bool:
    """Whether a remote region accepts its full share of the plan."""
    return view.ready and view.weight >= 1.0 and is_usable(view)
