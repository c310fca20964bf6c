"""Standby regions: no traffic and few endpoints while the active regions serve, the first orders when one is lost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.fleet.report import AgentReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.flow_planner import FlowPlanner
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.operations import Objective
from penstock.policy.kinds.regions import RegionRole
from penstock.policy.policy import Policy
from penstock.scaling.recommender import Recommendation, Recommender
from penstock.scaling.replicas import Cause, Expected
from penstock.scaling.standby import StandbyWatch
from tests.support.planner_calls import plans_of
from tests.support.three_regions import POLICY, REGIONS, fleet, offered, region

STABLE_S = 600.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def planned(role: RegionRole, *, survive_one_loss: bool = False) -> Policy:
    """de and us are active; es is in standby."""
    return replace(
        POLICY,
        regions={**REGIONS, "es": replace(REGIONS["es"], role=role)},
        models={"m": Model("m", scaling=Scaling(cold_start_s=60.0, min_endpoints=1))},
        objective=Objective(survive_one_loss=survive_one_loss),
    )


def at(now: float, de: float | None, us: float, standby: int, state: RegionState = RegionState.HEALTHY) -> Snapshot:
    """The demand (requests/s) of de, None if it does not report, and of us; and the endpoints of es, 25 slots each."""

    def held(name: str, endpoints: int, per_s: float) -> HeldReport:
        pool = PoolReport("m", endpoints, endpoints, 25 * endpoints, 0, 1.0)
        return HeldReport(AgentReport(name, "1", 1, 1, now, (pool,), (offered(per_s),)), now, now)

    reports = [held("us", 4, us), held("es", standby, 0.0), *([] if de is None else [held("de", 4, de)])]
    health = {name: RegionHealth(RegionState.HEALTHY) for name in ("us", "es")} | {"de": RegionHealth(state)}
    return Snapshot({(each.report.region, "1"): each for each in reports}, health)


def desired(by: Recommender, policy: Policy, seen: Snapshot, now: float) -> dict[str, Recommendation]:
    return {row.region: row for row in by.recommend(policy, seen, lambda horizon_s: {}, now)}


def test_a_standby_region_receives_traffic_only_when_the_active_regions_have_no_room() -> None:
    policy = planned(RegionRole.PILOT_LIGHT)

    def shares(per_s: float) -> dict[str, float]:
        seen = fleet(region("de", offered(per_s)), region("es"), region("us"))
        plans = plans_of(FlowPlanner())(policy, seen, {}, elapsed_s=100.0)
        return {arc.server: arc.share for arc in plans["de"].classes[0].arcs}

    assert shares(70.0) == {"de": 1.0}
    assert shares(140.0).keys() == {"de", "us"}
    assert shares(200.0).keys() == {"de", "us", "es"}


def test_a_pilot_light_keeps_its_minimum_and_a_passive_region_the_reserve() -> None:
    rows = desired(Recommender(), planned(RegionRole.PILOT_LIGHT, survive_one_loss=True), at(0.0, 70.0, 60.0, 1), 0.0)
    assert (rows["es"].desired_endpoints, rows["es"].cause) == (1, Cause.MINIMUM)
    assert rows["us"].desired_endpoints > 4, "the active regions hold the reserve"
    by, passive = Recommender(), planned(RegionRole.PASSIVE, survive_one_loss=True)
    desired(by, passive, at(0.0, 70.0, 60.0, 1), 0.0)
    rows = desired(by, passive, at(STABLE_S + 1, 70.0, 60.0, 1), STABLE_S + 1)
    assert (rows["es"].desired_endpoints, rows["es"].cause, rows["es"].lost) == (3, Cause.REGION_LOSS, "de")
    assert (rows["de"].desired_endpoints, rows["us"].desired_endpoints) == (4, 3)


def test_the_loss_of_an_active_region_is_ordered_in_the_pilot_light_before_its_clients_arrive_elsewhere() -> None:
    policy, by = planned(RegionRole.PILOT_LIGHT), Recommender()
    rows = desired(by, policy, at(0.0, 70.0, 60.0, 1), 0.0)
    assert rows["es"].desired_endpoints == 1
    assert by.standby.takeover is None
    rows = desired(by, policy, at(5.0, None, 60.0, 1, RegionState.FAILED), 5.0)
    assert (rows["es"].desired_endpoints, rows["es"].cause, rows["es"].lost) == (4, Cause.REGION_LOSS, "de")
    assert rows["us"].desired_endpoints == 4, "as before: 60 requests/s, and no fewer than exist"
    rows = desired(by, policy, at(65.0, None, 130.0, 2, RegionState.FAILED), 65.0)
    assert rows["es"].desired_endpoints == 4
    assert rows["us"].desired_endpoints == 4, "the clients of de are counted once"
    desired(by, policy, at(95.0, None, 130.0, 4, RegionState.FAILED), 95.0)
    assert by.standby.takeover is not None
    assert (by.standby.takeover.lost, by.standby.takeover.ready_after_s) == (("de",), 90.0)
    desired(by, policy, at(200.0, 10.0, 100.0, 4, RegionState.RECOVERING), 200.0)
    assert by.standby.takeover.ended_after_s is None, "the failback ramp"
    desired(by, policy, at(260.0, 70.0, 60.0, 4), 260.0)
    assert by.standby.takeover.ended_after_s == 255.0
    later = 260.0 + STABLE_S + 1
    assert desired(by, policy, at(later, 70.0, 60.0, 4), later)["es"].desired_endpoints == 1


def test_a_takeover_is_ready_again_only_when_a_larger_order_is() -> None:
    policy, by = planned(RegionRole.PILOT_LIGHT), Recommender()
    failed = RegionState.FAILED

    def ready_after_s(now: float, de: float | None, standby: int) -> float | None:
        desired(by, policy, at(now, de, 60.0, standby, failed if now else RegionState.HEALTHY), now)
        return by.standby.takeover.ready_after_s if by.standby.takeover else None

    assert ready_after_s(0.0, 20.0, 1) is None
    assert ready_after_s(5.0, 20.0, 1) == 0.0, "one endpoint is enough"
    assert ready_after_s(10.0, 90.0, 1) is None
    assert ready_after_s(35.0, 90.0, 2) is None
    assert ready_after_s(45.0, 90.0, 4) == 40.0
    assert ready_after_s(55.0, 90.0, 3) == 40.0, "an endpoint that fails later is no new order"


def test_an_order_beyond_the_maximum_is_ready_with_the_maximum() -> None:
    policy, by = planned(RegionRole.PILOT_LIGHT), Recommender()
    model = replace(policy.models["m"], scaling=replace(policy.models["m"].scaling, max_endpoints=3))
    policy = replace(policy, models={"m": model})
    desired(by, policy, at(0.0, 70.0, 60.0, 1), 0.0)
    rows = desired(by, policy, at(5.0, None, 60.0, 1, RegionState.FAILED), 5.0)
    assert (rows["es"].desired_endpoints, rows["es"].cause, rows["es"].lost) == (3, Cause.MAXIMUM, "de")
    desired(by, policy, at(25.0, None, 60.0, 3, RegionState.FAILED), 25.0)
    assert by.standby.takeover is not None
    assert by.standby.takeover.ready_after_s == 20.0


def test_a_drained_region_counts_as_lost_while_its_clients_still_enter_there() -> None:
    policy, by = planned(RegionRole.PILOT_LIGHT), Recommender()
    desired(by, policy, at(0.0, 70.0, 60.0, 1), 0.0)
    rows = desired(by, policy, at(5.0, 75.0, 60.0, 1, RegionState.DRAINING), 5.0)
    assert (rows["es"].desired_endpoints, rows["es"].lost) == (4, "de")


def test_the_demand_of_a_lost_region_has_the_residency_of_now() -> None:
    by, policy, key = StandbyWatch(), planned(RegionRole.PILOT_LIGHT), Key("de", "m", "eu")
    pools = [("de", "m"), ("us", "m"), ("es", "m")]
    by.step(policy, at(0.0, 70.0, 60.0, 1), pools, {key: Expected(70.0, frozenset({"de", "us"}))}, 0.0)
    failed = at(5.0, None, 60.0, 1, RegionState.FAILED)
    displaced = by.step(policy, failed, pools, {key: Expected(1.0, frozenset({"de", "es"}))}, 5.0)
    assert displaced.expected[key] == Expected(70.0, frozenset({"de", "es"}))


def test_only_the_demand_that_the_lost_region_served_is_displaced_and_it_counts_once() -> None:
    by, policy = StandbyWatch(), planned(RegionRole.PILOT_LIGHT)
    pools = [("de", "m"), ("us", "m"), ("es", "m")]
    de, us, abroad = Key("de", "m", "eu"), Key("us", "m", "all"), Key("de", "m", "us")
    everywhere, not_in_de = frozenset({"de", "us", "es"}), frozenset({"us", "es"})
    before = {de: Expected(70.0, everywhere), us: Expected(60.0, everywhere), abroad: Expected(50.0, not_in_de)}
    by.step(policy, at(0.0, 70.0, 60.0, 1), pools, before, 0.0)
    failed = at(5.0, None, 60.0, 1, RegionState.FAILED)
    # Of the clients of de, 40 requests/s enter in us by now.
    after = {us: Expected(100.0, everywhere), abroad: Expected(50.0, not_in_de)}
    displaced = by.step(policy, failed, pools, after, 5.0).expected
    assert displaced[de].requests_per_s == 70.0
    assert displaced[us].requests_per_s + displaced[abroad].requests_per_s == pytest.approx(110.0)
    after = {us: Expected(60.0, everywhere), abroad: Expected(30.0, not_in_de)}
    displaced = by.step(policy, failed, pools, after, 6.0).expected
    assert {key: row.requests_per_s for key, row in displaced.items()} == {de: 70.0, us: 60.0, abroad: 30.0}


def test_the_order_is_due_at_once_when_an_active_region_is_lost_and_when_it_is_back() -> None:
    policy, by = planned(RegionRole.PILOT_LIGHT), Recommender()
    well, lost = at(1.0, 20.0, 20.0, 1), at(2.0, None, 20.0, 1, RegionState.FAILED)
    desired(by, policy, well, 1.0)
    assert not by.standby.is_due(policy, well)
    assert by.standby.is_due(policy, lost)
    assert not by.standby.is_due(planned(RegionRole.ACTIVE), lost), "without a standby region"
    desired(by, policy, lost, 2.0)
    assert not by.standby.is_due(policy, lost)
    assert by.standby.is_due(policy, well)
