"""Which requests a change of the rules may have refused, and what no decision passes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from penstock.planning.plan import ArcReason
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.regions import EntryMap
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, residency_class
from penstock.routing.decision import (
    Decision,
    decide,
    mask_at_origin,
    may_be_by_change,
    same_residency,
    within_mask,
)
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionChoice, RegionRequest
from tests.support.planet import EU_ONLY, MADRID, MODEL, healthy, policy

FRANCE = Location("FR")
TO_US = EntryMap("French", frozenset({"FR"}), frozenset(), ("us-east", "eu-de"))
OTHER = ResidencyRule("other", deny=frozenset({"eu-es"}))
TENANTS = policy().tenants


def changed(**fields: Any) -> Policy:
    return msgspec.structs.replace(policy(), **fields)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (policy(), True),
        (changed(models={}), True),
        # A tenant of one policy alone decides about no request of the other.
        (changed(tenants={**TENANTS, "new": Tenant("new", "personal")}), True),
        (changed(tenants={"open": TENANTS["open"]}), True),
        (changed(tenants={**TENANTS, "open": Tenant("open", "personal")}), False),
        (policy(EU_ONLY, OTHER), False),
        (changed(regions={MADRID.name: MADRID}), False),
        (changed(entry_maps=(TO_US,)), False),
    ],
)
def test_policies_that_decide_alike_about_residency(other: Policy, same: bool) -> None:
    assert same_residency(policy(), other) is same
    assert same_residency(other, policy()) is same


FORBIDS = RequestFacts("personal", "personal", FRANCE)
"""Of a request that `policy()` refuses at us-east."""


@pytest.mark.parametrize(
    ("before", "may_be"),
    [
        (policy(), False),
        # The rules before permitted the request.
        (policy(OTHER), True),
        (changed(tenants={**TENANTS, "personal": Tenant("personal", "open")}), True),
        # A tenant that is new has the data class of the policy in force.
        (changed(tenants={}), False),
    ],
)
def test_a_change_may_have_refused_what_the_rules_before_permitted(before: Policy, may_be: bool) -> None:
    assert may_be_by_change(policy(), before, "us-east", FORBIDS) is may_be


@pytest.mark.parametrize(
    ("before", "location", "may_be"),
    [
        ((), FRANCE, True),
        ((msgspec.structs.replace(TO_US, regions=("eu-de", "us-east")),), FRANCE, True),
        # The map before began with the same entry.
        ((msgspec.structs.replace(TO_US, regions=("us-east", "eu-es")),), FRANCE, False),
        ((), NOWHERE, False),
        ((), Location("PT"), False),
    ],
)
def test_a_change_may_have_refused_clients_that_it_sends_to_a_forbidden_entry(
    before: tuple[EntryMap, ...], location: Location, may_be: bool
) -> None:
    now = changed(entry_maps=(TO_US,))
    facts = RequestFacts("personal", "personal", location)
    assert may_be_by_change(now, changed(entry_maps=before), "us-east", facts) is may_be
    assert not may_be_by_change(now, now, "us-east", facts)


def test_a_limit_closes_regions_to_the_overflow_of_its_model_alone() -> None:
    limit = SpilloverLimit("own model", models=frozenset({MODEL}), max_share=0.5)
    other = SpilloverLimit("other model", models=frozenset({"other"}), max_share=0.5)
    mask = Mask(residency_class(frozenset({"eu-de", "us-east"})), ())
    views = healthy("eu-de", expected_wait_s=30.0) | healthy("us-east", credits=1)
    full = RegionRequest("eu-de", MODEL, mask.permitted, {"eu-de": Reason.SATURATED}, overflow=True)
    limited = decide(changed(spillover_limits=(limit,)), None, mask, full, views, Random(1))
    assert isinstance(limited, Refusal)
    assert [each.reason for each in limited.rejected] == [Reason.ALREADY_TRIED, Reason.SPILLOVER_LIMIT]
    free = decide(changed(spillover_limits=(other,)), None, mask, full, views, Random(1))
    assert isinstance(free, Decision)
    assert free.choice.region == "us-east"


def test_a_client_at_a_forbidden_entry_is_given_the_url_of_a_permitted_one() -> None:
    refusal = mask_at_origin(policy(), "us-east", FORBIDS)
    assert isinstance(refusal, Refusal)
    assert refusal.detail == "residency forbids us-east; use a permitted region"
    entry = RegionEntry(url="https://eu-es.example")
    at_madrid = msgspec.structs.replace(MADRID, entry=entry)
    refusal = mask_at_origin(changed(regions={**policy().regions, MADRID.name: at_madrid}), "us-east", FORBIDS)
    assert isinstance(refusal, Refusal)
    assert (refusal.try_regions, refusal.try_urls) == (("eu-es", "eu-de"), ("https://eu-es.example",))
    assert refusal.detail == "residency forbids us-east; use https://eu-es.example"


def test_no_decision_leaves_the_mask_however_the_region_was_chosen() -> None:
    mask = Mask(residency_class(frozenset({"eu-de", "eu-es"})), ())
    inside = Decision(mask, RegionChoice("eu-es", ArcReason.FAILOVER, spends_credit=False), ())
    assert within_mask(inside) is inside
    outside = within_mask(Decision(mask, RegionChoice("us-east", ArcReason.HOME, spends_credit=False), ()))
    assert isinstance(outside, Refusal)
    assert outside.reason is Reason.RESIDENCY_DENIED
    assert outside.detail == "us-east was chosen, and is not in residency class eu-de+eu-es"
