"""Guard rails reject an override that would empty a residency class or remove too much capacity."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.overrides.guard_rails import MAX_ENDS, Objection, objection, tenants_by_class
from penstock.overrides.overrides import Override, lifted
from penstock.policy.kinds.operations import GuardRails, MaintenanceWindow
from penstock.policy.kinds.residency_rules import ResidencyRule
from tests.support import planet
from tests.support.dns_names import NAMES, a_name, dns_policy
from tests.support.override_builders import drain, drain_endpoint, fail_over, freeze, weight
from tests.support.planet import MODEL

REPORTED_S = 15.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

REGIONS = ("eu-de", "eu-es", "us-east")
POLICY = msgspec.structs.replace(planet.policy(), guard_rails=GuardRails(max_withdrawn_share=0.7))
EVEN = {(region, MODEL): 10.0 for region in REGIONS}


def against(wanted: Override, *standing: Override, **fields: object) -> Objection | None:
    given = {"policy": POLICY, "capacity": EVEN, "now": 1.0} | fields
    return objection(overrides=standing, wanted=wanted, **given)  # type: ignore[arg-type]


def classes(raised: Objection | None) -> list[str]:
    return [emptied.residency for emptied in raised.classes] if raised is not None else []


def test_a_first_drain_is_fine_and_the_last_of_a_class_is_not() -> None:
    assert against(drain("eu-de")) is None
    raised = against(drain("eu-es"), drain("eu-de"))
    assert raised is not None
    assert [(emptied.residency, emptied.model, emptied.tenants) for emptied in raised.classes] == [
        ("eu-de+eu-es", MODEL, ("personal",))
    ]
    assert "class eu-de+eu-es no region" in raised.detail
    assert "personal" in raised.detail


@pytest.mark.parametrize("second", [fail_over("eu-es"), weight("eu-es", 0.0), drain("eu-es", origin="eu-de")])
@pytest.mark.parametrize("first", [drain("eu-de"), fail_over("eu-de"), weight("eu-de", 0.0)])
def test_however_it_is_emptied(first: Override, second: Override) -> None:
    assert classes(against(second, first)) == ["eu-de+eu-es"]


def test_the_last_resort_of_a_class_that_is_emptied_already_is_not_taken_either() -> None:
    both = (drain("eu-de"), drain("eu-es"))
    assert against(drain("eu-de", id="more", last_resort=False), *both) is None
    shut = drain("eu-de", id="more", last_resort=False)
    assert classes(against(drain("eu-es", id="last", last_resort=False), *both, shut)) == ["eu-de+eu-es"]


def test_an_endpoint_may_go_unless_it_is_the_last_of_a_class() -> None:
    last = drain_endpoint("eu-es", "gpu-1", last_of=(MODEL,))
    assert against(drain_endpoint("eu-es", "gpu-1"), drain("eu-de")) is None
    assert against(last) is None
    raised = against(last, drain("eu-de"))
    assert classes(raised) == ["eu-de+eu-es"]
    assert raised is not None
    assert raised.detail.startswith(f"gpu-1 is the last endpoint of eu-es that serves {MODEL}: drain")
    assert against(drain("eu-de"), drain_endpoint("eu-es", "gpu-1")) is None
    assert classes(against(drain("eu-de"), last)) == ["eu-de+eu-es"], "its agent has not reported the drain yet"
    assert classes(against(drain("eu-de"), last, now=REPORTED_S - 1.0)) == ["eu-de+eu-es"]
    assert against(drain("eu-de"), last, now=REPORTED_S) is None, "the capacity is what the agent reports now"


def test_a_weight_above_nothing_and_a_freeze_empty_no_class() -> None:
    assert against(weight("eu-es", 0.1), weight("eu-de", 0.1)) is None
    assert against(freeze(), drain("eu-de")) is None


def test_what_has_ended_or_concerns_others_does_not_count() -> None:
    assert against(drain("eu-es"), lifted(drain("eu-de"), "operator", 0.5)) is None
    assert against(drain("eu-es"), drain("eu-de", expires_at=0.5)) is None
    assert against(drain("eu-es"), drain("eu-de", model="another")) is None
    assert against(drain("eu-es", origin="eu-es"), drain("eu-de", origin="eu-de")) is None
    assert classes(against(drain("eu-es"), drain("eu-de", origin="eu-de"))) == ["eu-de+eu-es"]


def test_a_region_that_has_failed_or_lacks_the_model_is_no_region_for_a_class() -> None:
    for capacity in ({key: slots for key, slots in EVEN.items() if key[0] != "eu-de"}, EVEN | {("eu-de", MODEL): 0.0}):
        raised = against(drain("eu-es"), capacity=capacity)
        assert classes(raised) == ["eu-de+eu-es"]
        assert raised is not None
        assert "no region for llama-3.1-8b (tenants personal; no capacity for it in eu-de)" in raised.detail


def test_without_reports_every_region_counts_alike() -> None:
    assert against(drain("eu-de"), capacity={}) is None
    assert classes(against(drain("eu-es"), drain("eu-de"), capacity={})) == ["eu-de+eu-es"]


def test_more_than_the_set_share_of_a_models_capacity_is_too_much() -> None:
    capacity = EVEN | {("us-east", MODEL): 80.0}
    raised = against(drain("us-east"), capacity=capacity)
    assert raised is not None
    assert raised.withdrawn == {MODEL: pytest.approx(0.8)}
    assert raised.classes == ()
    assert "80% of the fleet's capacity" in raised.detail
    assert against(weight("us-east", 0.2), capacity=capacity) is None
    raised = against(weight("us-east", 0.2), drain("eu-de"), capacity=capacity)
    assert raised is not None
    assert raised.withdrawn == {MODEL: pytest.approx(0.74)}


def test_many_small_drains_are_judged_as_the_large_one_that_they_are_together() -> None:
    policy = msgspec.structs.replace(POLICY, guard_rails=GuardRails(max_withdrawn_share=0.5))
    capacity = EVEN | {("us-east", MODEL): 20.0}
    small = [drain("us-east", origin=origin) for origin in REGIONS]
    assert against(small[-1], *small[:-1], policy=policy, capacity=capacity) is None
    raised = against(weight("eu-de", 0.5), *small, policy=policy, capacity=capacity)
    assert raised is not None
    assert raised.withdrawn == {MODEL: pytest.approx(0.625)}
    assert against(weight("eu-de", 0.5, origin="eu-de"), *small[1:], policy=policy, capacity=capacity) is None


def test_a_maintenance_window_that_opens_meanwhile_counts() -> None:
    window = MaintenanceWindow("disks", frozenset({"eu-de"}), 1000.0, 3600.0, lead_s=0.0)
    policy = msgspec.structs.replace(POLICY, maintenance=(window,))
    assert classes(against(drain("eu-es", expires_at=2000.0), policy=policy)) == ["eu-de+eu-es"]
    assert against(drain("eu-es", expires_at=999.0), policy=policy) is None
    assert against(drain("eu-es"), policy=policy, now=5000.0) is None
    next_month = msgspec.structs.replace(POLICY, maintenance=(msgspec.structs.replace(window, starts_at=2_592_000.0),))
    assert classes(against(drain("eu-es"), policy=next_month)) == ["eu-de+eu-es"]


@pytest.mark.parametrize("wanted", [drain("eu-es"), fail_over("eu-es"), weight("eu-es", 0.0)])
def test_what_outlasts_a_drain_of_its_region_is_judged_for_the_time_after_it(wanted: Override) -> None:
    other, forced = drain("eu-de", id="other"), drain("eu-es", id="forced", expires_at=1000.0)
    assert classes(against(wanted, other, forced)) == ["eu-de+eu-es"]
    assert against(msgspec.structs.replace(wanted, expires_at=1000.0), other, forced) is None
    assert against(wanted, msgspec.structs.replace(other, expires_at=1000.0), forced) is None, "the other is back then"
    window = MaintenanceWindow("disks", frozenset({"eu-es"}), 0.0, 1000.0, lead_s=0.0)
    policy = msgspec.structs.replace(POLICY, maintenance=(window,))
    assert classes(against(wanted, other, policy=policy)) == ["eu-de+eu-es"]
    assert against(msgspec.structs.replace(wanted, expires_at=1000.0), other, policy=policy) is None


def test_of_many_ends_the_last_ones_are_judged() -> None:
    many = [drain("eu-es", id=f"forced-{number}", expires_at=1000.0 + number) for number in range(2 * MAX_ENDS)]
    assert classes(against(drain("eu-es"), drain("eu-de"), *many)) == ["eu-de+eu-es"]


def test_the_capacity_that_is_withdrawn_after_another_drain_of_the_region_counts() -> None:
    slots = EVEN | {("us-east", MODEL): 100.0}
    standing = drain("us-east", id="forced", expires_at=1000.0)
    raised = against(weight("us-east", 0.1), standing, capacity=slots)
    assert raised is not None
    assert raised.withdrawn == {MODEL: pytest.approx(0.75)}
    assert against(weight("us-east", 0.1, expires_at=1000.0), standing, capacity=slots) is None


def test_classes_list_their_tenants_for_clients_anywhere() -> None:
    rule = ResidencyRule("germans", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}))
    listed = {residency.name: tenants for residency, tenants in tenants_by_class(planet.policy(rule)).items()}
    assert listed == {"eu-de": ("open", "personal"), "eu-de+eu-es+us-east": ("open", "personal")}


@given(st.permutations([drain(region) for region in REGIONS]), st.sampled_from((0.0, 5.0, 10.0)))
def test_drains_that_are_let_through_never_empty_a_class_together(wanted: list[Override], slots: float) -> None:
    capacity = EVEN | {("eu-de", MODEL): slots}
    standing: list[Override] = []
    for override in wanted:
        if against(override, *standing, capacity=capacity) is None:
            standing.append(override)
    having = {region for (region, _), amount in capacity.items() if amount > 0}
    for residency in tenants_by_class(POLICY):
        assert residency.regions & having - {override.region for override in standing}


def test_the_last_region_of_a_dns_name_is_not_drained_either() -> None:
    """No name resolves to a drained region, although its residency class has others."""
    named = dns_policy(POLICY, (a_name("spain", tenants=("personal",), covers=frozenset({"eu-es"})), *NAMES))
    raised = against(drain("eu-es"), policy=named)
    assert raised is not None
    assert (raised.names, raised.classes, raised.withdrawn) == (("spain.api.example.com",), (), {})
    assert "no region to spain.api.example.com" in raised.detail
    assert against(drain("eu-de"), policy=named) is None
    of_an_origin = drain("eu-es", origin="eu-de")
    assert against(of_an_origin, policy=named) is None, "the region stays an entry"
    raised = against(drain("eu-de"), fail_over("eu-es"), policy=named)
    assert raised is not None
    assert raised.names == ("eu.api.example.com", "page.api.example.com"), "not what was emptied before"
