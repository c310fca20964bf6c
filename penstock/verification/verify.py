"""Verify a policy: no failure, fallback, retry or stickiness reaches a forbidden region; no class is left without one.

What is proved, and by what:

1. *The mask is what the rules say*, for every request. By trying every kind of request that the rules can tell apart
   (`situations`: exact and finite) at every origin, and by asking where its clients should come in, against an
   independent reading of the rules (`reading`).
2. *No decision leaves the mask*, for every state of the fleet, plan, and history of retries. Because `decision.decide`
   answers with a region only through `decision.within_mask`, which is tried for every class and every region. This part
   does not depend on how large a bundle is.
3. *That gate is never needed.* By enumerating every set of lost or tried regions, every outcome of every draw, and
   plans, credits and weights that all tempt towards forbidden regions (`stages.at_decisions`). Classes of many regions
   have too many sets: then the report says that only small losses and small remainders were enumerated.
4. *A server believes nobody*: for every kind of request and every region, it takes a forwarded request exactly if its
   own policy and that of the origin permit it there (`stages.at_servers`, with real signatures).
5. *Plans name permitted regions only*: those of every logic, their fallbacks and failover tables, for no loss, every
   loss of one region and, in bundles that are not too large, of two; with room to spare and with none (`planning`).
6. *What survives what*: every loss of one and of two regions of every class, asked of the live decision (`survival`).

While every region that the plan names for a class is well, an agent draws from the plan's shares without a decision:
the origin itself, which admission permitted, and others only if all are permitted (`WeightedSampler.within`). A lighter
model or a version changes the model of a request and not its mask, which knows nothing of models. Stickiness needs no
proof of its own: sessions and prefixes choose among the endpoints of the region that the decision chose, and know of no
other (`who.choose_endpoint`).
"""

from __future__ import annotations

import msgspec

from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, cite, residency_class
from penstock.verification.breach import Breach
from penstock.verification.ineffective_rules import warnings
from penstock.verification.maintenance_windows import window_warnings
from penstock.verification.plan_checks import planned
from penstock.verification.rule_reading import forbidding, permitted
from penstock.verification.situations import Situation, situations
from penstock.verification.stages import at_decisions, at_origins, at_servers, at_steering, at_the_gate
from penstock.verification.survival import Survival, survival


class Refused(msgspec.Struct, frozen=True):
    """Requests that may run nowhere, whatever stands."""

    whose: str
    because: tuple[str, ...]
    """The rules that leave them nothing."""
    unknown_location: bool
    """Only for not runtime where their clients are: that is failing closed, and meant."""


class Verified(msgspec.Struct, frozen=True):
    """What verification came to."""

    digest: str
    situations: int
    """Kinds of request that the rules tell apart."""
    decisions: int
    """Decisions that were enumerated."""
    plans: int
    """Plans for the planet that were made."""
    lost_at_once: int
    """Plans were made for every loss of up to so many regions."""
    whole: tuple[str, ...]
    """Residency classes of which every set of losses was enumerated."""
    partly: tuple[str, ...]
    """Those of which only small losses and small remainders were, since they have too many regions."""
    breaches: tuple[Breach, ...]
    classes: tuple[Survival, ...]
    refused: tuple[Refused, ...]
    unserved: tuple[str, ...]
    """Tenants whose every request is refused, wherever its client is."""
    warnings: tuple[str, ...]

    @property
    def unsurvived(self) -> list[Survival]:
        """Classes that some loss of one region ends, where nobody has accepted that."""
        return [one for one in self.classes if not one.survives_any_one and not one.accepted]

    @property
    def good(self) -> bool:
        """Nothing forbidden can be reached, every tenant has a place, and every class survives the loss of any one
        region or may not."""
        return not self.breaches and not self.unserved and not self.unsurvived


def verify(policy: Policy) -> Verified:
    """Everything that the module says, for one policy."""
    found = situations(policy)
    by_class = _classes(policy, found)
    served = {name for whose in by_class.values() for one in whose for name in one.tenants}
    examples = {one: whose[0] for one, whose in by_class.items()}
    surveyed = _surveyed(policy)
    breaches = [
        breach
        for one in found
        for stage in (at_origins(policy, one), at_steering(policy, one), at_servers(policy, one))
        for breach in stage
    ]
    reached = {one.name: at_decisions(surveyed, example) for one, example in examples.items()}
    for one, example in examples.items():
        breaches += [*at_the_gate(policy, example), *reached[one.name].breaches]
    plans = planned(policy, examples)
    return Verified(
        digest=policy.digest(),
        situations=len(found),
        decisions=sum(one.decisions for one in reached.values()),
        plans=plans.made,
        lost_at_once=plans.max_lost,
        whole=tuple(name for name, one in reached.items() if one.whole),
        partly=tuple(name for name, one in reached.items() if not one.whole),
        breaches=(*breaches, *plans.breaches),
        classes=tuple(survival(surveyed, one, whose) for one, whose in by_class.items()),
        refused=tuple(_refused(policy, one) for one in found if not permitted(policy, one)),
        unserved=tuple(sorted(policy.tenants.keys() - served)),
        warnings=(*warnings(policy, found, list(by_class)), *window_warnings(policy, by_class)),
    )


def _classes(policy: Policy, found: list[Situation]) -> dict[ResidencyClass, list[Situation]]:
    """Every residency class that some request has, smallest first, with those requests."""
    by_regions: dict[frozenset[str], list[Situation]] = {}
    for one in found:
        if regions := permitted(policy, one):
            by_regions.setdefault(regions, []).append(one)
    ordered = sorted(by_regions, key=lambda regions: (len(regions), sorted(regions)))
    return {residency_class(regions): by_regions[regions] for regions in ordered}


def _surveyed(policy: Policy) -> Policy:
    """The same policy with all its distances written down as measured, so that they are not worked out every time."""
    names = sorted(policy.regions)
    apart_ms = {a: {b: policy.distance_ms(a, b) - policy.bias_ms.get(b, 0.0) for b in names} for a in names}
    return msgspec.structs.replace(policy, rtt_ms=apart_ms)


def _refused(policy: Policy, situation: Situation) -> Refused:
    """Who, and the rules that together leave nothing."""
    if situation.governed_blindly:
        rules = [rule for rule, answer in zip(policy.residency, situation.applies, strict=True) if answer is None]
    else:
        rules = [rule for region in policy.regions for rule in forbidding(policy, situation, region)]
    return Refused(str(situation), tuple(dict.fromkeys(map(cite, rules))), situation.governed_blindly)
