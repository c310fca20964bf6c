from penstock.fleet.shared_counts import FRESH_S, LEASE_S, weight_at_age, weighted_count


def test_belief_is_whole_while_fresh_and_gone_with_the_lease() -> None:
    assert [weight_at_age(age) for age in (0.0, FRESH_S, LEASE_S, 99.0)] == [1.0, 1.0, 0.0, 0.0]
    assert weight_at_age((FRESH_S + LEASE_S) / 2) == 0.5


def test_counts_fade_gradually_and_whole() -> None:
    faded = [weighted_count(4, weight_at_age(FRESH_S + step * (LEASE_S - FRESH_S) / 100)) for step in range(101)]
    assert faded == sorted(faded, reverse=True)
    assert set(faded) == {0, 1, 2, 3, 4}
    assert (faded[0], faded[-1]) == (4, 0)
    assert weighted_count(0, 1.0) == 0
