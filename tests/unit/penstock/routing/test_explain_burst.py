"""Burst endpoints in explanations: after every free slot, where residency and operators permit them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

import msgspec
import pytest

from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason, Closed, RegionPlan
from penstock.policy.geography import Location
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.policy import Policy
from penstock.pools.burst import Otherwise
from penstock.routing.explain import ExplainQuery, Explanation, RegionVerdict, explain
from penstock.routing.explain_burst import BurstFacts, with_burst
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionView
from tests.support.planet import MODEL, healthy, plan, policy

PRICE = BurstPool((MODEL,), cost_per_second=0.001)
WAITS = Otherwise(free_slots=0, wait_s=300.0, left_s=600.0)
CLOSED_MADRID = Closed("eu-es", MODEL, last_resort=False)
HERE, ELSEWHERE = BurstFacts(WAITS, 1.0, is_served_here=True), BurstFacts(WAITS, 1.0, is_served_here=False)


def fleet() -> Policy:
    regions = {name: msgspec.structs.replace(each, burst=(PRICE,)) for name, each in policy().regions.items()}
    return msgspec.structs.replace(policy(), regions=regions)


@dataclass
class Case:
    """A request at a full origin, and the burst endpoints that other regions have."""

    tenant: str = "personal"
    rooms: dict[str, int] = field(default_factory=lambda: {"eu-es": 1, "us-east": 1})
    plan: RegionPlan | None = None
    overflow: bool = False
    tried: dict[str, Reason] = field(default_factory=dict)
    is_batch: bool = False
    states: dict[str, RegionState] = field(default_factory=dict)

    def before(self) -> Explanation:
        query = ExplainQuery("eu-de", MODEL, self.tenant, tried=self.tried, overflow=self.overflow)
        query = msgspec.structs.replace(query, is_batch=self.is_batch)
        return explain(fleet(), self.plan, query, self.views(), Random(1))

    def views(self) -> dict[str, RegionView]:
        views = healthy("eu-de", expected_wait_s=300.0)
        for name, room in self.rooms.items():
            state = self.states.get(name, RegionState.HEALTHY)
            views[name] = RegionView(state, ready=True, expected_wait_s=400.0, burst_room=room)
        return views

    def after(self, known: BurstFacts) -> Explanation:
        return with_burst(fleet(), self.plan, self.before(), self.views(), known)


def serving(explained: Explanation) -> tuple[str, ArcReason, bool]:
    """The chosen region, why, and whether a burst endpoint of it serves; the regions of the explanation agree."""
    chosen = explained.chosen
    assert chosen is not None
    assert explained.refusal is None
    first, *others = explained.regions
    assert (first.region, first.verdict, first.why) == (chosen.region, RegionVerdict.SERVES, chosen.why)
    assert (first.chance, first.uses_burst) == (1.0, chosen.uses_burst)
    assert all((each.chance, each.why, each.uses_burst) == (0.0, None, False) for each in others)
    assert not any(each.verdict is RegionVerdict.SERVES for each in others)
    return chosen.region, chosen.why, chosen.uses_burst


def test_a_request_that_would_wait_uses_the_burst_endpoint_of_its_origin() -> None:
    assert serving(Case().before()) == ("eu-de", ArcReason.HOME, False)
    assert serving(Case().after(HERE)) == ("eu-de", ArcReason.HOME, True)


def test_without_one_it_uses_that_of_another_permitted_region() -> None:
    assert serving(Case().after(ELSEWHERE)) == ("eu-es", ArcReason.SPILLOVER, True)
    assert serving(Case("open", {"us-east": 1}).after(ELSEWHERE)) == ("us-east", ArcReason.SPILLOVER, True)
    forbidden = Case("personal", {"us-east": 1})
    assert forbidden.after(ELSEWHERE) == forbidden.before()


def test_the_place_of_the_client_decides_which_region_may_lend_one() -> None:
    rule = ResidencyRule("French", client_countries=frozenset({"FR"}), allow=frozenset({"eu-de", "us-east"}))
    under = msgspec.structs.replace(fleet(), residency=(rule,))
    case, query = Case(), ExplainQuery("eu-de", MODEL, "open", Location("FR"))
    before = explain(under, None, query, case.views(), Random(1))
    assert serving(with_burst(under, None, before, case.views(), ELSEWHERE))[0] == "us-east"


def test_a_region_that_is_drained_lends_no_burst_endpoint_and_one_whose_endpoints_failed_does() -> None:
    draining = Case(states={"eu-es": RegionState.DRAINING})
    assert draining.after(ELSEWHERE) == draining.before()
    failed = Case(states={"eu-es": RegionState.FAILED})
    assert serving(failed.after(ELSEWHERE)) == ("eu-es", ArcReason.SPILLOVER, True)


def test_a_region_that_grants_a_credit_precedes_burst_endpoints() -> None:
    case = Case()
    views = case.views()
    views["eu-es"] = msgspec.structs.replace(views["eu-es"], credits=1)
    assert with_burst(fleet(), None, case.before(), views, ELSEWHERE) == case.before()


def test_a_closed_region_lends_no_burst_endpoint() -> None:
    closed = Case(plan=msgspec.structs.replace(plan("eu-de", "eu-de+eu-es", eu_de=1.0), closed=(CLOSED_MADRID,)))
    assert closed.after(ELSEWHERE) == closed.before()


@pytest.mark.parametrize(
    "otherwise", [WAITS._replace(free_slots=1), WAITS._replace(wait_s=0.001), WAITS._replace(left_s=0.0)]
)
def test_it_uses_none_elsewhere_that_it_does_not_need(otherwise: Otherwise) -> None:
    case = Case()
    assert case.after(BurstFacts(otherwise, 1.0, is_served_here=False)) == case.before()


def test_a_long_request_costs_too_much_elsewhere() -> None:
    case = Case()
    assert case.after(ELSEWHERE._replace(service_s=1e6)) == case.before()


@pytest.mark.parametrize(
    "case",
    [
        Case(is_batch=True),
        # It does not wait at the origin.
        Case(plan=plan("eu-de", "eu-de+eu-es", eu_es=1.0)),
        # Refused for another reason than a lack of room.
        Case(tenant="nobody"),
    ],
    ids=["batch", "served elsewhere", "refused"],
)
def test_other_requests_are_explained_as_before(case: Case) -> None:
    assert case.after(HERE) == case.before()


def test_a_request_that_a_free_slot_serves_is_explained_as_before() -> None:
    free = BurstFacts(WAITS._replace(free_slots=1), 1.0, is_served_here=True)
    assert Case().after(free) == Case().before()


@pytest.mark.parametrize(
    "case",
    [
        Case(tried={"eu-de": Reason.SATURATED}, overflow=True),
        Case(tried={"eu-de": Reason.UNREACHABLE, "eu-es": Reason.UNREACHABLE}),
    ],
    ids=["full", "none ready"],
)
def test_a_request_that_would_be_refused_for_lack_of_room_uses_one(case: Case) -> None:
    refusal = case.before().refusal
    assert refusal is not None
    refused = Otherwise(0, inf, 600.0)
    assert serving(case.after(BurstFacts(refused, 1.0, is_served_here=True))) == ("eu-de", ArcReason.HOME, True)
    nowhere = case.after(BurstFacts(refused, 1.0, is_served_here=False)).chosen
    assert (nowhere.region if nowhere is not None else None) == ("eu-es" if "eu-es" not in case.tried else None)


def test_burst_endpoints_of_a_closed_origin_are_not_used() -> None:
    closed = msgspec.structs.replace(plan("eu-de", "eu-de+eu-es"), closed=(Closed("eu-de", MODEL, last_resort=False),))
    case = Case(rooms={}, plan=closed)
    refusal = case.before().refusal
    assert refusal is not None
    assert [each.reason for each in refusal.rejected if each.what == "eu-de"] == [Reason.REGION_DRAINING]
    assert case.after(HERE) == case.before()
