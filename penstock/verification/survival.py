"""Which losses of regions leave a residency class somewhere to go, and by which rules the others do not."""

from __future__ import annotations

from itertools import combinations

import msgspec

from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, ResidencyClass, cite
from penstock.routing.decision import decide
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionView
from penstock.verification.rule_reading import forbidding
from penstock.verification.situations import Situation
from penstock.verification.stages import EveryDraw

MAX_LOST = 2
"""Losses of up to so many regions at once are looked at."""


class Ended(msgspec.Struct, frozen=True):
    """A loss that a class does not survive: the counter-example."""

    lost: tuple[str, ...]
    whose: str
    """Requests of the class."""
    because: tuple[str, ...]
    """For each region that still stands, which rule keeps such requests from it."""

    def __str__(self) -> str:
        kept_out = "; ".join(self.because) or "no other region exists"
        return f"{self.whose}: without {' and '.join(self.lost)} no permitted region is left ({kept_out})"


class Survival(msgspec.Struct, frozen=True):
    """What losses one residency class survives."""

    name: str
    regions: tuple[str, ...]
    whose: tuple[str, ...]
    """Requests of the class."""
    ends: tuple[Ended, ...]
    """The smallest losses of one or two regions that it does not survive; it survives all others."""
    accepted: str = ""
    """Why its end is accepted, where policy says so."""

    @property
    def survives_any_one(self) -> bool:
        """Whichever region is lost, it has a place."""
        return all(len(end.lost) > 1 for end in self.ends)


def survival(policy: Policy, regions: ResidencyClass, situations: list[Situation]) -> Survival:
    """Take regions away and ask the live decision at each origin that is left.

    Args:
        situations: requests of the class.
    """
    whose = tuple(str(one) for one in situations)
    ends: list[Ended] = []
    for size in range(1, MAX_LOST + 1):
        for lost in combinations(sorted(regions.regions), size):
            if any(set(end.lost) <= set(lost) for end in ends) or _finds_a_place(policy, regions, frozenset(lost)):
                continue
            ends.append(Ended(lost, whose[0], _why(policy, situations[0], lost)))
    accepted = next((one.because for one in policy.accepted_losses if one.regions == regions.regions), "")
    return Survival(regions.name, tuple(sorted(regions.regions)), whose, tuple(ends), accepted)


def _finds_a_place(policy: Policy, regions: ResidencyClass, lost: frozenset[str]) -> bool:
    """Whether every permitted origin that still stands gets a region, and there is one."""
    views = {
        name: RegionView(RegionState.FAILED if name in lost else RegionState.HEALTHY, ready=True)
        for name in policy.regions
    }
    model = next(iter(policy.models))
    no_plan: RegionPlan | None = None
    answers = [
        decide(policy, no_plan, origin, model, Mask(regions), views, EveryDraw())
        for origin in sorted(regions.regions - lost)
    ]
    return bool(answers) and not any(isinstance(answer, Refusal) for answer in answers)


def _why(policy: Policy, situation: Situation, lost: tuple[str, ...]) -> tuple[str, ...]:
    """The regions that stand with the rules that keep the request out of them, those with the same rules together."""
    kept_out: dict[str, list[str]] = {}
    for region in sorted(policy.regions.keys() - set(lost)):
        rules = " and ".join(cite(rule) for rule in forbidding(policy, situation, region))
        kept_out.setdefault(rules, []).append(region)
    return tuple(f"{', '.join(names)}: {rules}" for rules, names in kept_out.items())
