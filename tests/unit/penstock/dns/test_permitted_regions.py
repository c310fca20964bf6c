"""The regions that a name may resolve to, by residency alone."""

from __future__ import annotations

import pytest

from penstock.dns.permitted_regions import permitted_regions, serving_regions
from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from tests.support import planet
from tests.support.dns_names import EU, EVERYWHERE, a_name, dns_policy

GERMANY, SPAIN, INDIA, TEXAS, US = Location("DE"), Location("ES"), Location("IN"), Location("US", "TX"), Location("US")

OF_EU_CLIENTS = ResidencyRule(
    "eu-clients", data_classes=frozenset({"personal"}), client_countries=frozenset({"DE", "ES"}), allow=EU
)
OF_US_CLIENTS = ResidencyRule(
    "us-clients", data_classes=frozenset({"personal"}), client_countries=frozenset({"US"}), deny=EU
)
NOT_TEXAS = ResidencyRule("not-texas", client_subdivisions=frozenset({"US-TX"}), deny=frozenset({"us-east"}))


def test_a_name_of_one_tenant_has_the_regions_of_this_tenant() -> None:
    policy = dns_policy()
    assert permitted_regions(policy, a_name("x", tenants=("personal",))) == EU
    assert permitted_regions(policy, a_name("x", tenants=("open",))) == EVERYWHERE


def test_a_name_of_all_tenants_has_the_regions_that_are_permitted_for_each() -> None:
    assert permitted_regions(dns_policy(), a_name("x")) == EU


@pytest.mark.parametrize("tenants", [("personal", "open"), ("open", "personal"), ()])
def test_the_regions_that_may_serve_are_those_of_any_tenant_of_the_name(tenants: tuple[str, ...]) -> None:
    only_us = ResidencyRule("open", tenants=frozenset({"open"}), deny=frozenset({"eu-es"}))
    policy = dns_policy(planet.policy(planet.EU_ONLY, only_us))
    assert serving_regions(policy, a_name("x", tenants=tenants)) == EVERYWHERE
    assert serving_regions(policy, a_name("x", tenants=("open",))) == {"eu-de", "us-east"}
    assert serving_regions(policy, a_name("x", tenants=("personal",))) == EU


def test_regions_of_the_document_only_restrict() -> None:
    policy = dns_policy()
    assert permitted_regions(policy, a_name("x", covers=frozenset({"eu-de", "us-east"}))) == {"eu-de"}
    assert not permitted_regions(policy, a_name("x", covers=frozenset({"us-east"})))


def test_a_client_subnet_decides_which_rules_apply() -> None:
    policy = dns_policy(planet.policy(OF_EU_CLIENTS, OF_US_CLIENTS))
    assert permitted_regions(policy, a_name("x"), GERMANY) == EU
    assert permitted_regions(policy, a_name("x"), US) == {"us-east"}
    assert permitted_regions(policy, a_name("x"), INDIA) == EVERYWHERE


def test_without_a_client_subnet_every_rule_of_a_location_applies() -> None:
    policy = dns_policy(planet.policy(OF_EU_CLIENTS))
    assert permitted_regions(policy, a_name("x")) == EU
    both = dns_policy(planet.policy(OF_EU_CLIENTS, OF_US_CLIENTS))
    assert not permitted_regions(both, a_name("x"))


def test_the_clients_of_a_name_exclude_rules_of_other_places() -> None:
    policy = dns_policy(planet.policy(OF_EU_CLIENTS, OF_US_CLIENTS))
    assert permitted_regions(policy, a_name("eu", client_countries=frozenset({"DE"}))) == EU
    assert permitted_regions(policy, a_name("us", client_countries=frozenset({"US"}))) == {"us-east"}
    assert permitted_regions(policy, a_name("tx", client_subdivisions=frozenset({"US-TX"}))) == {"us-east"}
    assert permitted_regions(policy, a_name("in", client_countries=frozenset({"IN"}))) == EVERYWHERE


def test_an_unknown_subdivision_counts_as_any() -> None:
    policy = dns_policy(planet.policy(NOT_TEXAS))
    assert permitted_regions(policy, a_name("x"), US) == EU
    assert permitted_regions(policy, a_name("x"), TEXAS) == EU
    assert permitted_regions(policy, a_name("x"), Location("US", "NY")) == EVERYWHERE
    assert permitted_regions(policy, a_name("x", client_subdivisions=frozenset({"US-NY"}))) == EVERYWHERE
    assert permitted_regions(policy, a_name("x", client_countries=frozenset({"US"}))) == EU
    assert permitted_regions(policy, a_name("x", client_countries=frozenset({"DE"}))) == EVERYWHERE
