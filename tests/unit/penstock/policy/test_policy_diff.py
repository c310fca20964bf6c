"""A diff names exactly the objects whose meaning changed."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from penstock.policy.kinds.operations import MaintenanceWindow, Recurrence
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.spillover_and_failover import Spillover
from penstock.policy.kinds.tenants import Tier
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import Change, ChangeKind, diff
from penstock.policy.time_zone import ClockChange, TimeZone
from tests.support import planet

POLICY = planet.policy()


def changed(**fields: object) -> Policy:
    return msgspec.structs.replace(POLICY, **fields)


def test_a_policy_does_not_differ_from_itself() -> None:
    assert diff(POLICY, POLICY) == ()


def test_a_changed_field_is_named_by_kind_and_field_with_both_values() -> None:
    after = changed(spillover=msgspec.structs.replace(POLICY.spillover, target_utilisation=0.5))
    assert diff(POLICY, after) == (
        Change(ChangeKind.CHANGED, "Spillover", "", "target_utilisation", Spillover().target_utilisation, 0.5),
    )


def test_a_field_of_a_named_document_carries_the_name() -> None:
    name, region = next(iter(POLICY.regions.items()))
    after = changed(regions={**POLICY.regions, name: msgspec.structs.replace(region, city="Elsewhere")})
    (change,) = diff(POLICY, after)
    assert (change.kind, change.name, change.field, change.after) == ("Region", name, "city", "Elsewhere")


def test_added_and_removed_documents_are_shown_whole() -> None:
    name, model = next(iter(POLICY.models.items()))
    others = {key: kept for key, kept in POLICY.models.items() if key != name}
    after = changed(models={**others, "new": msgspec.structs.replace(model, name="new")})
    assert {(change.how, change.kind, change.name, change.field) for change in diff(POLICY, after)} == {
        (ChangeKind.ADDED, "Model", "new", ""),
        (ChangeKind.REMOVED, "Model", name, ""),
    }


def test_a_first_document_of_a_kind_is_added() -> None:
    before, after = changed(residency=()), changed(residency=(ResidencyRule("one", deny=frozenset({"eu-de"})),))
    assert [(change.how, change.name) for change in diff(before, after)] == [(ChangeKind.ADDED, "one")]


def test_where_a_rule_is_written_is_no_difference() -> None:
    here = changed(residency=(ResidencyRule("one", source="a.yaml:3"),))
    there = changed(residency=(ResidencyRule("one", source="b.yaml:9"),))
    assert here.digest() != there.digest()
    assert diff(here, there) == ()


def test_sets_are_sorted_and_an_absent_allow_differs_from_an_empty_one() -> None:
    before = changed(residency=(ResidencyRule("one"),))
    after = changed(residency=(ResidencyRule("one", allow=frozenset({"b", "a"})),))
    (change,) = diff(before, after)
    assert (change.how, change.before, change.after) == (ChangeKind.ADDED, None, ["a", "b"])
    assert str(change) == 'ResidencyRule one allow: nothing -> ["a","b"]'


def test_one_round_trip_is_one_difference() -> None:
    before, after = changed(rtt_ms={"a": {"b": 1.0, "c": 2.0}}), changed(rtt_ms={"a": {"b": 1.0, "c": 3.0}})
    (change,) = diff(before, after)
    assert (change.kind, change.field, change.before, change.after) == ("GeoRouting", "rtt_ms.a.c", 2.0, 3.0)


def test_digests_of_keys_are_cut_short() -> None:
    name, tenant = next(iter(POLICY.tenants.items()))
    after = changed(tenants={**POLICY.tenants, name: msgspec.structs.replace(tenant, key_digests=("ab" * 32,))})
    (change,) = diff(POLICY, after)
    assert change.after == ["ab" * 6]


def test_letting_the_anonymous_in_is_a_difference() -> None:
    (change,) = diff(changed(anonymous_tenant=None), changed(anonymous_tenant="open"))
    assert (change.kind, change.field, change.after) == ("AnonymousAccess", "anonymous_tenant", "open")


def test_a_zone_is_shown_with_its_window_and_only_the_rules_that_differ() -> None:
    window = MaintenanceWindow("disks", frozenset({"eu-de"}), 0.0, 60.0, Recurrence.DAILY)
    here = msgspec.structs.replace(window, time_zone="Europe/Berlin")
    zones = {"Europe/Berlin": TimeZone((ClockChange(0, 3600),))}
    by_utc, by_berlin = changed(maintenance=(window,)), changed(maintenance=(here,), time_zones=zones)
    assert [str(change) for change in diff(by_utc, by_berlin)] == [
        'MaintenanceWindow disks time_zone: nothing -> "Europe/Berlin"'
    ]
    later = changed(maintenance=(here,), time_zones={"Europe/Berlin": TimeZone((ClockChange(0, 7200),))})
    (change,) = diff(by_berlin, later)
    assert (change.kind, change.name, change.field) == ("TimeZone", "Europe/Berlin", "changes")
    assert len(str(change)) < 100


def test_the_last_document_of_an_optional_kind_is_removed() -> None:
    tiers = {"gold": Tier("gold", "open")}
    (change,) = diff(changed(tiers=tiers), changed(tiers=UNSET))
    assert (change.how, change.kind, change.name) == (ChangeKind.REMOVED, "Tier", "gold")
    (change,) = diff(changed(tiers=UNSET), changed(tiers=tiers))
    assert (change.how, change.kind, change.name) == (ChangeKind.ADDED, "Tier", "gold")
