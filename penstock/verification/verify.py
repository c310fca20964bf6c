"""Verifies a policy: no failure, fallback, retry or affinity reaches a forbidden region; every class keeps a region.

The properties and their proofs:

1. *The mask agrees with the rules*, for every request. Every request that the rules distinguish (`situations`: exact
   and finite) is checked at every origin and in steering, against an independent evaluation of the rules
   (`breach`).
2. *No decision leaves the mask*, for every state of the fleet, plan, and history of retries. `decision.decide` returns
   a region only through `decision.within_mask`, which is checked for every class and every region. This proof does not
   depend on the number of regions.
3. *`within_mask` never has to reject.* The check enumerates every set of lost or tried regions, every outcome of every
   draw, and plans, credits and weights that favour forbidden regions (`stages.at_decisions`). Classes of many regions
   have too many sets; the report then states that only small losses and small remainders were enumerated.
4. *A server does not trust the origin*: for every situation and every region, it accepts a forwarded request exactly if
   its own policy and the policy of the origin permit the region (`stages.at_servers`, which assumes a valid signature).
5. *Plans name permitted regions only*: the plans of every planner, with fallbacks and failover tables, without loss,
   and for every loss of one region and, in small policies, of two; with spare capacity and without (`plan_checks`).
6. *Jobs stay in permitted regions*: for every situation and every region, the selected job store covers permitted
   regions only (`stages.at_job_stores`).
7. *No DNS name resolves to a forbidden region* of any of its tenants, with a client subnet or without
   (`dns_checks`).
8. *No sender reaches a model that is reserved for others* (`stages.at_pools`).
9. *Survival of losses*: every loss of one or two regions of every class, checked with the live decision (`survival`).

While every region that the plan names for a class is healthy, an agent draws from the plan's shares without a decision.
A draw returns the origin, which residency permits, or another region; draws are used only if all other regions are
permitted (`WeightedSampler.within`). A fallback model or a model version changes the model of a request, but not its
mask, which does not depend on models. Session and prefix affinity need no proof, since they choose among the endpoints
of the region that the decision chose (`endpoint_selection.choose_endpoint`).
"""

from __future__ import annotations

import msgspec

from penstock.policy.policy import Policy
from penstock.policy.residency import ResidencyClass, cite, residency_class
from penstock.verification.breach import Breach, forbidding, permitted
from penstock.verification.dns_checks import at_names
from penstock.verification.plan_checks import planned
from penstock.verification.policy_warnings import (
    pattern_warnings,
    pool_warnings,
    price_warnings,
    rule_warnings,
    window_warnings,
)
from penstock.verification.situations import Situation, situations
from penstock.verification.stages import (
    at_decisions,
    at_job_stores,
    at_origins,
    at_pools,
    at_servers,
    at_steering,
    at_within_mask,
)
from penstock.verification.survival import Survival, survival


class RejectedRequests(msgspec.Struct, frozen=True):
    """Requests that no region may serve, whatever the state of the fleet."""

    requests: str
    because: tuple[str, ...]
    """The rules that together forbid all regions."""
    unknown_location: bool
    """Whether the only reason is an unknown client location; such requests are rejected on purpose (fail closed)."""


class VerificationReport(msgspec.Struct, frozen=True):
    """The result of the verification."""

    digest: str
    situations: int
    """Number of situations that the rules distinguish."""
    decisions: int
    """Number of decisions enumerated."""
    plans: int
    """Number of plans computed."""
    lost_at_once: int
    """Plans were computed for every loss of at most this many regions."""
    whole: tuple[str, ...]
    """Residency classes for which every set of losses was enumerated."""
    partly: tuple[str, ...]
    """Residency classes with too many regions, for which only small losses and small remainders were enumerated."""
    breaches: tuple[Breach, ...]
    classes: tuple[Survival, ...]
    refused: tuple[RejectedRequests, ...]
    unserved: tuple[str, ...]
    """Tenants, and tiers of created tenants, of which every request is rejected, whatever the client's location."""
    warnings: tuple[str, ...]
    dns_answers: int = 0
    """Number of answers to queries of DNS names that were computed."""

    @property
    def unsurvived(self) -> list[Survival]:
        """Classes that do not survive some loss of one region, which the policy does not accept."""
        return [residency for residency in self.classes if not residency.survives_any_one and not residency.accepted]

    @property
    def passed(self) -> bool:
        """Whether no forbidden region is reachable, every tenant has a region, and every class survives the loss of any
        one region or the policy accepts that loss."""
        return not self.breaches and not self.unserved and not self.unsurvived


def verify(policy: Policy) -> VerificationReport:
    """Verify all properties that the module docstring lists, for one policy."""
    found = situations(policy)
    by_class = _classes(policy, found)
    served = {name for members in by_class.values() for situation in members for name in situation.tenants}
    examples = {residency: members[0] for residency, members in by_class.items()}
    measured = _with_measured_distances(policy)
    breaches = [
        breach
        for situation in found
        for stage in (
            at_origins(policy, situation),
            at_steering(policy, situation),
            at_servers(policy, situation),
            at_job_stores(policy, situation),
        )
        for breach in stage
    ]
    reached = {residency.name: at_decisions(measured, example) for residency, example in examples.items()}
    for residency, example in examples.items():
        breaches += [*at_within_mask(policy, example), *reached[residency.name].breaches]
    plans = planned(policy, examples)
    names = at_names(policy, found)
    return VerificationReport(
        digest=policy.digest(),
        situations=len(found),
        decisions=sum(checked.decisions for checked in reached.values()),
        plans=plans.made,
        lost_at_once=plans.max_lost,
        whole=tuple(name for name, checked in reached.items() if checked.whole),
        partly=tuple(name for name, checked in reached.items() if not checked.whole),
        breaches=(*breaches, *at_pools(policy), *plans.breaches, *names.breaches),
        classes=tuple(survival(measured, residency, members) for residency, members in by_class.items()),
        refused=tuple(_refused(policy, situation) for situation in found if not permitted(policy, situation)),
        unserved=tuple(sorted(policy.senders.keys() - served)),
        warnings=(
            *rule_warnings(policy, found, list(by_class)),
            *pool_warnings(policy),
            *pattern_warnings(policy),
            *price_warnings(policy),
            *window_warnings(policy, by_class),
            *names.warnings,
        ),
        dns_answers=names.answers,
    )


def _classes(policy: Policy, found: list[Situation]) -> dict[ResidencyClass, list[Situation]]:
    """Every residency class that occurs, smallest first, with its situations."""
    by_regions: dict[frozenset[str], list[Situation]] = {}
    for situation in found:
        if regions := permitted(policy, situation):
            by_regions.setdefault(regions, []).append(situation)
    ordered = sorted(by_regions, key=lambda regions: (len(regions), sorted(regions)))
    return {residency_class(regions): by_regions[regions] for regions in ordered}


def _with_measured_distances(policy: Policy) -> Policy:
    """The same policy with all distances precomputed as measured round trips, so that lookups are cheap."""
    names = sorted(policy.regions)
    apart_ms = {a: {b: policy.distance_ms(a, b) - policy.bias_ms.get(b, 0.0) for b in names} for a in names}
    return msgspec.structs.replace(policy, rtt_ms=apart_ms)


def _refused(policy: Policy, situation: Situation) -> RejectedRequests:
    """The rejected requests of a situation, and the rules that together forbid all regions."""
    if situation.governed_blindly:
        rules = [rule for rule, answer in zip(policy.residency, situation.applies, strict=True) if answer is None]
    else:
        rules = [rule for region in policy.regions for rule in forbidding(policy, situation, region)]
    return RejectedRequests(str(situation), tuple(dict.fromkeys(map(cite, rules))), situation.governed_blindly)
