from hypothesis import given
from hypothesis import strategies as st

from penstock.health.region_health import RegionHealth, RegionState, observe
from penstock.policy.kinds.spillover_and_failover import Failover

failovers = st.builds(
    Failover,
    unhealthy_threshold=st.integers(1, 5),
    healthy_threshold=st.integers(1, 5),
    hold_down_s=st.floats(0, 10),
    failback_ramp_s=st.floats(0, 60),
)
probes = st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=60)


@given(failovers, probes)
def test_any_history_follows_the_table_and_keeps_the_invariants(
    failover: Failover, history: list[tuple[bool, float]]
) -> None:
    health, now, misses, failed_at, hits = RegionHealth(), 0.0, 0, None, 0
    for good, gap_s in history:
        now += gap_s
        before, health = health, observe(health, good, now, failover)
        misses, hits = (0, hits + 1) if good else (misses + 1, 0)
        assert 0.0 <= health.weight(now, failover) <= 1.0
        assert (health.misses, health.hits) == (misses, hits)
        if misses >= failover.unhealthy_threshold:
            assert health.state is RegionState.FAILED
        if health.state is RegionState.FAILED and before.state is not RegionState.FAILED:
            assert misses >= failover.unhealthy_threshold
            failed_at = now
        if before.state is RegionState.FAILED and health.state is not RegionState.FAILED:
            assert failed_at is not None
            assert health.state is RegionState.RECOVERING
            assert hits >= failover.healthy_threshold
            assert now - failed_at >= failover.hold_down_s


@given(failovers, st.floats(0, 100), st.lists(st.floats(0, 100), min_size=2))
def test_the_ramp_only_rises(failover: Failover, since: float, ages: list[float]) -> None:
    recovering = RegionHealth(RegionState.RECOVERING, since)
    weights = [recovering.weight(since + age, failover) for age in sorted(ages)]
    assert weights == sorted(weights)
