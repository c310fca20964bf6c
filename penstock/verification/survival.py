"""Determines which losses of regions a residency class survives, and the rules that prevent it otherwise."""

from __future__ import annotations

from itertools import combinations

import msgspec

from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, ResidencyClass, cite
from penstock.routing.decision import decide
from penstock.routing.reasons import Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from penstock.verification.breach import forbidding
from penstock.verification.situations import Situation
from penstock.verification.stages import EveryDraw

MAX_LOST = 2
"""Maximum number of regions lost at the same time."""


class UnsurvivedLoss(msgspec.Struct, frozen=True):
    """A counterexample: a loss that a class does not survive."""

    lost: tuple[str, ...]
    requests: str
    """Requests of the class."""
    because: tuple[str, ...]
    """The rules that forbid each remaining region."""

    def __str__(self) -> str:
        kept_out = "; ".join(self.because) or "no other region exists"
        return f"{self.requests}: without {' and '.join(self.lost)} no permitted region is left ({kept_out})"


class Survival(msgspec.Struct, frozen=True):
    """The losses that one residency class does not survive."""

    name: str
    regions: tuple[str, ...]
    requests: tuple[str, ...]
    """Requests of the class."""
    ends: tuple[UnsurvivedLoss, ...]
    """The minimal losses of one or two regions that the class does not survive; it survives all others."""
    accepted: str = ""
    """Why the policy accepts the loss of the class; empty if it does not."""

    @property
    def survives_any_one(self) -> bool:
        """Whether the class survives the loss of any one region."""
        return all(len(end.lost) > 1 for end in self.ends)


def survival(policy: Policy, regions: ResidencyClass, situations: list[Situation]) -> Survival:
    """Remove regions, and call the live decision at each remaining origin.

    Args:
        policy: the policy to check.
        regions: the residency class.
        situations: the situations of the class.
    """
    requests = tuple(str(situation) for situation in situations)
    ends: list[UnsurvivedLoss] = []
    for size in range(1, MAX_LOST + 1):
        for lost in combinations(sorted(regions.regions), size):
            if any(set(end.lost) <= set(lost) for end in ends) or _finds_a_place(policy, regions, frozenset(lost)):
                continue
            ends.append(UnsurvivedLoss(lost, requests[0], _why(policy, situations[0], lost)))
    accepted = next((loss.because for loss in policy.accepted_losses if loss.regions == regions.regions), "")
    return Survival(regions.name, tuple(sorted(regions.regions)), requests, tuple(ends), accepted)


def _finds_a_place(policy: Policy, regions: ResidencyClass, lost: frozenset[str]) -> bool:
    """Whether a permitted origin remains, and the decision selects a region at every remaining permitted origin."""
    views = {
        name: RegionView(RegionState.FAILED if name in lost else RegionState.HEALTHY, ready=True)
        for name in policy.regions
    }
    model = next(iter(policy.models))
    no_plan: RegionPlan | None = None
    answers = [
        decide(policy, no_plan, Mask(regions), RegionRequest(origin, model, regions), views, EveryDraw())
        for origin in sorted(regions.regions - lost)
    ]
    return bool(answers) and not any(isinstance(answer, Refusal) for answer in answers)


def _why(policy: Policy, situation: Situation, lost: tuple[str, ...]) -> tuple[str, ...]:
    """The remaining regions with the rules that forbid them; regions with the same rules are grouped."""
    kept_out: dict[str, list[str]] = {}
    for region in sorted(policy.regions.keys() - set(lost)):
        rules = " and ".join(cite(rule) for rule in forbidding(policy, situation, region))
        kept_out.setdefault(rules, []).append(region)
    return tuple(f"{', '.join(names)}: {rules}" for rules, names in kept_out.items())
