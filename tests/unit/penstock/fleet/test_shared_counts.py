from penstock.fleet.shared_counts import exchange_interval_s, weight_at_age, weighted_count

ACTIVE_S, FRESH_S, IDLE_INTERVAL_S, LEASE_S, MIN_INTERVAL_S = 1.0, 0.5, 0.1, 2.0, 0.01
"""As documented, and not imported: a test fails if a tuned constant changes."""


def test_belief_is_whole_while_fresh_and_gone_with_the_lease() -> None:
    assert [weight_at_age(age) for age in (0.0, FRESH_S, LEASE_S, 99.0)] == [1.0, 1.0, 0.0, 0.0]
    assert weight_at_age((FRESH_S + LEASE_S) / 2) == 0.5


def test_counts_fade_gradually_and_whole() -> None:
    faded = [weighted_count(4, weight_at_age(FRESH_S + step * (LEASE_S - FRESH_S) / 100)) for step in range(101)]
    assert faded == sorted(faded, reverse=True)
    assert set(faded) == {0, 1, 2, 3, 4}
    assert (faded[0], faded[-1]) == (4, 0)
    assert weighted_count(0, 1.0) == 0


def test_agents_exchange_often_while_requests_wait_or_other_agents_are_active() -> None:
    assert exchange_interval_s(0.0, requests_wait=False) == MIN_INTERVAL_S
    assert exchange_interval_s(0.99 * ACTIVE_S, requests_wait=False) == MIN_INTERVAL_S
    assert exchange_interval_s(ACTIVE_S, requests_wait=False) == IDLE_INTERVAL_S
    assert exchange_interval_s(ACTIVE_S, requests_wait=True) == MIN_INTERVAL_S
