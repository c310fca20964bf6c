"""Region selection: the plan's shares over live regions, and overflow only with credits."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec

from penstock.admission.retry_after import MIN_RETRY_S, retry_after_s
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, FailoverTable
from penstock.policy.residency import ResidencyClass, residency_class
from penstock.routing.decision import is_servable
from penstock.routing.reasons import Reason, Refusal, Rejection
from penstock.routing.region_selection import (
    Closures,
    RegionChoice,
    RegionRequest,
    RegionView,
    idle_region_exists,
    plan_shares,
    usable_regions,
)
from tests.support.planet import MODEL, choose_region, healthy, plan, policy

EVERYWHERE = residency_class(frozenset({"eu-de", "eu-es", "us-east"}))
EU = residency_class(frozenset({"eu-de", "eu-es"}))


def choose(
    views: dict[str, RegionView], permitted: ResidencyClass = EVERYWHERE, seed: int = 0, **more: Any
) -> RegionChoice | Refusal:
    shares = more.pop("shares", None)
    class_plan = plan("eu-de", permitted.name, **shares).lookup(MODEL, permitted.name) if shares else None
    return choose_region(policy(), "eu-de", permitted, class_plan, views, rng=Random(seed), **more)


def served(*args: Any, runs: int = 400, **more: Any) -> Counter[str]:
    answers = [choose(*args, seed=seed, **more) for seed in range(runs)]
    return Counter(answer.region if isinstance(answer, RegionChoice) else "refused" for answer in answers)


def test_without_a_plan_home_serves() -> None:
    where = choose(healthy("eu-de", "eu-es", "us-east"))
    assert isinstance(where, RegionChoice)
    assert (where.region, where.why, where.spends_credit) == ("eu-de", ArcReason.HOME, False)


def test_without_a_plan_a_returning_home_serves_no_more_than_its_ramp_grants() -> None:
    counts = served(healthy("eu-de", "eu-es", "us-east"), ramp=0.25)
    assert 60 < counts["eu-de"] < 140
    assert counts["eu-es"] == 400 - counts["eu-de"], "the rest goes to the nearest whole region"
    assert served(healthy("eu-de", "eu-es", "us-east"), ramp=0.0) == {"eu-es": 400}
    where = choose(healthy("eu-de", "eu-es", "us-east"), ramp=0.0)
    assert isinstance(where, RegionChoice)
    assert where.why is ArcReason.FAILBACK
    assert served(healthy("eu-de"), ramp=0.0) == {"eu-de": 400}, "a returning region is better than none"


def test_a_plan_for_a_class_holds_on_any_ramp() -> None:
    assert served(healthy("eu-de", "eu-es", "us-east"), shares={"eu_de": 1.0}, ramp=0.25) == {"eu-de": 400}


def test_without_a_plan_a_returning_neighbour_gets_no_more_than_its_ramp_grants() -> None:
    views = healthy("us-east") | {"eu-es": RegionView(RegionState.RECOVERING, ready=True, weight=0.25)}
    counts = served(views)
    assert 60 < counts["eu-es"] < 140


def test_shares_are_drawn() -> None:
    counts = served(healthy("eu-de", "eu-es", "us-east"), shares={"eu_de": 0.75, "eu_es": 0.25})
    assert counts["us-east"] == 0
    assert 60 < counts["eu-es"] < 140


def test_a_dead_arc_leaves_its_share_to_the_others() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.FAILED, ready=True)}
    assert served(views, shares={"eu_de": 0.5, "eu_es": 0.5}) == {"eu-de": 400}


def with_table(lost: str, **shares: float) -> ClassPlan:
    """A plan with the whole class at `lost`, and a failover table for its loss."""
    arcs = tuple(Arc(name.replace("_", "-"), share, ArcReason.FAILOVER) for name, share in shares.items())
    return ClassPlan(MODEL, EVERYWHERE.name, (Arc(lost, 1.0, ArcReason.HOME),), (), (FailoverTable(lost, arcs),))


def drawn(table: ClassPlan, views: dict[str, RegionView], **more: Any) -> Counter[tuple[str, ArcReason]]:
    counts: Counter[tuple[str, ArcReason]] = Counter()
    for seed in range(400):
        where = choose_region(policy(), "eu-de", EVERYWHERE, table, views, rng=Random(seed), **more)
        assert isinstance(where, RegionChoice)
        counts[where.region, where.why] += 1
    return counts


def test_a_failed_regions_share_follows_the_failover_table() -> None:
    table = with_table("eu-es", eu_de=0.25, us_east=0.75)
    counts = drawn(table, healthy("eu-de", "us-east"))
    assert counts.keys() == {("eu-de", ArcReason.HOME), ("us-east", ArcReason.FAILOVER)}
    assert 60 < counts["eu-de", ArcReason.HOME] < 140
    assert drawn(table, healthy("eu-de", "eu-es", "us-east")) == {("eu-es", ArcReason.HOME): 400}
    assert drawn(table, healthy("us-east")) == {("us-east", ArcReason.FAILOVER): 400}, "of the table, who is there"


def test_the_regions_of_a_table_that_are_there_share_all_of_a_lost_share() -> None:
    arcs = (Arc("eu-de", 0.5, ArcReason.HOME), Arc("eu-es", 0.5, ArcReason.SPILLOVER))
    table = FailoverTable("eu-de", (Arc("us-east", 0.5, ArcReason.FAILOVER), Arc("gone", 0.5, ArcReason.FAILOVER)))
    lost = ClassPlan(MODEL, EVERYWHERE.name, arcs, (), (table,))
    order = ("eu-es", "us-east")
    shares, reasons = plan_shares(lost, healthy(*order), {}, order, "eu-de", 1.0)
    assert shares == {"eu-es": 0.5, "us-east": 0.5}
    assert reasons["us-east"] is ArcReason.FAILOVER


def test_without_anybody_of_the_table_the_nearest_takes_over() -> None:
    assert drawn(with_table("eu-es", us_east=1.0), healthy("eu-de")) == {("eu-de", ArcReason.HOME): 400}


def test_a_region_that_only_refused_is_not_lost() -> None:
    counts = drawn(
        with_table("eu-es", us_east=1.0), healthy("eu-de", "eu-es", "us-east"), tried={"eu-es": Reason.SATURATED}
    )
    assert counts == {("eu-de", ArcReason.HOME): 400}


def test_with_every_arc_dead_the_nearest_permitted_region_takes_over() -> None:
    views = healthy("eu-es", "us-east") | {"eu-de": RegionView(RegionState.FAILED, ready=False)}
    where = choose(views, shares={"eu_de": 1.0})
    assert isinstance(where, RegionChoice)
    assert (where.region, where.why) == ("eu-es", ArcReason.FAILOVER)
    assert [(rejection.what, rejection.reason) for rejection in where.rejected] == [("eu-de", Reason.REGION_FAILED)]


def test_a_forbidden_region_is_never_chosen_even_as_the_last_one_alive() -> None:
    refusal = choose(healthy("us-east"), permitted=EU)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NONE_READY
    assert "us-east" not in {rejection.what for rejection in refusal.rejected}, "it is not even looked at"


def test_alive_is_not_ready() -> None:
    views = healthy("eu-es", "us-east") | {"eu-de": RegionView(RegionState.HEALTHY, ready=False)}
    where = choose(views)
    assert isinstance(where, RegionChoice)
    assert where.region == "eu-es"
    assert where.rejected[0].reason is Reason.MODEL_NOT_READY


def test_a_ramping_arc_gives_what_it_may_not_have_to_the_others() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.RECOVERING, ready=True, weight=0.2)}
    counts = served(views, shares={"eu_de": 0.5, "eu_es": 0.5})
    assert 50 < counts["eu-es"] < 110, "0.2 of all, where the plan grants it 0.5"
    assert counts["us-east"] == 0


def test_a_ramp_in_the_plan_is_not_applied_twice() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.RECOVERING, ready=True, weight=0.5)}
    counts = served(views, shares={"eu_de": 0.5, "eu_es": 0.5})
    assert 160 < counts["eu-es"] < 240


def test_a_lone_ramping_arc_gives_the_rest_to_the_nearest_whole_region() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.RECOVERING, ready=True, weight=0.25)}
    counts = served(views, shares={"eu_es": 1.0})
    assert 60 < counts["eu-es"] < 140
    assert counts["eu-de"] == 400 - counts["eu-es"]


def test_overflow_goes_only_where_a_credit_is_held_and_the_trip_pays() -> None:
    full = {"eu-de": RegionView(RegionState.HEALTHY, ready=True, expected_wait_s=3.0)}
    without = choose(healthy("eu-es", "us-east") | full)
    assert isinstance(without, RegionChoice)
    assert without.region == "eu-de"
    assert {rejection.reason for rejection in without.rejected} == {Reason.NO_CREDIT}

    where = choose(healthy("eu-es", "us-east", credits=1) | full)
    assert isinstance(where, RegionChoice)
    assert (where.region, where.why, where.spends_credit) == ("eu-es", ArcReason.SPILLOVER, True)

    as_busy = choose(healthy("eu-es", "us-east", credits=1, expected_wait_s=2.9) | full)
    assert isinstance(as_busy, RegionChoice)
    assert as_busy.region == "eu-de"
    assert {rejection.reason for rejection in as_busy.rejected} == {Reason.NOT_WORTH_THE_TRIP}


def test_a_full_home_sends_no_request_without_credits() -> None:
    tried = {"eu-de": Reason.SATURATED}
    refusal = choose(healthy("eu-de", "eu-es", "us-east"), tried=tried, overflow=True, shares={"eu_es": 1.0})
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.SATURATED
    assert refusal.retry_after_s is not None

    views = healthy("eu-de", "eu-es", "us-east") | healthy("us-east", credits=2)
    where = choose(views, tried=tried, overflow=True)
    assert isinstance(where, RegionChoice)
    assert (where.region, where.spends_credit) == ("us-east", True)


def test_a_full_home_keeps_what_it_serves_sooner_than_the_trip_takes() -> None:
    def overflowing(wait_s: float) -> RegionChoice | Refusal:
        views = healthy("eu-de", expected_wait_s=wait_s) | healthy("eu-es", "us-east", credits=2)
        return choose(views, tried={"eu-de": Reason.SATURATED}, overflow=True)

    short = overflowing(0.2)
    assert isinstance(short, Refusal)
    assert (short.reason, {rejection.reason for rejection in short.rejected}) == (
        Reason.SATURATED,
        {Reason.ALREADY_TRIED, Reason.NOT_WORTH_THE_TRIP},
    )
    long = overflowing(2.0)
    assert isinstance(long, RegionChoice)
    assert (long.region, long.spends_credit) == ("eu-es", True), "the one that is nearer"


def test_when_to_come_again_follows_from_the_shortest_wait() -> None:
    views = healthy("eu-de", expected_wait_s=60.0) | healthy("eu-es", expected_wait_s=30.0) | healthy("us-east")
    refusal = choose(views, permitted=EU, tried=dict.fromkeys(["eu-de", "eu-es"], Reason.SATURATED))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == retry_after_s(30.0) > 10
    uninvited = choose(views, permitted=EU, tried={"eu-de": Reason.SATURATED}, overflow=True)
    assert isinstance(uninvited, Refusal)
    assert uninvited.retry_after_s == retry_after_s(60.0)


def test_a_request_may_wait_for_an_idle_region() -> None:
    idle = healthy("eu-de", "us-east") | healthy("eu-es", expected_wait_s=1.0)
    assert idle_region_exists("eu-de", EVERYWHERE, idle, {"eu-de": Reason.SATURATED})
    assert idle_region_exists("eu-de", EVERYWHERE, idle, {"us-east": Reason.SATURATED})
    assert not idle_region_exists("eu-de", EVERYWHERE, idle, {"us-east": Reason.UNREACHABLE})
    assert not idle_region_exists("eu-de", EU, idle, {}), "a forbidden one is not even looked at"
    failed = idle | {"us-east": RegionView(RegionState.FAILED, ready=True)}
    assert not idle_region_exists("eu-de", EVERYWHERE, failed, {})


def test_all_refused_is_saturated_but_all_unreachable_is_not_ready() -> None:
    busy = choose(healthy("eu-de", "eu-es"), permitted=EU, tried=dict.fromkeys(["eu-de", "eu-es"], Reason.SATURATED))
    gone = choose(healthy("eu-de", "eu-es"), permitted=EU, tried=dict.fromkeys(["eu-de", "eu-es"], Reason.UNREACHABLE))
    assert isinstance(busy, Refusal)
    assert isinstance(gone, Refusal)
    assert (busy.reason, gone.reason) == (Reason.SATURATED, Reason.NONE_READY)


def test_a_closed_region_gets_what_the_plan_still_gives_it_and_no_more() -> None:
    views = healthy("eu-de", "eu-es", "us-east")
    counts = served(views, shares={"eu_de": 0.5, "us_east": 0.5}, closed={"eu-de": True})
    assert 150 < counts["eu-de"] < 250
    assert served(views, shares={"eu_es": 1.0}, closed={"eu-de": True}) == {"eu-es": 400}


def test_a_closed_region_is_not_the_nearest_that_takes_over() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.FAILED, ready=True)}
    where = choose(views, shares={"eu_es": 1.0}, closed={"eu-de": True})
    assert isinstance(where, RegionChoice)
    assert (where.region, where.why) == ("us-east", ArcReason.FAILOVER)
    assert ("eu-de", Reason.REGION_DRAINING) in [(rejection.what, rejection.reason) for rejection in where.rejected]
    assert served(views, closed={"eu-de": True}) == {"us-east": 400}


def test_a_closed_region_gets_nothing_on_a_credit() -> None:
    views = healthy("eu-es", credits=5) | healthy("us-east", credits=5)
    views["eu-de"] = RegionView(RegionState.HEALTHY, ready=True, expected_wait_s=60.0)
    assert served(views, shares={"eu_de": 1.0}, closed={"eu-es": True}) == {"us-east": 400}
    assert served(views, overflow=True, closed={"eu-es": True}) == {"us-east": 400}
    shares = {"eu_de": 0.5, "eu_es": 0.5}
    assert served(views, shares=shares, overflow=True, closed={"eu-es": True}) == {"us-east": 400}


def test_a_closed_region_is_the_last_resort_unless_it_is_shut() -> None:
    views = healthy("eu-de") | {"eu-es": RegionView(RegionState.FAILED, ready=True)}
    assert served(views, EU, shares={"eu_es": 1.0}, closed={"eu-de": True}) == {"eu-de": 400}
    refusal = choose(views, EU, shares={"eu_es": 1.0}, closed={"eu-de": False})
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NONE_READY


def test_a_region_that_is_only_full_is_no_reason_to_fill_one_that_is_closed() -> None:
    views = healthy("eu-de", "eu-es")
    refusal = choose(views, EU, closed={"eu-de": True}, tried={"eu-es": Reason.SATURATED})
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.SATURATED
    where = choose(views, EU, closed={"eu-de": True}, tried={"eu-es": Reason.UNREACHABLE})
    assert isinstance(where, RegionChoice)
    assert where.region == "eu-de"


def test_a_request_that_may_not_spill_uses_no_credit() -> None:
    views = healthy("us-east") | {"eu-es": RegionView(RegionState.HEALTHY, ready=True, credits=3)}
    busy = views | {"eu-de": RegionView(RegionState.HEALTHY, ready=True, expected_wait_s=9.0)}
    assert served(busy) == {"eu-es": 400}
    assert served(busy, may_spill=False) == {"eu-de": 400}
    tried = {"eu-de": Reason.SATURATED}
    assert served(busy, tried=tried, overflow=True) == {"eu-es": 400}
    refusal = choose(busy, tried=tried, overflow=True, may_spill=False)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.SATURATED, "it waits in the queue"
    assert refusal.retry_after_s == MIN_RETRY_S
    assert refusal.rejected == (Rejection("eu-de", Reason.ALREADY_TRIED, Reason.SATURATED),)
    assert served(healthy("eu-es", "us-east"), may_spill=False) == {"eu-es": 400}, (
        "without its own region, it fails over"
    )


def test_a_failed_request_is_servable_while_a_region_is_left_that_its_plan_does_not_close() -> None:
    views, closed = healthy("eu-de", "eu-es"), Closed("eu-de", MODEL, last_resort=False)
    failed = RegionRequest("eu-de", MODEL, EU, {"eu-es": Reason.ENGINE_FAILED})
    away = plan("eu-de", EU.name, eu_es=1.0)
    assert is_servable(policy(), None, failed, views)
    assert is_servable(policy(), away, failed, views)
    assert not is_servable(policy(), msgspec.structs.replace(away, closed=(closed,)), failed, views)


def test_a_region_that_a_limit_closes_is_rejected_with_the_limit() -> None:
    views = healthy("eu-de", "eu-es")
    where = choose(views, EU, shares={"eu_de": 1.0}, limited={"eu-es": "cheap (spill.yaml:3)"})
    assert where.rejected == (Rejection("eu-es", Reason.SPILLOVER_LIMIT, "cheap (spill.yaml:3)"),)


def test_overflow_prefers_a_region_that_holds_its_prompt() -> None:
    views = healthy("eu-es", "us-east", credits=3) | healthy("eu-de", expected_wait_s=2.0)
    near = choose(views, overflow=True)
    assert isinstance(near, RegionChoice)
    assert near.region == "eu-es"
    far = choose(views, overflow=True, spared_s={"us-east": 1.0})
    assert isinstance(far, RegionChoice)
    assert (far.region, far.spends_credit) == ("us-east", True)
    within = choose(views, permitted=EU, overflow=True, spared_s={"us-east": 1.0})
    assert isinstance(within, RegionChoice)
    assert within.region == "eu-es", "what a forbidden region holds does not count"


def test_every_region_that_cannot_serve_is_named_with_its_reason() -> None:
    views = {
        "failed": RegionView(RegionState.FAILED, ready=True),
        "draining": RegionView(RegionState.DRAINING, ready=True),
        "unready": RegionView(RegionState.HEALTHY, ready=False),
        "tried": RegionView(RegionState.HEALTHY, ready=True),
        "suspect": RegionView(RegionState.SUSPECT, ready=True),
        "forbidden": RegionView(RegionState.HEALTHY, ready=True),
    }
    permitted = residency_class(frozenset(views) - {"forbidden"} | {"unknown"})
    request = RegionRequest("tried", MODEL, permitted, tried={"tried": Reason.SATURATED})
    usable, rejected = usable_regions(None, request, views, Closures())
    assert usable == {"suspect": views["suspect"]}
    assert rejected == [
        Rejection("draining", Reason.REGION_DRAINING),
        Rejection("failed", Reason.REGION_FAILED),
        Rejection("tried", Reason.ALREADY_TRIED, Reason.SATURATED),
        Rejection("unknown", Reason.REGION_UNKNOWN),
        Rejection("unready", Reason.MODEL_NOT_READY),
    ]


def test_a_lost_region_without_a_table_leaves_its_share_to_the_others() -> None:
    views = healthy("eu-de", "us-east") | {"eu-es": RegionView(RegionState.FAILED, ready=True)}
    class_plan = with_table("us-east", eu_de=1.0)
    arcs = (Arc("eu-de", 0.5, ArcReason.HOME), Arc("eu-es", 0.5, ArcReason.SPILLOVER))
    where = choose_region(
        policy(), "eu-de", EVERYWHERE, msgspec.structs.replace(class_plan, arcs=arcs), views, rng=Random(0)
    )
    assert isinstance(where, RegionChoice)
    assert where.region == "eu-de"
