import pytest

from penstock.health.region_health import (
    TRANSITIONS,
    RegionEvent,
    RegionHealth,
    RegionState,
    command,
    observe,
    probe_timeout_s,
)
from penstock.policy.kinds.spillover_and_failover import Failover

FAILOVER = Failover(unhealthy_threshold=2, healthy_threshold=3, hold_down_s=1.0, failback_ramp_s=10.0)


def after(*probes: tuple[bool, float], start: RegionHealth | None = None) -> RegionHealth:
    health = start or RegionHealth()
    for good, now in probes:
        health = observe(health, good, now, FAILOVER)
    return health


def test_first_good_probe_makes_an_unknown_region_whole() -> None:
    health = after((True, 1.0))
    assert (health.state, health.weight(1.0, FAILOVER)) == (RegionState.HEALTHY, 1.0)


def test_one_missed_probe_makes_a_region_suspect_and_moves_no_traffic() -> None:
    health = after((True, 0.0), (False, 0.3))
    assert (health.state, health.weight(0.3, FAILOVER)) == (RegionState.SUSPECT, 1.0)
    assert after((True, 0.5), start=health).state is RegionState.HEALTHY


def test_enough_misses_in_a_row_fail_it_at_once() -> None:
    health = after((True, 0.0), (False, 0.3), (False, 0.4))
    assert (health.state, health.since) == (RegionState.FAILED, 0.4)
    assert health.weight(0.4, FAILOVER) == 0.0


def test_misses_with_a_hit_between_do_not_add_up() -> None:
    assert after((True, 0.0), (False, 0.1), (True, 0.2), (False, 0.3)).state is RegionState.SUSPECT


def test_a_region_that_was_never_there_fails_too() -> None:
    assert after((False, 0.0)).state is RegionState.UNKNOWN
    assert after((False, 0.0), (False, 0.1)).state is RegionState.FAILED


def test_failed_returns_only_after_hits_in_a_row_and_the_hold_down() -> None:
    failed = after((True, 0.0), (False, 1.0), (False, 1.0))
    too_few = after((True, 3.0), (True, 3.1), (False, 3.2), (True, 3.3), (True, 3.4), start=failed)
    assert too_few.state is RegionState.FAILED
    too_soon = after((True, 1.1), (True, 1.2), (True, 1.3), (True, 1.9), start=failed)
    assert too_soon.state is RegionState.FAILED
    risen = after((True, 2.0), start=too_soon)
    assert (risen.state, risen.since) == (RegionState.RECOVERING, 2.0)


def test_failback_ramps_from_nothing_to_whole() -> None:
    risen = RegionHealth(RegionState.RECOVERING, since=100.0)
    assert [risen.weight(now, FAILOVER) for now in (100.0, 102.5, 105.0, 110.0, 200.0)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert after((True, 109.9), start=risen).state is RegionState.RECOVERING
    assert after((True, 110.0), start=risen).state is RegionState.HEALTHY


def test_without_a_ramp_a_risen_region_is_whole() -> None:
    no_ramp = Failover(failback_ramp_s=0.0)
    assert RegionHealth(RegionState.RECOVERING, since=5.0).weight(5.0, no_ramp) == 1.0


def test_one_miss_on_the_ramp_does_not_restart_it() -> None:
    risen = RegionHealth(RegionState.RECOVERING, since=100.0, hits=3)
    shaken = after((False, 105.0), start=risen)
    assert (shaken.state, shaken.since) == (RegionState.RECOVERING, 100.0)
    assert after((False, 105.1), start=shaken).state is RegionState.FAILED


def test_drained_gets_nothing_and_returns_by_the_ramp() -> None:
    drained = command(after((True, 0.0)), RegionEvent.DRAIN, 5.0)
    assert (drained.state, drained.weight(5.0, FAILOVER)) == (RegionState.DRAINING, 0.0)
    assert after((True, 6.0), start=drained).state is RegionState.DRAINING
    back = command(drained, RegionEvent.UNDRAIN, 9.0)
    assert (back.state, back.since) == (RegionState.RECOVERING, 9.0)


def test_a_command_that_the_state_cannot_follow_is_an_error() -> None:
    with pytest.raises(KeyError):
        command(after((True, 0.0)), RegionEvent.UNDRAIN, 1.0)


def test_every_state_handles_reports_misses_losses_and_drains() -> None:
    for state in RegionState:
        for event in (RegionEvent.PASSED, RegionEvent.MISSED, RegionEvent.LOST):
            assert (state, event) in TRANSITIONS
        assert state is RegionState.DRAINING or (state, RegionEvent.DRAIN) in TRANSITIONS


def test_a_loss_does_not_end_a_drain() -> None:
    drained = command(after((True, 0.0)), RegionEvent.DRAIN, 5.0)
    lost = after((False, 6.0), (False, 6.1), start=drained)
    assert (lost.state, lost.drained) == (RegionState.FAILED, True)
    back = after((True, 7.0), (True, 7.1), (True, 7.2), start=lost)
    assert (back.state, back.weight(100.0, FAILOVER)) == (RegionState.DRAINING, 0.0)
    assert command(back, RegionEvent.UNDRAIN, 8.0).state is RegionState.RECOVERING


def test_a_failed_region_can_be_drained_and_undrained_and_stays_failed() -> None:
    failed = after((False, 0.0), (False, 0.1))
    drained = command(failed, RegionEvent.DRAIN, 1.0)
    assert (drained.state, drained.drained) == (RegionState.FAILED, True)
    undrained = command(drained, RegionEvent.UNDRAIN, 2.0)
    assert (undrained.state, undrained.drained) == (RegionState.FAILED, False)
    assert after((True, 3.0), (True, 3.1), (True, 3.2), start=undrained).state is RegionState.RECOVERING


def weighed(*looks: tuple[float, float], start: RegionHealth | None = None) -> RegionHealth:
    health = start or after((True, 0.0))
    for share, now in looks:
        health = observe(health, True, now, FAILOVER, share)
    return health


def test_a_region_with_few_of_its_endpoints_for_a_while_is_degraded_and_keeps_its_traffic() -> None:
    degraded = weighed((0.49, 1.0), (0.49, 3.0), (0.49, 6.0))
    assert (degraded.state, degraded.since, degraded.weight(6.0, FAILOVER)) == (RegionState.DEGRADED, 6.0, 1.0)


def test_few_endpoints_for_a_moment_are_no_news() -> None:
    assert weighed((0.4, 1.0), (0.4, 5.9), (0.6, 6.0), (0.4, 6.1), (0.4, 11.0)).state is RegionState.HEALTHY
    assert weighed((0.5, 1.0), (0.5, 60.0)).state is RegionState.HEALTHY


def test_a_degraded_region_is_well_again_only_with_clearly_more_and_for_a_while() -> None:
    degraded = weighed((0.4, 1.0), (0.4, 6.0))
    assert weighed((0.74, 7.0), (0.74, 60.0), start=degraded).state is RegionState.DEGRADED
    assert weighed((0.8, 7.0), (0.8, 11.9), start=degraded).state is RegionState.DEGRADED
    assert weighed((0.8, 7.0), (0.6, 9.0), (0.8, 12.0), start=degraded).state is RegionState.DEGRADED
    assert weighed((0.75, 7.0), (0.75, 12.0), start=degraded).state is RegionState.HEALTHY


def test_a_miss_does_not_make_a_degraded_region_well() -> None:
    degraded = weighed((0.4, 1.0), (0.4, 6.0))
    missed = after((False, 7.0), start=degraded)
    assert missed.state is RegionState.SUSPECT
    assert after((True, 7.5), start=missed).state is RegionState.DEGRADED
    assert after((False, 7.1), start=missed).state is RegionState.FAILED


def test_a_region_that_returns_with_few_endpoints_ramps_first() -> None:
    risen = RegionHealth(RegionState.RECOVERING, since=0.0)
    assert weighed((0.1, 1.0), (0.1, 9.0), start=risen).state is RegionState.RECOVERING
    assert weighed((0.1, 1.0), (0.1, 10.0), (0.1, 10.5), start=risen).state is RegionState.DEGRADED


def test_who_only_probes_never_sees_a_region_degraded() -> None:
    assert after(*((True, float(second)) for second in range(30))).state is RegionState.HEALTHY


@pytest.mark.parametrize(
    ("connected", "tls", "timeout_s"), [(True, True, 0.5), (True, False, 0.5), (False, False, 0.7), (False, True, 0.9)]
)
def test_a_probe_may_take_the_round_trips_that_its_connection_needs(
    connected: bool, tls: bool, timeout_s: float
) -> None:
    timeout = probe_timeout_s(Failover(probe_timeout_s=0.3), 0.2, connected=connected, tls=tls)
    assert timeout == pytest.approx(timeout_s)


def test_a_frozen_region_fails_within_a_second_at_a_round_trip_of_100_ms() -> None:
    failover, rtt_s = Failover(), 0.1
    # A probe that was sent half a round trip before the freeze is the first without an answer.
    last_sent_s = failover.unhealthy_threshold * 1.1 * failover.probe_interval_s - rtt_s / 2
    assert last_sent_s + probe_timeout_s(failover, rtt_s, connected=True, tls=True) <= 1.0 + 1e-9
