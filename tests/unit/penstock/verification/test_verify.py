"""Verification of a policy: its results for good and bad bundles, and that it finds a defect in any stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.jobs.store_selection import select_store
from penstock.planning.planner import PlanResult
from penstock.planning.tick_input import TickInput
from penstock.planning.waterfall import WaterfallPlanner
from penstock.policy import residency
from penstock.policy.geography import Location
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, ResidencyRule
from penstock.policy.kinds.tenants import Tenant, Tier
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, residency_class
from penstock.routing import decision, region_selection, steering
from penstock.routing.reasons import Refusal
from penstock.routing.steering import Client, entry_mask
from penstock.verification import plan_checks, stages, survival
from penstock.verification.situations import OTHER_SUBDIVISION, places, situations
from penstock.verification.verify import verify
from penstock.wire import route_context
from tests.support.paths import PLANET as PLANET_FOLDER

PLANET = compile_bundle(read_folder(PLANET_FOLDER))
EU_ONLY = ResidencyRule("eu-only", tenants=frozenset({"one"}), allow=frozenset({"de", "es"}), source="r.yaml:3")


def policy(*rules: ResidencyRule, **more: Any) -> Policy:
    names = ("de", "es", "us", "jp")
    return Policy(
        regions={name: Region(name, "XX", 10.0 * n, 20.0 * n) for n, name in enumerate(names)},
        models={"m": Model("m")},
        tenants={"one": Tenant("one", "personal"), "two": Tenant("two", "open")},
        residency=rules,
        **more,
    )


class TestSituations:
    def test_every_location_that_a_rule_distinguishes(self) -> None:
        rule = ResidencyRule("r", client_countries=frozenset({"DE"}), client_subdivisions=frozenset({"US-CA"}))
        assert places(policy(rule)) == [
            Location(None),
            Location("XX"),
            Location("DE"),
            Location("US"),
            Location("US", OTHER_SUBDIVISION),
            Location("US", "CA"),
        ]

    def test_those_with_equal_answers_are_one(self) -> None:
        rule = ResidencyRule("r", data_classes=frozenset({"personal"}), client_countries=frozenset({"DE", "FR"}))
        distinct = situations(policy(rule))
        assert [(situation.tenants, situation.applies, len(situation.places)) for situation in distinct] == [
            (("one",), (None,), 1),
            (("one",), (False,), 1),
            (("one",), (True,), 2),
            (("two",), (False,), 4),
        ]

    def test_tenants_that_no_rule_distinguishes_are_one(self) -> None:
        (only,) = situations(policy())
        assert only.tenants == ("one", "two")
        assert only.anywhere

    def test_the_created_tenants_of_a_tier_are_a_tenant_that_no_rule_names(self) -> None:
        named = ResidencyRule("r", tenants=frozenset({"one"}), deny=frozenset({"de"}))
        of_class = ResidencyRule("c", data_classes=frozenset({"personal"}), deny=frozenset({"us"}))
        found = situations(policy(named, of_class, tiers={"gold": Tier("gold", "personal")}))
        assert [(situation.tenants, situation.applies) for situation in found] == [
            (("one",), (True, True)),
            (("two",), (False, False)),
            (("gold/*",), (False, True)),
        ]


class TestTiers:
    def test_a_tier_whose_tenants_no_region_may_serve_is_unserved(self) -> None:
        nowhere = ResidencyRule("r", data_classes=frozenset({"secret"}), allow=frozenset())
        assert verify(policy(nowhere, tiers={"gold": Tier("gold", "secret")})).unserved == ("gold/*",)

    def test_a_tier_that_only_one_region_may_serve_does_not_survive(self) -> None:
        rule = ResidencyRule("r", data_classes=frozenset({"secret"}), allow=frozenset({"de"}))
        report = verify(policy(rule, tiers={"gold": Tier("gold", "secret")}))
        assert not report.breaches
        assert [residency.name for residency in report.unsurvived] == ["de"]
        assert "gold/*" in str(report.unsurvived[0].ends[0])

    def test_steering_without_a_tenant_respects_tiers(self) -> None:
        rule = ResidencyRule("r", data_classes=frozenset({"secret"}), allow=frozenset({"de"}))
        everyone = entry_mask(policy(rule, tiers={"gold": Tier("gold", "secret")}), Client(Location("XX"), None))
        assert isinstance(everyone, Mask)
        assert everyone.permitted.regions == {"de"}


class TestGood:
    def test_the_shipped_bundle(self) -> None:
        verification = verify(PLANET)
        assert verification.passed
        assert not verification.breaches
        assert not verification.warnings
        assert verification.decisions > 5_000
        assert verification.lost_at_once == 2
        assert not verification.partly
        (us,) = [class_survival for class_survival in verification.classes if class_survival.regions == ("us-east",)]
        assert us.accepted
        (eu,) = [
            class_survival for class_survival in verification.classes if class_survival.regions == ("eu-de", "eu-es")
        ]
        assert eu.survives_any_one
        assert [end.lost for end in eu.ends] == [("eu-de", "eu-es")]
        assert [(refused.requests, refused.unknown_location) for refused in verification.refused] == [
            ("personal, client in an unknown place", True)
        ]

    def test_a_class_of_many_regions_is_reported_as_tried_in_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stages, "MAX_DECISIONS", 100)
        monkeypatch.setattr(stages, "MAX_REGIONS", 3)
        verification = verify(policy())
        assert verification.passed
        assert verification.partly == ("de+es+jp+us",)


class TestBad:
    def test_a_class_with_one_region_is_shown_with_the_rule_that_makes_it_so(self) -> None:
        alone = ResidencyRule("alone", tenants=frozenset({"one"}), allow=frozenset({"us"}), source="r.yaml:9")
        verification = verify(policy(EU_ONLY, msgspec.structs.replace(alone, allow=frozenset({"de", "us"}))))
        assert not verification.passed
        (class_survival,) = verification.unsurvived
        assert [str(end) for end in class_survival.ends] == [
            "one, client anywhere: without de no permitted region is left "
            "(es: alone (r.yaml:9); jp: eu-only (r.yaml:3) and alone (r.yaml:9); us: eu-only (r.yaml:3))"
        ]

    def test_a_loss_that_is_accepted_is_none(self) -> None:
        rule = ResidencyRule("alone", tenants=frozenset({"one"}), allow=frozenset({"us"}))
        accepted = AcceptedLoss("fine", frozenset({"us"}), "it waits")
        assert not verify(policy(rule)).passed
        assert verify(policy(rule, accepted_losses=(accepted,))).passed

    def test_requests_without_a_permitted_region_are_reported(self) -> None:
        never = ResidencyRule("never", client_countries=frozenset({"FR"}), deny=frozenset({"de", "es"}))
        nor = ResidencyRule("nor", tenants=frozenset({"two"}), allow=frozenset({"de"}))
        verification = verify(policy(never, nor))
        assert [
            (refused.requests, refused.because) for refused in verification.refused if not refused.unknown_location
        ] == [("two, client in FR", ("never", "nor"))]

    def test_rules_without_effect_are_reported(self) -> None:
        nobody = ResidencyRule("nobody", tenants=frozenset({"gone"}), allow=frozenset({"de"}))
        everywhere = ResidencyRule("everywhere", allow=frozenset({"de", "es", "us", "jp"}))
        stale = AcceptedLoss("stale", frozenset({"jp"}), "was so once")
        assert verify(policy(nobody, everywhere, accepted_losses=(stale,))).warnings == (
            "residency rule nobody matches no tenant's requests",
            "residency rule everywhere keeps requests from no region",
            "accepted loss stale is of no residency class: none permits exactly those regions",
        )


def _ignoring_denials(policy: Policy, facts: residency.RequestFacts) -> Mask | Refusal:
    trusting = [msgspec.structs.replace(rule, deny=frozenset()) for rule in policy.residency]
    return residency.mask(msgspec.structs.replace(policy, residency=tuple(trusting)), facts)


def _ignoring_the_mask(*args: Any, **more: Any) -> Any:
    rules, plan, request, *rest = args
    everywhere = msgspec.structs.replace(request, permitted=residency_class(frozenset(rules.regions)))
    return region_selection.region_options(rules, plan, everywhere, *rest, **more)


class _PlanningEverywhere:
    def plan(self, tick: TickInput) -> PlanResult:
        result = WaterfallPlanner().plan(tick)
        plans = {
            name: msgspec.structs.replace(
                plan,
                classes=tuple(
                    msgspec.structs.replace(entry, fallbacks=tuple(tick.policy.regions)) for entry in plan.classes
                ),
            )
            for name, plan in result.plans.items()
        }
        return msgspec.structs.replace(result, plans=plans)


def _mapping_without_the_mask(rules: Policy, client: Any) -> Mask:
    return Mask(residency_class(frozenset(rules.regions)))


def _store_for_all(rules: Policy, region: str, permitted: frozenset[str]) -> JobStore | Refusal:
    return select_store(rules, region, frozenset(rules.regions))


def test_a_job_store_that_covers_a_forbidden_region_is_not_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = ResidencyRule("not-us", tenants=frozenset({"one"}), deny=frozenset({"us"}), source="r.yaml:5")
    stores = tuple(JobStore(name, f"file:///{name}", covers=frozenset(name.split("-"))) for name in ("de-us", "es"))
    rules = policy(denied, job_stores=stores)
    refused = select_store(rules, "de", frozenset({"de", "es", "jp"}))
    assert isinstance(refused, Refusal)
    assert refused.reason is residency.Reason.RESIDENCY_DENIED
    assert select_store(rules, "es", frozenset({"de", "es", "jp"})) is stores[1]
    assert isinstance(select_store(rules, "jp", frozenset(rules.regions)), Refusal)
    assert not verify(rules).breaches
    monkeypatch.setattr(stages, "select_store", _store_for_all)
    assert {(each.stage, each.region) for each in verify(rules).breaches} == {("job store", "us")}


DEFECTS: list[tuple[str, Any, str, Callable[..., Any]]] = [
    ("residency", decision, "mask", _ignoring_denials),
    ("steer", steering, "entry_mask", _mapping_without_the_mask),
    ("server", route_context, "mask", _ignoring_denials),
    ("gate", stages, "within_mask", lambda decided: decided),
    ("plan", plan_checks, "WaterfallPlanner", _PlanningEverywhere),
]


@pytest.mark.parametrize(("stage", "module", "name", "defect"), DEFECTS, ids=[row[0] for row in DEFECTS])
def test_a_defect_in_one_stage_is_found(
    stage: str, module: Any, name: str, defect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = ResidencyRule("not-us", tenants=frozenset({"one"}), deny=frozenset({"us"}), source="r.yaml:5")
    monkeypatch.setattr(module, name, defect)
    verification = verify(policy(denied))
    assert not verification.passed
    assert {breach.stage for breach in verification.breaches} == {stage}
    assert ("us", ("not-us (r.yaml:5)",)) in {(breach.region, breach.rules) for breach in verification.breaches}


def test_a_chooser_that_ignores_the_mask_is_stopped_by_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = ResidencyRule("not-us", tenants=frozenset({"one"}), deny=frozenset({"us"}))
    monkeypatch.setattr(decision, "region_options", _ignoring_the_mask)
    assert not verify(policy(denied)).breaches
    monkeypatch.setattr(decision, "within_mask", lambda decided: decided)
    assert {(breach.stage, breach.region) for breach in verify(policy(denied)).breaches} == {("decide", "us")}


def test_a_decision_that_finds_nothing_is_a_loss_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "decide", lambda *args, **more: Refusal(residency.Reason.NONE_READY, ""))
    assert [end.lost for class_survival in verify(policy()).classes for end in class_survival.ends] == [
        ("de",),
        ("es",),
        ("jp",),
        ("us",),
    ]


def test_a_tenant_without_any_region_fails_and_one_refused_in_places_does_not() -> None:
    none = ResidencyRule("none", tenants=frozenset({"one"}), deny=frozenset({"de", "es", "us", "jp"}))
    verification = verify(policy(none))
    assert (verification.passed, verification.unserved, verification.breaches) == (False, ("one",), ())
    somewhere = msgspec.structs.replace(none, client_countries=frozenset({"KP"}))
    assert (verify(policy(somewhere)).passed, verify(policy(somewhere)).unserved) == (True, ())
