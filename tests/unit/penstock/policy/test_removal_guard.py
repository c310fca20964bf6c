"""A change that loses residency rules, data classes, or many other documents needs a word."""

from __future__ import annotations

import msgspec
import pytest

from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Tier
from penstock.policy.policy import Policy
from penstock.policy.removal_guard import (
    Removal,
    unaccepted_removals,
)
from penstock.routes.route import Route
from tests.support import planet

MAX_NAMED = 10
"""As documented, and not imported: a test fails if a tuned constant changes."""

TENANT = next(iter(planet.policy().tenants.values()))
MODEL = next(iter(planet.policy().models.values()))


def policy(
    tenants: int = 8, models: int = 8, rules: tuple[str, ...] = ("eu",), data_class: str = "open", routes: int = 0
) -> Policy:
    own = tuple(
        msgspec.structs.replace(planet.policy().routes[0], name=f"r{number}", source="routes.yaml:1")
        for number in range(routes)
    )
    return msgspec.structs.replace(
        planet.policy(),
        tenants={
            f"t{number}": msgspec.structs.replace(TENANT, name=f"t{number}", data_class=data_class)
            for number in range(tenants)
        },
        models={f"m{number}": msgspec.structs.replace(MODEL, name=f"m{number}") for number in range(models)},
        residency=tuple(ResidencyRule(name, data_classes=frozenset({"personal"})) for name in rules),
        routes=(*planet.policy().routes, *own),
    )


def needed(before: Policy, after: Policy, **accepted: set[str]) -> list[str]:
    return [str(removal) for removal in unaccepted_removals(before, after, accepted)]


def test_each_removed_tier_needs_a_word() -> None:
    tiers = {name: Tier(name, "open") for name in ("free", "gold", "silver", "batch", "bank")}
    before, after = policy(), policy()
    before = msgspec.structs.replace(before, tiers=tiers)
    after = msgspec.structs.replace(after, tiers={name: tiers[name] for name in tiers if name != "gold"})
    assert needed(before, after) == ["Tier gold"]
    assert needed(before, after, Tier={"gold"}) == []


def test_nothing_removed_needs_no_word() -> None:
    assert needed(policy(), policy()) == []
    assert needed(policy(rules=()), policy(tenants=20, models=20, rules=("eu", "us"))) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (policy(rules=("eu", "us")), policy(rules=("us",)), ["ResidencyRule eu"]),
        (policy(rules=("eu",)), policy(rules=("europe",)), ["ResidencyRule eu"]),
        (policy(), policy(rules=()), ["ResidencyRule eu", "DataClass personal"]),
        (policy(data_class="open"), policy(data_class="personal"), ["DataClass open"]),
        (policy(tenants=8), policy(tenants=6), []),
        (policy(tenants=8), policy(tenants=5), ["Tenant t5, t6, t7"]),
        (policy(tenants=2), policy(tenants=1), []),
        (policy(tenants=3), policy(tenants=1), ["Tenant t1, t2"]),
        (policy(models=8), policy(models=2), ["Model m2, m3, m4, m5, m6, m7"]),
        (policy(routes=4), policy(routes=2), ["Route r2, r3"]),
        (policy(routes=2), policy(routes=1), []),
        (policy(routes=1), policy(), ["Route r0"]),
    ],
)
def test_what_needs_a_word(before: Policy, after: Policy, expected: list[str]) -> None:
    assert needed(before, after) == expected


RULE = ResidencyRule(
    "eu",
    tenants=frozenset({"t0", "t1"}),
    data_classes=frozenset({"open", "personal"}),
    client_countries=frozenset({"DE", "FR"}),
    client_subdivisions=frozenset({"US-CA"}),
    allow=frozenset({"eu-de"}),
    deny=frozenset({"us-east", "eu-es"}),
)


@pytest.mark.parametrize(
    ("left", "is_cut"),
    [
        ({"tenants": frozenset({"t0"})}, True),
        ({"data_classes": frozenset({"personal"})}, True),
        ({"client_countries": frozenset({"DE"})}, True),
        ({"client_subdivisions": frozenset({"US-NY"})}, True),
        ({"deny": frozenset({"us-east"})}, True),
        ({"deny": frozenset()}, True),
        ({"allow": None}, True),
        ({"data_classes": frozenset({"open"})}, False),  # No tenant has the other one.
        ({"tenants": frozenset()}, False),  # The rule matches more.
        ({"client_countries": frozenset()}, True),  # Clients elsewhere than in California match no more.
        ({"client_countries": frozenset(), "client_subdivisions": frozenset()}, False),
        ({"client_countries": frozenset({"DE", "FR", "ES"}), "deny": RULE.deny | {"eu-de"}}, False),
        ({"allow": frozenset({"eu-de", "eu-es"})}, False),  # Text was added, not lost.
        ({"source": "other.yaml:1"}, False),
    ],
)
def test_a_rule_that_lost_entries_needs_a_word(left: dict[str, object], is_cut: bool) -> None:
    before = msgspec.structs.replace(policy(), residency=(RULE,))
    after = msgspec.structs.replace(before, residency=(msgspec.structs.replace(RULE, **left),))
    assert ("restrictions of ResidencyRule eu" in needed(before, after)) == is_cut


def test_a_rule_may_lose_what_the_policy_lost() -> None:
    before = msgspec.structs.replace(policy(), residency=(RULE,))
    shorter = msgspec.structs.replace(RULE, tenants=frozenset({"t0"}), deny=frozenset({"eu-es"}))
    tenants = {name: tenant for name, tenant in before.tenants.items() if name != "t1"}
    regions = {name: region for name, region in before.regions.items() if name != "us-east"}
    after = msgspec.structs.replace(before, residency=(shorter,), tenants=tenants, regions=regions)
    assert needed(before, after) == []


def test_regions_count_too_and_routes_of_presets_do_not() -> None:
    before = planet.policy()
    few = msgspec.structs.replace(before, regions=dict(list(before.regions.items())[:1]))
    (removal,) = unaccepted_removals(before, few)
    assert removal.kind == "Region"
    assert unaccepted_removals(before, msgspec.structs.replace(before, routes=before.routes[:1])) == ()
    assert isinstance(before.routes[0], Route)


def test_listed_names_are_accepted_and_the_others_still_count() -> None:
    before, after = policy(tenants=8, rules=("eu", "us")), policy(tenants=4, rules=())
    listed = {"ResidencyRule": {"eu"}, "DataClass": {"personal"}, "Tenant": {"t4", "t5"}}
    assert needed(before, after, **listed) == ["ResidencyRule us"]
    assert needed(before, after, **listed | {"ResidencyRule": {"eu", "us"}}) == []
    assert needed(before, after, **listed | {"Tenant": {"t4"}}) == ["ResidencyRule us", "Tenant t5, t6, t7"]


def test_a_message_names_a_bounded_number_of_documents() -> None:
    names = tuple(f"t{number}" for number in range(MAX_NAMED + 5))
    assert str(Removal("Tenant", names)).endswith(f"t{MAX_NAMED - 1} and 5 more")
    assert str(Removal("Tenant", names[:MAX_NAMED])) == "Tenant " + ", ".join(names[:MAX_NAMED])
