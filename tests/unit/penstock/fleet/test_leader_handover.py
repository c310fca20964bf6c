"""The leader's view of region health is in the plan, continues under the next leader, and expires unless renewed."""

from __future__ import annotations

import pytest
from msgspec.json import encode

from penstock.fleet.leader_handover import health_to_hand_over, inherited_health
from penstock.health.region_health import HEALTHY_FROM, RegionHealth, RegionState, observe
from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.spillover_and_failover import Failover

FADED_S = 15.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

RULES = Failover(hold_down_s=30.0, failback_ramp_s=100.0)
TOLD_AT = 1000.0


def after(health: RegionHealth | None, unwatched_s: float) -> RegionHealth | None:
    plan = RegionPlan("a", 1, 1, "digest", TOLD_AT, (), health=health)
    return inherited_health({"a": plan}, TOLD_AT + unwatched_s, RULES).get("a")


@pytest.mark.parametrize("state", [RegionState.FAILED, RegionState.RECOVERING, RegionState.DRAINING])
def test_plans_hold_the_lasting_health_state_of_regions(state: RegionState) -> None:
    health = RegionHealth(state, 5.0, 3, 4, drained=True, weak=True, turning_since=6.0)
    assert health_to_hand_over(health) == RegionHealth(state, 5.0, drained=True)


def test_a_degraded_region_stays_so_until_enough_of_its_endpoints_are_ready() -> None:
    degraded = RegionHealth(RegionState.DEGRADED, 990.0, misses=1, weak=True, turning_since=995.0)
    taken = after(health_to_hand_over(degraded), 1.0)
    assert taken == RegionHealth(RegionState.DEGRADED, 990.0, weak=True)
    assert observe(taken, True, TOLD_AT + 1.0, RULES, HEALTHY_FROM - 0.1).state is RegionState.DEGRADED
    assert after(health_to_hand_over(degraded), 60.0) is None


def test_healthy_regions_take_no_space_in_plans() -> None:
    assert (
        encode(health_to_hand_over(RegionHealth(RegionState.FAILED, 5.0, misses=9)))
        == b'{"state":"failed","since":5.0}'
    )


@pytest.mark.parametrize("state", [RegionState.HEALTHY, RegionState.SUSPECT, RegionState.UNKNOWN])
def test_other_states_are_not_in_plans(state: RegionState) -> None:
    assert health_to_hand_over(RegionHealth(state, 5.0, misses=1)) is None
    assert after(None, 1.0) is None


def test_news_of_just_now_are_taken_as_they_are() -> None:
    for state in (RegionState.FAILED, RegionState.RECOVERING, RegionState.DRAINING):
        assert after(RegionHealth(state, 990.0), FADED_S) == RegionHealth(state, 990.0)


def test_an_unobserved_failure_limits_a_region_like_one_that_recovered_since() -> None:
    lost = RegionHealth(RegionState.FAILED, 995.0)
    assert after(lost, 20.0) == lost, "in hold-down until 1025"
    assert after(lost, 40.0) == RegionHealth(RegionState.RECOVERING, 1025.0)
    assert after(lost, 124.0) == RegionHealth(RegionState.RECOVERING, 1025.0)
    assert after(lost, 125.0) is None
    assert after(lost, 3600.0) is None


def test_a_region_that_was_still_down_long_after_its_hold_down_rises_no_sooner_than_it_was_seen_down() -> None:
    assert after(RegionHealth(RegionState.FAILED, 100.0), 40.0) == RegionHealth(RegionState.RECOVERING, TOLD_AT)


def test_a_ramp_continues_by_itself_and_ends() -> None:
    returning = RegionHealth(RegionState.RECOVERING, 990.0)
    assert after(returning, 60.0) == returning
    assert after(returning, 90.0) is None


def test_an_old_drain_is_not_believed_on_this_word() -> None:
    assert after(RegionHealth(RegionState.DRAINING, 990.0, drained=True), 60.0) is None


def test_a_leader_whose_clock_was_ahead_holds_nothing_back_for_longer_than_from_now() -> None:
    assert after(RegionHealth(RegionState.FAILED, TOLD_AT), -50.0) == RegionHealth(RegionState.FAILED, TOLD_AT - 50.0)
