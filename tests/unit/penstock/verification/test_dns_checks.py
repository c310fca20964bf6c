"""The verification of DNS names: it passes for every name, and finds a defect of any part of an answer."""

from __future__ import annotations

import msgspec
import pytest

from penstock.dns import name_answer, permitted_regions
from penstock.policy.geography import Location
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.verification.dns_checks import at_names
from penstock.verification.situations import situations
from penstock.verification.verify import verify
from tests.support import planet
from tests.support.dns_names import EU, NAMES, a_name, dns_policy

OF_GERMANS = ResidencyRule("germans", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}), source="r.yaml:1")
NOT_TEXAS = ResidencyRule("not-texas", client_subdivisions=frozenset({"US-TX"}), deny=frozenset({"us-east"}))
EVERY_NAME = (
    *NAMES,
    a_name("all"),
    a_name("german", client_countries=frozenset({"DE"})),
    a_name("elsewhere", client_countries=frozenset({"BR"})),
    a_name("ny", client_subdivisions=frozenset({"US-NY"})),
    a_name("tx", client_subdivisions=frozenset({"US-TX"})),
)
POLICY = dns_policy(planet.policy(planet.EU_ONLY, OF_GERMANS, NOT_TEXAS), EVERY_NAME)


def regions_of(policy: Policy) -> set[tuple[str, str]]:
    return {(found.requests, found.region) for found in at_names(policy, situations(policy)).breaches}


def test_every_name_keeps_the_rules() -> None:
    checked = at_names(POLICY, situations(POLICY))
    assert checked.breaches == ()
    assert checked.answers > 500
    assert verify(POLICY).dns_answers == checked.answers


def test_a_name_that_can_resolve_nowhere_is_a_warning() -> None:
    assert any("us-only.api.example.com" in warning for warning in verify(POLICY).warnings)


def test_a_type_of_addresses_that_only_some_regions_of_a_name_have_is_a_warning() -> None:
    names = (a_name("open", tenants=("open",)), a_name("eu", covers=EU))
    policy = dns_policy(names=names)
    (warning,) = at_names(policy, situations(policy)).warnings
    assert "open.api.example.com: us-east without IPv6 addresses" in warning


def test_a_type_that_a_name_has_beside_a_cname_alone_is_a_warning() -> None:
    """The answers of the region with addresses have none of the other type."""
    policy = dns_policy(names=(a_name("eu", covers=EU),))
    entries = {"eu-de": RegionEntry(addresses=("2001:db8::10",)), "eu-es": RegionEntry(cname="lb.example.net")}
    regions = {name: msgspec.structs.replace(policy.regions[name], entry=entry) for name, entry in entries.items()}
    policy = msgspec.structs.replace(policy, regions=policy.regions | regions)
    (warning,) = at_names(policy, situations(policy)).warnings
    assert "eu.api.example.com: eu-de without IPv4 addresses, beside a region with a cname" in warning
    assert "clients with IPv4 find no address in answers of these regions" in warning


def test_a_rule_that_the_answers_forget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permitted_regions, "may_apply", lambda rule, name, facts: bool(rule.data_classes))
    found = regions_of(POLICY)
    assert ("all.api.example.com, asked with a client subnet in DE", "eu-es") in found
    assert ("german.api.example.com, asked without a client subnet", "eu-es") in found


def test_an_unknown_location_that_counts_as_ungoverned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = permitted_regions.permitted_regions
    monkeypatch.setattr(
        name_answer,
        "permitted_regions",
        lambda policy, name, client: real(policy, name, client if client.country else Location("XX")),
    )
    assert ("all.api.example.com, asked without a client subnet", "eu-es") in regions_of(POLICY)


def test_a_choice_outside_the_permitted_regions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_answer, "_checked", lambda shares, permitted: {"us-east": 1.0})
    assert ("eu.api.example.com, asked without a client subnet", "us-east") in regions_of(POLICY)


def test_a_lost_region_that_is_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_answer, "_ABSENT", {})
    found = at_names(POLICY, situations(POLICY)).breaches
    assert any(breach.detail == "is lost, and answered" for breach in found)


def test_a_last_resort_that_is_a_region_is_found() -> None:
    name = a_name("page", tenants=("personal",), last_resort=("198.51.100.30",))
    (found,) = at_names(policy := dns_policy(names=(name,)), situations(policy)).breaches
    assert (found.region, found.stage) == ("us-east", "dns")


def test_the_breach_cites_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_answer, "permitted_regions", lambda policy, name, client: name.covers)
    policy = dns_policy(names=(a_name("eu", tenants=("personal",)),))
    (found, *_) = at_names(policy, situations(policy)).breaches
    assert found.rules == ("personal-data-stays-in-the-eu (residency.yaml:3)",)
    assert msgspec.structs.asdict(found)["region"] not in EU
