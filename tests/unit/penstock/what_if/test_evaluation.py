"""A demand under a policy: evaluated by the live decision code, completely, with the differences listed."""

from __future__ import annotations

from math import cos, pi

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.models import ModelVersions, Scaling, Version
from penstock.policy.kinds.regions import BurstPool
from penstock.policy.kinds.tenants import Quota, Tier
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason
from penstock.what_if.assumed_demand import generated_demand, generated_fleet, sustainable_rate
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.evaluation import evaluate_demand
from penstock.what_if.moved_demand import moves
from tests.support.examples import examples
from tests.support.paths import PLANET as PLANET_FOLDER

PLANET = compile_bundle(read_folder(PLANET_FOLDER))
SMALL = "llama-3.1-8b"
ROOMY = [Capacity(name, SMALL, 100, 1.0) for name in PLANET.regions]


def without_rules() -> Policy:
    return msgspec.structs.replace(PLANET, residency=())


class TestEvaluateDemand:
    def test_what_fits_is_served_at_home(self) -> None:
        (demand_outcome,) = evaluate_demand(
            PLANET, [DemandGroup("eu-gb", "open", "GB", SMALL, 10.0)], ROOMY
        ).demand_outcomes
        assert demand_outcome.entry == "eu-gb"
        assert demand_outcome.servers == {"eu-gb": 1.0}

    def test_what_may_not_be_where_it_lands_enters_elsewhere(self) -> None:
        evaluation = evaluate_demand(PLANET, [DemandGroup("eu-gb", "personal", "DE", SMALL, 10.0)], ROOMY)
        assert evaluation.demand_outcomes[0].entry == "eu-de"
        assert evaluation.demand_outcomes[0].servers == {"eu-de": 1.0}
        assert evaluation.totals.sent_elsewhere_per_s == 10.0
        assert evaluation.totals.round_trip_ms == 13.0

    def test_steered_clients_enter_where_they_may(self) -> None:
        (demand_outcome,) = evaluate_demand(
            PLANET, [DemandGroup("", "personal", "DE", SMALL, 10.0)], ROOMY
        ).demand_outcomes
        assert demand_outcome.entry == "eu-de"

    def test_quotas_refuse_what_is_beyond_them_at_each_entry(self) -> None:
        limited = msgspec.structs.replace(PLANET.tenants["open"], quota=Quota(6.0, 10, None))
        policy = msgspec.structs.replace(PLANET, tenants=PLANET.tenants | {"open": limited})
        asked = [
            DemandGroup("eu-gb", "open", "GB", SMALL, 8.0),
            DemandGroup("eu-gb", "open", "FR", SMALL, 4.0),
            DemandGroup("eu-de", "open", "DE", SMALL, 6.0),
            DemandGroup("eu-gb", "eu-personal", "GB", SMALL, 50.0),
        ]
        evaluation = evaluate_demand(policy, asked, ROOMY)
        refused = [demand_outcome.refused for demand_outcome in evaluation.demand_outcomes]
        assert refused == [{Reason.QUOTA_EXCEEDED: 0.5}] * 2 + [{}] * 2
        served = [sum(demand_outcome.servers.values()) for demand_outcome in evaluation.demand_outcomes]
        assert served == pytest.approx([0.5, 0.5, 1.0, 1.0])
        assert evaluation.totals.refused_per_s == {Reason.QUOTA_EXCEEDED: pytest.approx(6.0)}
        assert evaluation.totals.load["eu-gb"] == pytest.approx(0.06), "what is refused takes no room"

    def test_a_budget_of_the_fleet_covers_all_entries(self) -> None:
        budget = Budget(BudgetUnit.REQUESTS, 60.0 * 6.0)
        limited = msgspec.structs.replace(PLANET.tenants["open"], own_budgets=(budget,))
        policy = msgspec.structs.replace(PLANET, tenants=PLANET.tenants | {"open": limited})
        asked = [DemandGroup("eu-gb", "open", "GB", SMALL, 8.0), DemandGroup("eu-de", "open", "DE", SMALL, 4.0)]
        evaluation = evaluate_demand(policy, asked, ROOMY)
        assert [outcome.refused for outcome in evaluation.demand_outcomes] == [{Reason.QUOTA_EXCEEDED: 0.5}] * 2

    def test_quotas_of_what_runs_at_once_go_by_how_long_it_takes(self) -> None:
        limited = msgspec.structs.replace(PLANET.tenants["open"], quota=Quota(None, 1, 5))
        policy = msgspec.structs.replace(PLANET, tenants=PLANET.tenants | {"open": limited})
        slow = [Capacity("eu-gb", SMALL, 100, 2.0)]
        (demand_outcome,) = evaluate_demand(
            policy, [DemandGroup("eu-gb", "open", "GB", SMALL, 10.0)], slow
        ).demand_outcomes
        assert (demand_outcome.servers, demand_outcome.refused) == ({"eu-gb": 0.25}, {Reason.QUOTA_EXCEEDED: 0.75})

    @pytest.mark.parametrize(
        ("asked", "reason"),
        [
            (DemandGroup("eu-de", "nobody", "DE", SMALL, 1.0), Reason.INVALID_API_KEY),
            (DemandGroup("eu-de", "open", "DE", "no-such-model", 1.0), Reason.MODEL_NOT_FOUND),
            (DemandGroup("eu-de", "personal", None, SMALL, 1.0), Reason.LOCATION_UNKNOWN),
            (DemandGroup("", "personal", None, SMALL, 1.0), Reason.LOCATION_UNKNOWN),
            (DemandGroup("eu-de", "open", "DE", "llama-3.1-70b", 1.0), Reason.NONE_READY),
        ],
    )
    def test_refusals_have_their_reason(self, asked: DemandGroup, reason: Reason) -> None:
        evaluation = evaluate_demand(PLANET, [asked], ROOMY)
        assert evaluation.demand_outcomes[0].refused == {reason: 1.0}
        assert evaluation.totals.refused_per_s == {reason: 1.0}

    def test_a_lost_region_serves_and_reads_nothing(self) -> None:
        demand = [
            DemandGroup("us-east", "us-restricted", "US", SMALL, 1.0),
            DemandGroup("us-east", "open", "US", SMALL, 1.0),
        ]
        restricted, free = evaluate_demand(PLANET, demand, ROOMY, frozenset({"us-east"})).demand_outcomes
        assert restricted.refused == {Reason.NONE_READY: 1.0}
        assert free.entry == "eu-gb"
        assert "us-east" not in free.servers

    def test_what_is_too_much_is_refused_in_part(self) -> None:
        demand = [DemandGroup("us-east", "us-restricted", "US", SMALL, 400.0)]
        evaluation = evaluate_demand(PLANET, demand, ROOMY)
        assert evaluation.demand_outcomes[0].servers == pytest.approx({"us-east": 0.25})
        assert evaluation.totals.refused_per_s == pytest.approx({Reason.SATURATED: 300.0})
        assert evaluation.totals.load["us-east"] == 1.0

    def test_versions_take_their_shares_and_lighter_models_stand_in(self) -> None:
        canary = ModelVersions("llama", (Version(SMALL, 75.0), Version("llama-3.1-70b", 25.0)))
        under = msgspec.structs.replace(PLANET, versions={"llama": canary})
        fleet = [Capacity("eu-de", SMALL, 100, 1.0), Capacity("eu-es", "llama-3.1-70b", 100, 1.0)]
        demand = [DemandGroup("eu-de", "open", "DE", "llama", 8.0)]
        evaluation = evaluate_demand(under, demand, fleet)
        assert evaluation.demand_outcomes[0].servers == pytest.approx({"eu-de": 0.75, "eu-es": 0.25})
        assert evaluation.totals.served_per_s == pytest.approx(8.0)
        lost = evaluate_demand(under, demand, fleet, frozenset({"eu-es"}))
        assert lost.demand_outcomes[0].refused == pytest.approx({Reason.NONE_READY: 0.25})
        lighter = msgspec.structs.replace(under.models["llama-3.1-70b"], fallback=SMALL)
        stands_in = msgspec.structs.replace(under, models=under.models | {"llama-3.1-70b": lighter})
        (demand_outcome,) = evaluate_demand(stands_in, demand, fleet, frozenset({"eu-es"})).demand_outcomes
        assert demand_outcome.servers == pytest.approx({"eu-de": 1.0})

    def test_a_name_is_served_by_the_model_of_the_tenants_tier(self) -> None:
        shared = ModelVersions("llama", (Version(SMALL, 100.0),), for_tiers={"bank": "llama-3.1-70b"})
        bank = msgspec.structs.replace(PLANET.tenants["open"], name="bank-1", tier="bank")
        under = msgspec.structs.replace(
            PLANET, versions={"llama": shared}, tenants=PLANET.tenants | {"bank-1": bank.under(Tier("bank", "open"))}
        )
        fleet = [Capacity("eu-de", SMALL, 100, 1.0), Capacity("eu-es", "llama-3.1-70b", 100, 1.0)]
        demand = [DemandGroup("eu-de", name, "DE", "llama", 8.0) for name in ("open", "bank-1")]
        of_open, of_bank = evaluate_demand(under, demand, fleet).demand_outcomes
        assert (of_open.servers, of_bank.servers) == ({"eu-de": 1.0}, {"eu-es": 1.0})

    def test_costs_are_those_of_busy_slots_and_of_bytes_that_leave(self) -> None:
        both = [Capacity(name, SMALL, 100, 2.0) for name in ("eu-de", "jp-tok")]
        at_home = evaluate_demand(PLANET, [DemandGroup("jp-tok", "open", "JP", SMALL, 10.0)], both).totals
        assert at_home.gpu_cost_per_hour == pytest.approx(10 * 2.0 / 8 * 1.25), "an endpoint has 8 slots by default"
        assert at_home.egress_cost_per_hour == 0.0
        away = evaluate_demand(PLANET, [DemandGroup("jp-tok", "open", "JP", SMALL, 10.0)], both[:1]).totals
        assert away.gpu_cost_per_hour == pytest.approx(10 * 2.0 / 8 * 1.15)
        assert away.egress_cost_per_hour == pytest.approx(10 * 3600 * (0.09 * 4e3 + 0.02 * 4e3) / 1e9)
        assert away.round_trip_ms == 237.0

    def test_demand_without_slots_is_served_by_burst_endpoints_at_their_price(self) -> None:
        terms = BurstPool((SMALL,), cost_per_second=0.01)
        dear = msgspec.structs.replace(PLANET.regions["jp-tok"], burst=(terms,))
        policy = msgspec.structs.replace(PLANET, regions=PLANET.regions | {"jp-tok": dear})
        demand = [DemandGroup("jp-tok", "open", "JP", SMALL, 80.0)]
        full = Capacity("jp-tok", SMALL, 100, 2.0)
        alone = evaluate_demand(policy, demand, [full]).totals
        assert (alone.served_per_s, alone.burst_per_s) == (pytest.approx(50.0), 0.0)
        for burst_slots, served_per_s in ((20, 10.0), (200, 30.0)):
            pool = msgspec.structs.replace(full, burst_slots=burst_slots)
            found = evaluate_demand(policy, demand, [pool]).totals
            assert found.burst_per_s == pytest.approx(served_per_s)
            assert found.served_per_s == pytest.approx(50.0 + served_per_s)
            assert found.burst_cost_per_hour == pytest.approx(served_per_s * 2.0 * 0.01 * 3600)
            assert found.gpu_cost_per_hour == pytest.approx(alone.gpu_cost_per_hour), "as owned slots alone"
            assert evaluate_demand(PLANET, demand, [pool]).totals.burst_per_s == 0.0, "without a price"

    def test_burst_saves_much_in_a_rush_and_little_at_the_peak_of_an_even_day(self) -> None:
        model = msgspec.structs.replace(PLANET.models[SMALL], scaling=Scaling(slots_per_endpoint=16))
        region = msgspec.structs.replace(PLANET.regions["jp-tok"], burst=(BurstPool((SMALL,), 0.00013),))
        policy = msgspec.structs.replace(
            PLANET, models=PLANET.models | {SMALL: model}, regions=PLANET.regions | {"jp-tok": region}
        )
        day = [45.0 - 35.0 * cos(2.0 * pi * (hour - 3) / 24) for hour in range(24)]
        rush = [*day[:20], 160.0, 160.0, *day[22:]]

        def cost(day: list[float], endpoints: int) -> float:
            pool = Capacity("jp-tok", SMALL, 16 * endpoints, 2.0, burst_slots=400)
            found = [
                evaluate_demand(policy, [DemandGroup("jp-tok", "open", "JP", SMALL, rate)], [pool]).totals
                for rate in day
            ]
            assert not any(each.refused_per_s for each in found)
            return endpoints * 2.5 * 24 + sum(each.burst_cost_per_hour for each in found)

        assert [round(cost(rush, endpoints)) for endpoints in (20, 9, 5)] == [1200, 731, 816]
        assert [round(cost(day, endpoints)) for endpoints in (10, 9)] == [600, 566]

    def test_gpu_cost_is_that_of_the_gpus_of_an_endpoint_and_of_its_slots(self) -> None:
        scaling = Scaling(gpus_per_endpoint=4.0, slots_per_endpoint=16)
        model = msgspec.structs.replace(PLANET.models[SMALL], scaling=scaling)
        policy = msgspec.structs.replace(PLANET, models=PLANET.models | {SMALL: model})
        demand = [DemandGroup("jp-tok", "open", "JP", SMALL, 10.0)]
        for slots_per_endpoint, gpus in ((None, 10 * 2.0 / 16 * 4), (50.0, 10 * 2.0 / 50 * 4)):
            pool = Capacity("jp-tok", SMALL, 100, 2.0, slots_per_endpoint=slots_per_endpoint)
            assert evaluate_demand(policy, demand, [pool]).totals.gpu_cost_per_hour == pytest.approx(gpus * 1.25)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.builds(
            DemandGroup,
            origin=st.sampled_from(["", *PLANET.regions]),
            tenant=st.sampled_from([*PLANET.tenants, "nobody"]),
            country=st.sampled_from([None, "DE", "US", "BR"]),
            model=st.sampled_from([SMALL, "llama-3.1-70b", "none"]),
            requests_per_s=st.floats(0.0, 200.0),
        ),
        max_size=12,
    ),
    st.frozensets(st.sampled_from(sorted(PLANET.regions)), max_size=5),
)
@example([DemandGroup("eu-de", "open", "DE", SMALL, 5e-324)], frozenset())
def test_every_request_is_served_or_refused_and_never_where_it_may_not_be(
    demand: list[DemandGroup], lost: frozenset[str]
) -> None:
    evaluation = evaluate_demand(PLANET, demand, ROOMY, lost)
    for group, demand_outcome in zip(demand, evaluation.demand_outcomes, strict=True):
        assert sum(demand_outcome.servers.values()) + sum(demand_outcome.refused.values()) == pytest.approx(1.0)
        assert not demand_outcome.servers.keys() & lost
        if group.tenant == "us-restricted":
            assert demand_outcome.servers.keys() <= {"us-east"}
        if group.tenant == "eu-personal" or (group.tenant == "personal" and group.country == "DE"):
            assert demand_outcome.servers.keys() <= {"eu-de", "eu-es"}
    totals = evaluation.totals
    assert totals.served_per_s + sum(totals.refused_per_s.values()) == pytest.approx(totals.requests_per_s)


class TestMoves:
    def test_the_same_policy_moves_no_demand(self) -> None:
        demand = generated_demand(PLANET, 100.0)
        fleet = generated_fleet([PLANET], demand)
        assert moves(demand, evaluate_demand(PLANET, demand, fleet), evaluate_demand(PLANET, demand, fleet)) == []

    def test_moved_demand_is_listed_once_for_all_countries(self) -> None:
        demand = [DemandGroup("eu-gb", "personal", country, SMALL, 5.0) for country in ("DE", "FR")]
        (move,) = moves(demand, evaluate_demand(PLANET, demand, ROOMY), evaluate_demand(without_rules(), demand, ROOMY))
        assert (move.source, move.target, move.share, move.requests_per_s) == ("eu-de", "eu-gb", 1.0, 10.0)
        assert move.countries == ("DE", "FR")
        assert move.residency_before == "eu-de+eu-es"

    def test_a_refusal_is_a_place_to_come_from_and_to_go_to(self) -> None:
        demand = [DemandGroup("us-east", "us-restricted", "US", SMALL, 200.0)]
        moved = moves(demand, evaluate_demand(PLANET, demand, ROOMY), evaluate_demand(without_rules(), demand, ROOMY))
        assert sum(move.share for move in moved if move.source == "refused: saturated") == pytest.approx(0.5)


def test_generated_demand_has_the_requested_volume_and_fits() -> None:
    demand = generated_demand(PLANET, 100.0)
    assert sum(group.requests_per_s for group in demand) == pytest.approx(100.0)
    totals = evaluate_demand(PLANET, demand, generated_fleet([PLANET], demand)).totals
    assert totals.refused_per_s == pytest.approx({Reason.LOCATION_UNKNOWN: 0.5})


def test_made_up_demand_fills_half_of_what_the_scarcest_model_has() -> None:
    fleet = [*ROOMY, *(Capacity(region, "llama-3.1-70b", 20, 10.0) for region in ("eu-de", "us-east"))]
    rate_per_s = sustainable_rate(PLANET, fleet)
    of_scarcest_per_s = rate_per_s / len(PLANET.models)
    assert of_scarcest_per_s == pytest.approx((20 + 20) / 10.0 / 2.0)
    assert sustainable_rate(PLANET, []) == 0.0
