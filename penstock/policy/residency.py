"""The residency mask: the regions that may process a request. It is computed before every other routing decision."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import lru_cache
from hashlib import sha256

import msgspec

from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal, Rejection

MAX_SPELLED_NAME = 64
"""Class names longer than this many characters are shortened to a digest."""

SHORTENED = "set-"
"""Prefix of shortened class names."""


MAX_KEPT_CLASSES = 1024
"""Maximum number of residency classes that are kept by their regions: fleets have few, and requests name them."""


class ResidencyClass(msgspec.Struct, frozen=True):
    """A named set of regions that a request may ever touch; equal sets are one class, in every process."""

    name: str
    regions: frozenset[str]


def residency_class(regions: AbstractSet[str]) -> ResidencyClass:
    """The residency class of a set of regions. Its name depends on its members alone, so all processes agree on it."""
    return _class_of(frozenset(regions))


@lru_cache(MAX_KEPT_CLASSES)
def _class_of(regions: frozenset[str]) -> ResidencyClass:
    spelled = "+".join(sorted(regions))
    if len(spelled) > MAX_SPELLED_NAME:
        spelled = SHORTENED + sha256(spelled.encode()).hexdigest()[:16]
    return ResidencyClass(spelled, regions)


class RequestFacts(msgspec.Struct, frozen=True):
    """The properties of a request that residency depends on; none of them is set by the client."""

    tenant: str
    data_class: str
    location: Location = NOWHERE


class Mask(msgspec.Struct, frozen=True):
    """The permitted regions, and for each forbidden region the rules that forbid it."""

    permitted: ResidencyClass
    rejected: tuple[Rejection, ...] = ()


def matches_tenant(rule: ResidencyRule, facts: RequestFacts) -> bool:
    """Whether a rule applies to requests of this tenant and data class, at any client location."""
    return (not rule.tenants or facts.tenant in rule.tenants) and (
        not rule.data_classes or facts.data_class in rule.data_classes
    )


def applies(rule: ResidencyRule, facts: RequestFacts) -> bool | None:
    """Whether a rule applies to a request; None if that depends on an unknown part of the client's location.

    `mask` depends on a request only through these results, so requests with equal results have equal masks.
    """
    if not matches_tenant(rule, facts):
        return False
    if not rule.client_countries and not rule.client_subdivisions:
        return True
    country, subdivision = facts.location.country, facts.location.subdivision
    if country is None:
        return None
    if country in rule.client_countries:
        return True
    if not any(code.startswith(f"{country}-") for code in rule.client_subdivisions):
        return False
    return None if subdivision is None else f"{country}-{subdivision}" in rule.client_subdivisions


def mask(policy: Policy, facts: RequestFacts) -> Mask | Refusal:
    """Intersects the regions that matching rules allow, then removes those that they deny.

    If a rule with client locations depends on an unknown location, the request is refused: governed traffic fails
    closed.
    """
    permitted = frozenset(policy.regions)
    denied: frozenset[str] = frozenset()
    rejected: list[Rejection] = []
    for rule in policy.residency:
        match = applies(rule, facts)
        if match is None:
            what = "country" if facts.location.country is None else "subdivision"
            return Refusal(
                Reason.LOCATION_UNKNOWN,
                f"residency rule {rule.name!r} depends on the client's {what}, which is not known",
            )
        if not match:
            continue
        if rule.allow is not None:
            rejected += [
                Rejection(region, Reason.RESIDENCY_NOT_ALLOWED, cite(rule)) for region in sorted(permitted - rule.allow)
            ]
            permitted &= rule.allow
        denied |= rule.deny
        rejected += [Rejection(region, Reason.RESIDENCY_DENIED, cite(rule)) for region in sorted(permitted & rule.deny)]
    permitted -= denied
    if not permitted:
        return Refusal(Reason.NO_PERMITTED_REGION, "residency rules leave no region for this request", tuple(rejected))
    return Mask(residency_class(permitted), tuple(rejected))


def within(rule: ResidencyRule, regions: frozenset[str]) -> frozenset[str]:
    """The regions of which a rule that applies permits the use."""
    return regions - rule.deny if rule.allow is None else (regions - rule.deny) & rule.allow


def regions_beside(policy: Policy, origin: str) -> frozenset[str]:
    """The regions that may serve a request of some sender at `origin`, wherever its client is. Without senders, all."""
    every = frozenset(policy.regions)
    found: set[str] = set()
    for sender in policy.senders.values():
        facts, permitted = RequestFacts(sender.name, sender.data_class), every
        for rule in policy.residency:
            if applies(rule, facts):
                permitted = within(rule, permitted)
        if origin in permitted:
            found |= permitted
    return frozenset(found) if policy.senders else every


def cite(rule: ResidencyRule) -> str:
    """Name of a rule in refusals, with file and line if known."""
    return f"{rule.name} ({rule.source})" if rule.source else rule.name
