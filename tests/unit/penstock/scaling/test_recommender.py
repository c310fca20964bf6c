"""Recommendations over time: up at once, down after a while, and nothing lower at the start of a leader."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.fleet.report import AgentReport, DemandReport, PoolReport, SpilloverReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.planning.plan import VersionShare
from penstock.planning.share_moves import Key
from penstock.policy.kinds.models import Model, ModelVersions, Scaling, Version
from penstock.policy.kinds.regions import Region, SpotPool
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class
from penstock.policy.service_objective import ObjectiveReport
from penstock.scaling.recommender import Recommendation, Recommender
from penstock.scaling.replicas import Cause, Need

DEAD_S, PEAK_S, QUEUE_S, REACTION_S, STABLE_S = 300.0, 3600.0, 30.0, 60.0, 600.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

HERE = residency_class(frozenset({"a"}))
POLICY = Policy(
    regions={"a": Region("a", "DE", 50.0, 8.0, spot=(SpotPool(("m",), 0.25),))},
    models={"m": Model("m", scaling=Scaling(cold_start_s=240.0, gpus_per_endpoint=2.0))},
    tenants={},
    residency=(),
)


def snapshot(now: float, requests_per_s: float, ready: int = 4, *, draining: int = 0, down: int = 0) -> Snapshot:
    rows = tuple(
        EndpointReport(
            f"gpu-{n}",
            "h:1",
            ("m",),
            "",
            "",
            EndpointCondition.DRAINING
            if n < draining
            else EndpointCondition.DOWN
            if n < draining + down
            else EndpointCondition.READY,
            8,
            n,
        )
        for n in range(ready)
    )
    report = AgentReport(
        "a",
        "one",
        1,
        1,
        now,
        pools=(PoolReport("m", ready - draining, ready - draining - down, 8 * (ready - draining - down), 0, 1.0),),
        demand=(DemandReport("m", HERE.name, ("a",), requests_per_s),),
        endpoints=rows,
    )
    return Snapshot({("a", "one"): HeldReport(report, now, now)})


def test_a_region_that_has_served_nothing_is_sized_by_the_times_of_the_fleet() -> None:
    """A region that stands by reports its prior: 5 s here, where the fleet needs 20 s, or 0.1 s."""
    both = residency_class(frozenset({"a", "b"}))
    policy = replace(POLICY, regions={"a": POLICY.regions["a"], "b": Region("b", "DE", 51.0, 8.0)})
    key = Key("a", "m", both.name)
    for measured_s, desired in ((20.0, 13), (0.1, 1)):
        pools = {
            "a": PoolReport("m", 40, 40, 320, 0, measured_s, completions=200),
            "b": PoolReport("m", 1, 1, 8, 0, 5.0, completions=0),
        }
        asked = DemandReport("m", both.name, ("a", "b"), 5.0)
        reports = {
            name: AgentReport(name, "one", 1, 1, 0.0, pools=(pool,), demand=(asked,) if name == "a" else ())
            for name, pool in pools.items()
        }
        at = Snapshot({(name, "one"): HeldReport(report, 0.0, 0.0) for name, report in reports.items()})
        rows = {row.region: row for row in Recommender().recommend(policy, at, lambda _: {key: 5.0}, 0.0)}
        assert (rows["b"].desired_endpoints, rows["b"].cause) == (desired, Cause.REGION_LOSS), measured_s


def recommend(by: Recommender, at: Snapshot, now: float, forecast: float = 0.0) -> Recommendation:
    asked: list[float] = []

    def ahead(horizon_s: float) -> Mapping[Key, float]:
        asked.append(horizon_s)
        return {Key("a", "m", HERE.name): forecast}

    (row,) = by.recommend(POLICY, at, ahead, now)
    assert max(asked) == row.horizon_s == 240.0 + REACTION_S
    return row


@pytest.mark.parametrize(
    ("cold_start_s", "times_s"), [(240.0, [300.0]), (241.0, [150.5, 301.0]), (840.0, [300.0, 600.0, 900.0])]
)
def test_demand_is_forecast_at_moments_of_at_most_five_minutes_until_an_endpoint_serves(
    cold_start_s: float, times_s: list[float]
) -> None:
    policy = replace(POLICY, models={"m": Model("m", scaling=Scaling(cold_start_s=cold_start_s))})
    asked: list[float] = []

    def ahead(horizon_s: float) -> Mapping[Key, float]:
        asked.append(horizon_s)
        return {Key("a", "m", HERE.name): 64.0 if horizon_s == times_s[0] else 1.0}

    (row,) = Recommender().recommend(policy, snapshot(0.0, 10.0), ahead, 0.0)
    assert asked == times_s
    assert (row.region, row.model, row.forecast_per_s) == ("a", "m", 64.0), "the highest of them"


@pytest.mark.parametrize(("next_percent", "endpoints"), [(0.0, 0), (25.0, 7), (100.0, 25)])
def test_a_new_version_has_endpoints_for_the_next_step_of_its_rollout(next_percent: float, endpoints: int) -> None:
    """32 requests/s of 5 s, by endpoints with 8 slots of which 80 % are used."""
    scaling = Scaling(slots_per_endpoint=8, regions=("a",))
    models = {**POLICY.models, "next": Model("next", scaling=scaling)}
    versions = {"chat": ModelVersions("chat", (Version("m", 100.0), Version("next", 0.0)))}
    policy = replace(POLICY, models=models, versions=versions)
    shares = (VersionShare("chat", "next", 0.0, next_percent=next_percent),)
    rows = Recommender().recommend(policy, snapshot(0.0, 32.0), lambda _: {}, 0.0, shares)
    found = {row.model: (row.desired_endpoints, row.requests_per_s) for row in rows}
    assert found.get("next", (0, 0.0)) == (endpoints, 0.0)


def test_a_region_without_clients_measures_no_demand() -> None:
    idle = changed(snapshot(0.0, 10.0), demand=())
    row = Recommender().recommend(POLICY, idle, lambda _: {}, 0.0)[0]
    assert (row.requests_per_s, row.forecast_per_s) == (0.0, 0.0)


def test_a_forecast_beyond_the_cold_start_raises_the_number_at_once() -> None:
    row = recommend(Recommender(), snapshot(0.0, 10.0), 0.0, forecast=64.0)
    assert (row.endpoints, row.desired_endpoints, row.cause) == (4, 10, Cause.DEMAND)
    assert (row.requests_per_s, row.forecast_per_s, row.drain) == (10.0, 64.0, ())
    assert (row.cost_per_hour, row.is_spot) == (10 * 2 * 0.25, True)


def test_an_endpoint_that_stays_down_does_not_exist_and_is_to_be_replaced() -> None:
    by = Recommender()
    for now in (0.0, DEAD_S - 1.0):
        row = recommend(by, snapshot(now, 25.0, down=1), now)
        assert (row.endpoints, row.desired_endpoints, row.dead) == (4, 4, ())
    row = recommend(by, snapshot(DEAD_S, 25.0, down=1), DEAD_S)
    assert (row.endpoints, row.desired_endpoints, row.dead) == (3, 4, ("gpu-0",))
    row = recommend(by, snapshot(DEAD_S + 1.0, 25.0), DEAD_S + 1.0)
    assert (row.endpoints, row.dead) == (4, ())
    assert recommend(by, snapshot(DEAD_S + 2.0, 25.0, down=1), DEAD_S + 2.0).dead == (), "it was back meanwhile"


def test_burst_endpoints_neither_exist_nor_have_to_be_replaced_or_drained() -> None:
    by = Recommender()
    gone = EndpointReport("burst-1", "h:1", ("m",), "", "", EndpointCondition.DOWN, 8, 0, is_burst=True)
    for now in range(0, int(2 * STABLE_S), 100):
        at = snapshot(now, 6.0)
        agents = {
            key: replace(held, report=replace(held.report, endpoints=(gone, *(held.report.endpoints or ()))))
            for key, held in at.agents.items()
        }
        row = recommend(by, replace(at, agents=agents), now)
    assert (row.endpoints, row.dead) == (4, ())
    assert row.desired_endpoints < 4
    assert "burst-1" not in row.drain


def test_a_lower_number_follows_after_a_while_and_names_what_to_drain() -> None:
    by = Recommender()
    assert recommend(by, snapshot(0.0, 25.0), 0.0).desired_endpoints == 4
    for now in range(5, int(STABLE_S), 5):
        row = recommend(by, snapshot(now, 6.0), now)
        assert (row.desired_endpoints, row.drain) == (4, ())
    found = [recommend(by, snapshot(now, 6.0), now) for now in range(int(STABLE_S), int(4 * PEAK_S), 60)]
    desired = [row.desired_endpoints for row in found]
    assert desired == sorted(desired, reverse=True)
    assert set(desired) == {4, 3, 2, 1}, "the peak of 25 requests/s fades"
    assert (found[-1].cause, found[-1].drain) == (Cause.DEMAND, ("gpu-0", "gpu-1", "gpu-2"))
    assert {row.cause for row in found} == {Cause.DEMAND, Cause.PEAK}
    now = 4 * PEAK_S
    row = recommend(by, snapshot(now, 6.0, draining=3), now)
    assert (row.endpoints, row.desired_endpoints, row.drain) == (1, 1, ())


def test_a_burst_that_fits_into_the_free_slots_raises_nothing() -> None:
    by = Recommender()
    assert recommend(by, snapshot(0.0, 21.0), 0.0).desired_endpoints == 4
    found = [recommend(by, snapshot(now, 29.0 if now % 300 == 0 else 21.0), now) for now in range(5, 3600, 5)]
    assert {(row.desired_endpoints, row.cause) for row in found} == {(4, Cause.DEMAND)}


def test_a_new_leader_recommends_nothing_lower_than_what_exists() -> None:
    by = Recommender()
    assert recommend(by, snapshot(100.0, 0.0), 100.0).desired_endpoints == 4
    assert recommend(by, snapshot(99.0 + STABLE_S, 0.0), 99.0 + STABLE_S).desired_endpoints == 4
    assert recommend(by, snapshot(100.0 + STABLE_S, 0.0), 100.0 + STABLE_S).desired_endpoints == 0


def test_a_region_of_the_policy_scales_from_zero_and_back() -> None:
    scaling = Scaling(cold_start_s=240.0, regions=("a",))
    policy = replace(POLICY, models={"m": Model("m", scaling=scaling)})
    by = Recommender()

    def desired(at: Snapshot, now: float) -> list[int]:
        return [row.desired_endpoints for row in by.recommend(policy, at, lambda horizon_s: {}, now)]

    assert desired(snapshot(0.0, 0.0, ready=0), 0.0) == [], "a new leader: endpoints may be missing in the reports"
    assert desired(snapshot(5.0, 0.1, ready=0), 5.0) == [1], "requests, and no endpoint"
    assert desired(snapshot(6.0, 0.0, ready=1), 6.0) == [1]
    assert desired(Snapshot(), 300.0) == [], "a region that cannot report keeps its endpoints"
    last = 310.0
    assert desired(snapshot(last, 0.0, ready=1), last) == [1]
    assert desired(snapshot(last + STABLE_S + 1, 0.0, ready=1), last + STABLE_S + 1) == [0]
    assert desired(snapshot(last + STABLE_S + 2, 0.0, ready=0), last + STABLE_S + 2) == [0]


def test_a_gap_in_the_reports_keeps_earlier_needs_and_the_existing_endpoints() -> None:
    by = Recommender()
    assert recommend(by, snapshot(0.0, 6.0), 0.0).desired_endpoints == 4
    assert recommend(by, snapshot(STABLE_S + 5, 40.0), STABLE_S + 5).desired_endpoints == 7
    silent_at, heard_at = STABLE_S + 25, STABLE_S + 30
    assert by.recommend(POLICY, Snapshot(), lambda horizon_s: {}, silent_at) == ()
    assert recommend(by, snapshot(heard_at, 6.0), heard_at).desired_endpoints == 7, "the need before the gap"
    later = heard_at + STABLE_S - 1
    row = recommend(by, snapshot(later, 6.0), later)
    assert (row.desired_endpoints, row.drain) == (4, ()), "demand during the gap is unknown"
    assert recommend(by, snapshot(later + 2, 6.0), later + 2).desired_endpoints == 1


def test_a_silent_region_is_forgotten() -> None:
    by = Recommender()
    recommend(by, snapshot(0.0, 40.0), 0.0)
    by.recommend(POLICY, Snapshot(), lambda horizon_s: {}, STABLE_S + 1)
    assert not by._recent


def changed(at: Snapshot, **fields: object) -> Snapshot:
    ((key, held),) = at.agents.items()
    return Snapshot(
        {key: msgspec.structs.replace(held, report=msgspec.structs.replace(held.report, **fields))}, at.health
    )


def queued(now: float, waiting: int, ready: int = 4) -> Snapshot:
    return changed(snapshot(now, 25.0, ready), spillover=(SpilloverReport("m", waiting, 0, 0, 0),))


def test_requests_that_keep_waiting_are_the_binding_signal() -> None:
    by = Recommender()
    for now in (0.0, 15.0, QUEUE_S - 1.0):
        assert recommend(by, queued(now, 20), now).cause is Cause.DEMAND
    row = recommend(by, queued(QUEUE_S, 12), QUEUE_S)
    assert (row.desired_endpoints, row.cause) == (6, Cause.QUEUE), "12 requests fill two endpoints of 8 slots"
    row = recommend(by, queued(QUEUE_S + 15.0, 1), QUEUE_S + 15.0)
    assert (row.desired_endpoints, row.cause) == (6, Cause.QUEUE), "until another period is complete"
    single = Recommender()
    for now in (0.0, 15.0, QUEUE_S):
        row = recommend(single, queued(now, 1), now)
    assert (row.desired_endpoints, row.cause) == (5, Cause.QUEUE), "one request that keeps waiting lacks a slot, too"
    other = Recommender()
    for now in range(0, 100, 10):
        row = recommend(other, queued(now, 20 if now % 20 else 0), now)
    assert row.cause is Cause.DEMAND, "a queue that empties is no backlog"
    for now in range(100, 200, 10):
        row = recommend(other, queued(now, 5_000), now)
    assert row.desired_endpoints == 8, "at most as many again as are ready"


def missing(now: float, within: int, in_flight: int = 24) -> Snapshot:
    at = snapshot(now, 25.0)
    ((_, held),) = at.agents.items()
    (pool,) = held.report.pools
    return changed(
        at,
        pools=(msgspec.structs.replace(pool, in_flight=in_flight),),
        objectives=(ObjectiveReport("m", 1.0, 0.99, 1000, within),),
    )


def test_a_missed_objective_lowers_the_utilisation_that_endpoints_are_counted_for() -> None:
    by = Recommender()
    assert recommend(by, missing(0.0, 990), 0.0).desired_endpoints == 4
    row = recommend(by, missing(5.0, 900), 5.0)
    assert (row.desired_endpoints, row.cause) == (5, Cause.OBJECTIVE), "25 slots at 0.9 * 75 %"
    for now in range(10, 600, 5):
        row = recommend(by, missing(now, 900), now)
    assert row.desired_endpoints == 5, "new endpoints have time to start before the next step"
    for now in range(600, 6000, 100):
        row = recommend(by, missing(now, 1000, in_flight=8), now)
    assert (row.desired_endpoints, row.cause) == (5, Cause.OBJECTIVE), "met again, it stays"
    idle = Recommender()
    assert recommend(idle, missing(0.0, 500, in_flight=2), 0.0).cause is Cause.DEMAND, "slots were free"


@given(st.lists(st.floats(0.0, 200.0), min_size=2, max_size=4), st.integers(0, 10_000))
@settings(max_examples=25)
def test_noise_about_a_level_of_demand_reverses_a_recommendation_at_most_once(levels: list[float], seed: int) -> None:
    by, rng, found = Recommender(), Random(seed), list[int]()
    for step, level in enumerate(levels):
        for at in range(0, 1800, 30):
            now = 1800.0 * step + at
            found.append(recommend(by, snapshot(now, level * rng.uniform(0.98, 1.0)), now).desired_endpoints)
    changes = [after - before for before, after in pairwise(found) if after != before]
    reversals = sum((one > 0) != (two > 0) for one, two in pairwise(changes))
    assert reversals <= len(levels)


@pytest.mark.parametrize(("exact", "endpoints"), [(3.8, 4), (3.82, 5)])
def test_a_lower_number_leaves_a_margin_of_a_twentieth(exact: float, endpoints: int) -> None:
    recommender, key = Recommender(), ("eu-de", "m")
    recommender._reported_since[key] = -1e9
    assert recommender._stable(key, Need(6, 60.0, Cause.DEMAND, exact=6.0), 6, 0.0).endpoints == 6
    lower = Need(4, 40.0, Cause.DEMAND, exact=exact)
    assert recommender._stable(key, lower, 6, STABLE_S).endpoints == 6
    assert recommender._stable(key, lower, 6, STABLE_S + 1.0).endpoints == endpoints
