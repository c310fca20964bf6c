"""Entry regions for a client: permitted regions only, healthy and near ones first."""

from __future__ import annotations

import msgspec

from penstock.health.region_health import RegionState
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.policy.kinds.regions import EntryMap
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason
from penstock.routing.steering import Client, SteeringAdvice, SteeringAdvisor, round_trips_ms
from tests.support.planet import MODEL, policy, with_bias

CHANGING_TTL_S, STEADY_TTL_S = 5.0, 60.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

EVERYWHERE = ("eu-de", "eu-es", "us-east")
WELL = dict.fromkeys(EVERYWHERE, RegionState.HEALTHY)
READY = {(name, MODEL) for name in EVERYWHERE}

LISBON = Location("PT", "11", 38.72, -9.14)
BOSTON = Location("US", "MA", 42.36, -71.06)

EU_CLIENTS = ResidencyRule(
    "eu-clients", client_countries=frozenset({"DE", "PT"}), allow=frozenset({"eu-de", "eu-es"}), source="r.yaml:9"
)


def advise(client: Client, states=WELL, ready=READY, under: Policy | None = None) -> SteeringAdvice:
    return SteeringAdvisor(under or policy()).advise(client, states, ready)


def names(advice: SteeringAdvice) -> list[str]:
    return [entry.region for entry in advice.entries]


def test_the_nearest_comes_first() -> None:
    assert names(advise(Client(LISBON, "open", MODEL))) == ["eu-es", "eu-de", "us-east"]
    far = advise(Client(BOSTON, "open", MODEL))
    assert names(far)[0] == "us-east"
    assert far.entries[0].serves_model
    assert far.ttl_s == STEADY_TTL_S


def test_a_forbidden_region_is_absent_with_the_rule() -> None:
    advice = advise(Client(BOSTON, "personal", MODEL))
    assert names(advice) == ["eu-es", "eu-de"]
    assert advice.residency == "eu-de+eu-es"
    assert [(rejection.what, rejection.detail) for rejection in advice.rejected] == [
        ("us-east", "personal-data-stays-in-the-eu (residency.yaml:3)")
    ]


def test_without_a_tenant_what_every_tenant_may_use() -> None:
    assert names(advise(Client(BOSTON))) == ["eu-es", "eu-de"]
    us_only = ResidencyRule("open-in-us", data_classes=frozenset({"open"}), allow=frozenset({"us-east"}))
    nothing = advise(Client(BOSTON), under=policy(*policy().residency, us_only))
    assert nothing.entries == ()
    assert nothing.refusal is not None
    assert nothing.refusal.reason is Reason.NO_PERMITTED_REGION
    assert "name the tenant" in nothing.refusal.detail
    assert {rejection.what for rejection in nothing.rejected} == set(EVERYWHERE)


def test_a_rule_about_one_tenant_binds_advice_without_one() -> None:
    rule = ResidencyRule("open-not-in-spain", tenants=frozenset({"open"}), deny=frozenset({"eu-es"}))
    assert names(advise(Client(LISBON), under=policy(rule))) == ["eu-de", "us-east"]


def test_governed_clients_who_are_nowhere_are_not_guessed() -> None:
    for tenant in ("open", None):
        advice = advise(Client(NOWHERE, tenant), under=policy(EU_CLIENTS))
        assert advice.entries == ()
        assert advice.refusal is not None
        assert advice.refusal.reason is Reason.LOCATION_UNKNOWN
    assert names(advise(Client(NOWHERE, "open"))) == sorted(EVERYWHERE)


def test_a_country_alone_is_as_near_as_its_region() -> None:
    advice = advise(Client(Location("US"), "open"))
    assert names(advice)[0] == "us-east"
    assert advise(Client(Location("JP"), "open")).entries[0].round_trip_ms is None


def test_drained_and_failed_regions_are_absent_until_nothing_else_is_left() -> None:
    states = WELL | {"eu-es": RegionState.DRAINING, "us-east": RegionState.FAILED}
    advice = advise(Client(LISBON, "open"), states)
    assert names(advice) == ["eu-de"]
    assert [(rejection.what, rejection.reason) for rejection in advice.rejected] == [
        ("eu-es", Reason.REGION_DRAINING),
        ("us-east", Reason.REGION_FAILED),
    ]
    assert advice.ttl_s == CHANGING_TTL_S
    states["eu-de"] = RegionState.FAILED
    assert names(advise(Client(LISBON, "open"), states)) == ["eu-es", "eu-de", "us-east"]


def test_returning_and_unknown_regions_come_after_healthy_ones() -> None:
    states = {"eu-es": RegionState.RECOVERING, "us-east": RegionState.HEALTHY}
    assert names(advise(Client(LISBON, "open"), states)) == ["us-east", "eu-es", "eu-de"]


def test_a_degraded_region_keeps_its_clients_for_a_short_while_at_a_time() -> None:
    advice = advise(Client(LISBON, "open"), WELL | {"eu-es": RegionState.DEGRADED})
    assert names(advice)[0] == "eu-es"
    assert [entry.state for entry in advice.entries] == [RegionState.DEGRADED] + [RegionState.HEALTHY] * 2
    assert advice.ttl_s == CHANGING_TTL_S


def test_an_entry_without_the_model_costs_the_way_on() -> None:
    advice = advise(Client(LISBON, "open", MODEL), ready={("eu-de", MODEL)})
    assert names(advice)[0] in ("eu-de", "eu-es")
    assert names(advice)[-1] == "us-east"
    assert names(advise(Client(LISBON, "open", MODEL), ready={("us-east", MODEL)})) == ["us-east", "eu-es", "eu-de"]
    assert names(advise(Client(BOSTON, "open", MODEL), ready={("eu-es", MODEL)})) == ["eu-es", "us-east", "eu-de"]
    assert [entry.serves_model for entry in advice.entries if entry.region == "eu-es"] == [False]
    assert {entry.serves_model for entry in advise(Client(LISBON, "open")).entries} == {None}


def test_without_clients_and_measurements() -> None:
    unknown_peer = advise(Client(LISBON, "nobody")).refusal
    assert unknown_peer is not None
    assert unknown_peer.reason is Reason.INVALID_API_KEY
    unknown = advise(Client(LISBON, "open", "gpt-9"))
    assert unknown.refusal is not None
    assert (unknown.refusal.reason, unknown.entries) == (Reason.MODEL_NOT_FOUND, ())
    unused = msgspec.structs.replace(policy(), tenants={})
    assert names(advise(Client(LISBON), under=unused)) == ["eu-es", "eu-de", "us-east"]


def test_measured_paths_correct_geography() -> None:
    by_geography = round_trips_ms(policy(), LISBON)
    detour = {"eu-es": {"eu-de": 400.0, "eu-es": 1.0}}
    measured = round_trips_ms(msgspec.structs.replace(policy(), rtt_ms=detour), LISBON)
    assert measured["eu-es"] == by_geography["eu-es"]
    assert measured["eu-de"] > 10 * by_geography["eu-de"]
    assert measured["us-east"] == by_geography["us-east"]


def test_a_biased_region_counts_as_more_distant() -> None:
    biased = with_bias(policy(), {"eu-es": 300.0})
    assert names(advise(Client(LISBON, "open", MODEL), under=biased)) == ["eu-de", "us-east", "eu-es"]


def test_what_was_measured_goes_before_geography() -> None:
    measured = msgspec.structs.replace(policy(), rtt_ms={"eu-es": {"eu-de": 500.0}})
    assert names(advise(Client(LISBON, "open", MODEL), under=measured))[1] == "us-east"
    assert names(advise(Client(LISBON, "open", MODEL), under=policy()))[1] == "eu-de"


def test_a_map_goes_before_what_is_near_and_after_what_is_permitted_and_well() -> None:
    to_us = EntryMap("iberia", frozenset({"PT"}), frozenset(), ("us-east", "eu-de"))
    under = msgspec.structs.replace(policy(), entry_maps=(to_us,))
    assert names(advise(Client(LISBON, "open", MODEL), under=under)) == ["us-east", "eu-de", "eu-es"]
    assert names(advise(Client(LISBON, "personal", MODEL), under=under)) == ["eu-de", "eu-es"]
    ill = WELL | {"us-east": RegionState.RECOVERING}
    assert names(advise(Client(LISBON, "open", MODEL), ill, under=under)) == ["eu-de", "eu-es", "us-east"]


def test_a_name_for_versions_is_served_where_any_of_them_is() -> None:
    canary = ModelVersions("llama", (Version(MODEL, 90.0), Version("next", 10.0), Version("later", 0.0)))
    under = msgspec.structs.replace(
        policy(), models={name: Model(name) for name in (MODEL, "next", "later")}, versions={"llama": canary}
    )
    advice = advise(Client(LISBON, "open", "llama"), ready={("eu-de", "next"), ("eu-es", "later")}, under=under)
    assert {entry.region: entry.serves_model for entry in advice.entries} == {
        "eu-de": True,
        "eu-es": False,
        "us-east": False,
    }
    assert advise(Client(LISBON, "open", "lama"), under=under).refusal is not None
