"""The text of explanations, for a small fleet."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.fleet.report import PeerReport
from penstock.fleet.reported_views import reported_views
from penstock.fleet.snapshot import Snapshot, add_report, pools
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, RegionPlan, VersionShare
from penstock.policy.geography import Location
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.kinds.regions import RegionRole, SpotPool
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.result_cache import ResultCache
from penstock.policy.kinds.tenants import BATCH_PRIORITY, Tenant, Tier
from penstock.routing.explain import (
    ApplicableRule,
    ConsideredRegion,
    ExplainQuery,
    Explanation,
    RegionVerdict,
    explain,
    tenant_by_key,
)
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionView
from penstock.tenancy.tenant_record import TenantRecord
from tests.support.planet import MODEL, healthy, plan, policy
from tests.support.reports import report

EVERYWHERE = ("eu-de", "eu-es", "us-east")


def reported(explanation: Explanation) -> dict[str, ConsideredRegion]:
    return {considered.region: considered for considered in explanation.regions}


def test_the_document_by_which_responses_are_kept() -> None:
    cache = ResultCache("chats", ("openai-chat-*",), ("personal",))
    kept = msgspec.structs.replace(policy(), result_caches=(cache,))

    def found(origin: str, tenant: str, path: str) -> str | None:
        query = ExplainQuery(origin, MODEL, tenant, path=path)
        return explain(kept, None, query, healthy(*EVERYWHERE), Random(1)).result_cache

    assert found("eu-de", "personal", "/v1/chat/completions") == "chats"
    assert found("eu-de", "open", "/v1/chat/completions") is None
    assert found("eu-de", "personal", "/v1/embeddings") is None
    assert found("eu-de", "personal", "") is None
    # Residency permits no agent of this region to keep the response.
    assert found("us-east", "personal", "/v1/chat/completions") is None


def test_a_plain_request() -> None:
    shares = plan("eu-de", "eu-de+eu-es", eu_de=0.75, eu_es=0.25)
    explanation = explain(policy(), shares, ExplainQuery("eu-de", MODEL, "personal"), healthy(*EVERYWHERE), Random(1))
    assert (explanation.residency, explanation.data_class, explanation.planned) == ("eu-de+eu-es", "personal", True)
    assert explanation.plan_generation == 1
    assert [(considered.region, considered.verdict, considered.chance) for considered in explanation.regions] == [
        ("eu-de", RegionVerdict.SERVES, 0.75),
        ("eu-es", RegionVerdict.SERVES, 0.25),
        ("us-east", RegionVerdict.FORBIDDEN, 0.0),
    ]
    assert explanation.rules == (
        ApplicableRule("personal-data-stays-in-the-eu", "residency.yaml:3", True, ("eu-de", "eu-es"), ()),
    )
    (why,) = reported(explanation)["us-east"].reasons
    assert (why.reason, why.detail) == (
        Reason.RESIDENCY_NOT_ALLOWED,
        "personal-data-stays-in-the-eu (residency.yaml:3)",
    )
    assert reported(explanation)["eu-es"].why is ArcReason.SPILLOVER
    assert reported(explanation)["eu-es"].arc == Arc("eu-es", 0.25, ArcReason.SPILLOVER)
    assert reported(explanation)["eu-es"].round_trip_ms == policy().round_trip_ms("eu-de", "eu-es") > 0.0
    assert (reported(explanation)["us-east"].arc, reported(explanation)["eu-de"].round_trip_ms) == (None, 0.0)


def test_the_fallbacks_of_the_plan_are_numbered_from_one() -> None:
    fallbacks = ("us-east", "eu-es")
    shares = RegionPlan("eu-de", 1, 1, "", 0.0, (ClassPlan(MODEL, "eu-de+eu-es+us-east", (), fallbacks),))
    explanation = explain(policy(), shares, ExplainQuery("eu-de", MODEL, "open"), healthy(*EVERYWHERE), Random(1))
    assert {name: each.fallback for name, each in reported(explanation).items()} == {
        "us-east": 1,
        "eu-es": 2,
        "eu-de": None,
    }


def test_without_a_plan_the_nearest_serves_and_the_others_are_spare() -> None:
    explanation = explain(policy(), None, ExplainQuery("eu-de", MODEL, "open"), healthy(*EVERYWHERE), Random(1))
    assert not explanation.planned
    assert [considered.verdict for considered in explanation.regions] == [
        RegionVerdict.SERVES,
        RegionVerdict.SPARE,
        RegionVerdict.SPARE,
    ]
    assert explanation.chosen is not None
    assert explanation.chosen.why is ArcReason.HOME


def test_a_failed_region_is_rejected_with_its_state() -> None:
    views = healthy(*EVERYWHERE) | {"eu-de": RegionView(RegionState.FAILED, ready=False)}
    explanation = explain(policy(), None, ExplainQuery("eu-de", MODEL, "personal"), views, Random(1))
    assert reported(explanation)["eu-de"].verdict is RegionVerdict.REJECTED
    assert reported(explanation)["eu-de"].reasons[0].reason is Reason.REGION_FAILED
    assert reported(explanation)["eu-es"].why is ArcReason.FAILOVER


def test_overflow_needs_a_credit() -> None:
    asked = ExplainQuery("eu-de", MODEL, "open", tried={"eu-de": Reason.SATURATED}, overflow=True)
    views = healthy("eu-de", "eu-es") | healthy("us-east", credits=2)
    explanation = explain(policy(), None, asked, views, Random(1))
    assert reported(explanation)["us-east"].spends_credit
    assert {name: considered.verdict for name, considered in reported(explanation).items()} == {
        "us-east": RegionVerdict.SERVES,
        "eu-es": RegionVerdict.REJECTED,
        "eu-de": RegionVerdict.REJECTED,
    }
    nobody = explain(policy(), None, asked, healthy(*EVERYWHERE), Random(1))
    assert nobody.refusal is not None
    assert nobody.refusal.reason is Reason.SATURATED
    assert {name: (each.verdict, each.reasons[0].reason) for name, each in reported(nobody).items()} == {
        "eu-de": (RegionVerdict.REJECTED, Reason.ALREADY_TRIED),
        "eu-es": (RegionVerdict.REJECTED, Reason.NO_CREDIT),
        "us-east": (RegionVerdict.REJECTED, Reason.NO_CREDIT),
    }


def test_a_batch_request_is_in_the_cheapest_region_with_idle_slots() -> None:
    fleet = policy()
    priced = {"eu-de": 3.0, "us-east": 2.0, "eu-es": 1.0}
    regions = {
        name: msgspec.structs.replace(region, cost_per_gpu_hour=priced[name]) for name, region in fleet.regions.items()
    }
    fleet = msgspec.structs.replace(fleet, regions=regions)
    views = healthy("eu-de", "us-east", batch_room=1) | healthy("eu-es", credits=9)
    asked = ExplainQuery("eu-de", MODEL, "open", is_batch=True)
    explanation = explain(fleet, None, asked, views, Random(1))
    assert explanation.chosen is not None
    assert (explanation.chosen.region, explanation.chosen.why, explanation.chosen.spends_credit) == (
        "us-east",
        ArcReason.BATCH,
        True,
    )
    assert {
        name: (considered.verdict, [each.reason for each in considered.reasons])
        for name, considered in reported(explanation).items()
    } == {
        "us-east": (RegionVerdict.SERVES, []),
        "eu-de": (RegionVerdict.SPARE, [Reason.COSTS_MORE]),
        "eu-es": (RegionVerdict.REJECTED, [Reason.NO_IDLE_SLOTS]),
    }
    assert reported(explanation)["eu-de"].reasons[0].detail == "3 for a GPU hour with egress, and 2 in us-east"
    cheap = msgspec.structs.replace(fleet.regions["eu-de"], spot=(SpotPool((MODEL,), 1.5), SpotPool(("other",), 9.0)))
    on_spot = msgspec.structs.replace(fleet, regions={**regions, "eu-de": cheap})
    assert reported(explain(on_spot, None, asked, views, Random(1)))["eu-de"].verdict is RegionVerdict.SERVES
    passive = msgspec.structs.replace(regions["us-east"], role=RegionRole.PASSIVE)
    standby = msgspec.structs.replace(fleet, regions={**regions, "us-east": passive})
    assert reported(explain(standby, None, asked, views, Random(1)))["eu-de"].verdict is RegionVerdict.SERVES
    alike = explain(policy(), None, asked, healthy(*EVERYWHERE, batch_room=1), Random(1)).chosen
    assert alike is not None
    assert (alike.region, alike.why, alike.spends_credit) == ("eu-de", ArcReason.HOME, False)
    at_home = explain(fleet, None, asked, healthy("eu-de", batch_room=1), Random(1)).chosen
    assert at_home is not None
    assert (at_home.region, at_home.why, at_home.spends_credit) == ("eu-de", ArcReason.HOME, False)
    below_all = msgspec.structs.replace(fleet.tenants["open"], priority=BATCH_PRIORITY)
    of_tier = msgspec.structs.replace(fleet, tenants={"open": below_all})
    same = explain(of_tier, None, ExplainQuery("eu-de", MODEL, "open"), views, Random(1))
    assert (same.chosen, same.query.is_batch) == (explanation.chosen, True)
    full = explain(fleet, None, asked, healthy(*EVERYWHERE, credits=9), Random(1))
    assert full.refusal is not None
    assert full.refusal.reason is Reason.SATURATED


@pytest.mark.parametrize("tried", [{}, {"eu-de": Reason.SATURATED}])
def test_a_region_that_is_worth_the_trip_and_is_not_the_soonest_is_spare(tried: dict[str, Reason]) -> None:
    views = (
        healthy("eu-de", expected_wait_s=10.0)
        | healthy("eu-es", expected_wait_s=1.0, credits=1)
        | healthy("us-east", expected_wait_s=2.0, credits=1)
    )
    asked = ExplainQuery("eu-de", MODEL, "open", tried=tried, overflow=bool(tried))
    explanation = explain(policy(), None, asked, views, Random(1))
    assert explanation.chosen is not None
    assert (explanation.chosen.region, explanation.chosen.spends_credit) == ("eu-es", True)
    assert (reported(explanation)["us-east"].verdict, reported(explanation)["us-east"].reasons) == (
        RegionVerdict.SPARE,
        (),
    )


def test_a_region_without_a_credit_still_gets_what_the_plan_sends() -> None:
    shares = plan("eu-de", "eu-de+eu-es", eu_de=0.5, eu_es=0.5)
    views = healthy("eu-de", expected_wait_s=9.0) | healthy("eu-es")
    explanation = explain(policy(), shares, ExplainQuery("eu-de", MODEL, "personal"), views, Random(1))
    assert reported(explanation)["eu-es"].verdict is RegionVerdict.SERVES
    assert reported(explanation)["eu-es"].reasons[0].reason is Reason.NO_CREDIT


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (ExplainQuery("us-east", MODEL, "personal"), Reason.MISDIRECTED),
        (ExplainQuery("eu-de", "gpt-9", "open"), Reason.MODEL_NOT_FOUND),
        (ExplainQuery("eu-de", MODEL, "nobody"), Reason.INVALID_API_KEY),
        (ExplainQuery("eu-de", MODEL), Reason.INVALID_API_KEY),
        (ExplainQuery("eu-de", MODEL, "open", path="/nowhere"), Reason.NOT_FOUND),
    ],
)
def test_refused_before_region_selection(asked: ExplainQuery, reason: Reason) -> None:
    explanation = explain(policy(), None, asked, healthy(*EVERYWHERE), Random(1))
    assert explanation.refusal is not None
    assert explanation.refusal.reason is reason
    assert explanation.residency is None
    assert {considered.verdict for considered in explanation.regions} <= {
        RegionVerdict.UNCONSIDERED,
        RegionVerdict.FORBIDDEN,
    }


def test_a_rule_that_hangs_on_an_unknown_place_is_shown() -> None:
    rule = ResidencyRule("by-country", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}))
    explanation = explain(policy(rule), None, ExplainQuery("eu-de", MODEL, "open"), healthy(*EVERYWHERE), Random(1))
    assert explanation.refusal is not None
    assert explanation.refusal.reason is Reason.LOCATION_UNKNOWN
    assert [applicable_rule.applies for applicable_rule in explanation.rules] == [None]
    known = ExplainQuery("eu-de", MODEL, "open", Location("DE"))
    explanation = explain(policy(rule), None, known, healthy(*EVERYWHERE), Random(1))
    assert [applicable_rule.applies for applicable_rule in explanation.rules] == [True]
    assert explanation.residency == "eu-de"


def test_a_rule_that_only_denies_is_shown_without_regions_that_it_allows() -> None:
    rule = ResidencyRule("never", deny=frozenset({"us-east", "eu-es"}))
    explanation = explain(policy(rule), None, ExplainQuery("eu-de", MODEL, "open"), healthy(*EVERYWHERE), Random(1))
    assert explanation.rules == (ApplicableRule("never", "", True, None, ("eu-es", "us-east")),)


def test_a_region_that_an_operator_closed() -> None:
    closed = (Closed("eu-de", MODEL, last_resort=False),)
    shares = msgspec.structs.replace(plan("eu-de", "eu-de+eu-es", eu_es=1.0), closed=closed)
    views = healthy(*EVERYWHERE)
    explanation = explain(policy(), shares, ExplainQuery("eu-de", MODEL, "personal"), views, Random(1))
    assert [(considered.region, considered.closed) for considered in explanation.regions if considered.closed] == [
        ("eu-de", True)
    ]
    assert reported(explanation)["eu-de"].verdict is RegionVerdict.REJECTED
    assert reported(explanation)["eu-de"].reasons[0].reason is Reason.REGION_DRAINING


def test_a_name_that_stands_for_versions_names_them() -> None:
    canary = ModelVersions("llama", (Version(MODEL, 95.0), Version("next", 5.0), Version("off", 0.0)))
    under = msgspec.structs.replace(policy(), versions={"llama": canary})
    explanation = explain(under, None, ExplainQuery("eu-de", "llama", "personal"), healthy(*EVERYWHERE), Random(1))
    assert explanation.refusal is not None
    assert explanation.refusal.reason is Reason.BAD_REQUEST
    assert (
        explanation.refusal.detail
        == f"llama stands for several models; explain {MODEL} (95 % of its requests) or next (5 % of its requests)"
    )


def test_a_version_with_the_common_name_is_explained_with_the_shares() -> None:
    canary = ModelVersions(MODEL, (Version(MODEL, 95.0), Version("next", 5.0)))
    under = msgspec.structs.replace(policy(), versions={MODEL: canary})
    explanation = explain(under, None, ExplainQuery("eu-de", MODEL, "personal"), healthy(*EVERYWHERE), Random(1))
    assert explanation.chosen is not None
    assert explanation.versions == canary.versions


def test_the_share_of_a_rollout_replaces_that_of_the_policy() -> None:
    canary = ModelVersions(MODEL, (Version(MODEL, 100.0), Version("next", 0.0)))
    rollout = ModelRollout(MODEL, "next", (10.0, 100.0))
    under = msgspec.structs.replace(policy(), versions={MODEL: canary}, model_rollouts={MODEL: rollout})
    steps = msgspec.structs.replace(
        plan("eu-de", "eu-de+eu-es", eu_de=1.0), version_shares=(VersionShare(MODEL, "next", 10.0),)
    )
    query = ExplainQuery("eu-de", MODEL, "personal")
    explanation = explain(under, steps, query, healthy(*EVERYWHERE), Random(1))
    assert explanation.versions == (Version(MODEL, 90.0), Version("next", 10.0))


def test_the_query_for_a_tenant_of_the_api_has_its_tier() -> None:
    record = TenantRecord("ada", "gold", 0.0, is_suspended=True)
    found = ExplainQuery("eu-de", MODEL, path="/v1/models").by(record)
    assert found == ExplainQuery("eu-de", MODEL, "ada", path="/v1/models", tier="gold", is_suspended=True)


def test_the_model_of_the_tenants_tier_is_explained_and_hidden_from_others() -> None:
    models = policy().models | {
        "own": msgspec.structs.replace(policy().models[MODEL], name="own", only_tiers=("bank",))
    }
    named = ModelVersions("llama", (Version(MODEL, 100.0),), for_tiers={"bank": "own"})
    bank = Tenant("bank-1", "open", tier="bank").under(Tier("bank", "open"))
    under = msgspec.structs.replace(
        policy(), models=models, versions={"llama": named}, tenants=policy().tenants | {"bank-1": bank}
    )
    own = explain(under, None, ExplainQuery("eu-de", "llama", "bank-1"), healthy(*EVERYWHERE), Random(1))
    assert own.query.model == "own"
    assert own.chosen is not None
    other = explain(under, None, ExplainQuery("eu-de", "own", "open"), healthy(*EVERYWHERE), Random(1))
    assert other.refusal is not None
    assert other.refusal.reason is Reason.MODEL_NOT_FOUND


def test_a_session_has_a_home_by_the_shares() -> None:
    shared = plan("eu-de", "eu-de+eu-es", eu_de=0.6, eu_es=0.4)
    views = healthy(*EVERYWHERE)
    chosen = [
        explain(policy(), shared, ExplainQuery("eu-de", MODEL, "personal", session=str(number)), views, Random())
        for number in range(200)
    ]
    assert all(each.chosen is not None and each.chosen.region == each.home for each in chosen)
    assert sum(each.home == "eu-de" for each in chosen) / 200 == pytest.approx(0.6, abs=0.1)
    again = explain(policy(), shared, ExplainQuery("eu-de", MODEL, "personal", session="7"), views, Random())
    assert again.home == chosen[7].home
    without = explain(policy(), shared, ExplainQuery("eu-de", MODEL, "personal"), views, Random())
    assert without.home is None


def test_a_spilled_session_is_explained_where_it_stays() -> None:
    query = ExplainQuery("eu-de", MODEL, "personal", session="7", stays_in="eu-es")
    stays = explain(policy(), None, query, healthy(*EVERYWHERE, credits=1), Random())
    assert stays.chosen is not None
    assert (stays.chosen.region, stays.chosen.why) == ("eu-es", ArcReason.SPILLOVER)
    returns = explain(policy(), None, query, healthy(*EVERYWHERE), Random())
    assert returns.chosen is not None
    assert returns.chosen.region == "eu-de"


def test_the_store_of_the_tenants_batches_and_why_there_is_none() -> None:
    stores = JobStore("store", "s3://jobs", covers=frozenset({"eu-de", "us-east"}))
    fleet = msgspec.structs.replace(policy(), job_stores=(stores,))

    def found(origin: str, tenant: str) -> str | None:
        return explain(fleet, None, ExplainQuery(origin, MODEL, tenant), healthy(*EVERYWHERE), Random(1)).job_store

    assert found("eu-de", "open") == "store"
    assert found("eu-de", "personal") is not None
    assert "us-east read the job store" in str(found("eu-de", "personal"))
    assert "no job store for the region eu-es" in str(found("eu-es", "open"))


def test_the_tenant_that_the_api_suspended_is_refused() -> None:
    fleet = msgspec.structs.replace(policy(), tiers={"gold": Tier("gold", "open")})
    found = []
    for is_suspended in (False, True):
        query = ExplainQuery("eu-de", MODEL).by(TenantRecord("ada", "gold", 0.0, is_suspended=is_suspended))
        found.append(explain(fleet, None, query, healthy(*EVERYWHERE), Random(1)))
    assert found[0].refusal is None
    assert found[0].data_class == "open"
    assert found[1].refusal is not None
    assert found[1].refusal.reason is Reason.TENANT_SUSPENDED


def test_an_origin_that_is_none() -> None:
    with pytest.raises(KeyError):
        explain(policy(), None, ExplainQuery("atlantis", MODEL, "open"), {}, Random(1))


def test_the_anonymous_tenant_and_keys() -> None:
    fleet = msgspec.structs.replace(policy(), anonymous_tenant="open")
    assert explain(fleet, None, ExplainQuery("eu-de", MODEL), healthy("eu-de"), Random(1)).data_class == "open"
    keyed = msgspec.structs.replace(policy(), tenants={"k": Tenant("k", "open", ("ab" * 32,))})
    assert tenant_by_key(keyed, "ab" * 32) == "k"
    assert tenant_by_key(keyed, "cd" * 32) is None


def test_an_explanation_survives_its_encoding() -> None:
    asked = ExplainQuery("eu-de", MODEL, "personal", Location("DE"))
    explanation = explain(policy(), None, asked, healthy(*EVERYWHERE), Random(1))
    assert msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation) == explanation


class TestBelievedViews:
    def snapshot(self) -> Snapshot:
        peers = [PeerReport("eu-es", RegionState.FAILED, 30.0), PeerReport("us-east", RegionState.UNKNOWN, 0.0)]
        snapshot, _ = add_report(Snapshot(), report("eu-de", peers=peers), 100.0, policy())
        for name in ("eu-es", "us-east"):
            snapshot, _ = add_report(snapshot, report(name, ready=0 if name == "us-east" else 4), 100.0, policy())
        health = {name: RegionHealth(RegionState.HEALTHY, 0.0) for name in EVERYWHERE}
        return msgspec.structs.replace(snapshot, health=health)

    def test_the_origin_s_own_word_comes_first(self) -> None:
        views = reported_views(policy(), self.snapshot(), "eu-de", MODEL, 100.5)
        assert views["eu-es"].state is RegionState.FAILED
        assert views["us-east"] == RegionView(RegionState.HEALTHY, ready=False)
        assert views["eu-de"] == RegionView(RegionState.HEALTHY, ready=True, batch_room=80)

    def test_an_old_word_counts_no_more(self) -> None:
        views = reported_views(policy(), self.snapshot(), "eu-de", MODEL, 110.0)
        assert views["eu-es"].state is RegionState.HEALTHY

    def test_pools_are_those_of_the_planner_while_the_control_plane_receives_no_report(self) -> None:
        views = reported_views(policy(), self.snapshot(), "eu-de", MODEL, 200.0)
        assert {name for name, _ in pools(self.snapshot(), 200.0)} == {"eu-de", "eu-es", "us-east"}
        assert {name for name, view in views.items() if view.ready} == {"eu-de", "eu-es"}

    def test_a_degraded_region_is_shown_although_agents_do_not_see_it(self) -> None:
        snapshot = self.snapshot()
        for name in ("eu-de", "us-east", "eu-es"):
            health = snapshot.health | {name: RegionHealth(RegionState.DEGRADED, 85.0)}
            views = reported_views(policy(), msgspec.structs.replace(snapshot, health=health), "eu-de", MODEL, 100.0)
            seen = RegionState.FAILED if name == "eu-es" else RegionState.DEGRADED
            assert (views[name].state, views[name].weight) == (seen, 1.0)

    def test_a_silent_origin_has_the_control_planes_state(self) -> None:
        snapshot = self.snapshot()
        lost = snapshot.health | {"eu-de": RegionHealth(RegionState.FAILED, 105.0)}
        views = reported_views(policy(), msgspec.structs.replace(snapshot, health=lost), "eu-de", MODEL, 110.0)
        assert views["eu-de"].state is RegionState.FAILED

    def test_a_ramp_is_seen(self) -> None:
        snapshot = self.snapshot()
        back = snapshot.health | {"us-east": RegionHealth(RegionState.RECOVERING, 70.0)}
        views = reported_views(policy(), msgspec.structs.replace(snapshot, health=back), "eu-de", MODEL, 100.0)
        assert views["us-east"].weight == pytest.approx(0.5)
