from penstock.fleet.shared_counts import FRESH_S, LEASE_S, belief, believed


def test_belief_is_whole_while_fresh_and_gone_with_the_lease() -> None:
    assert [belief(age) for age in (0.0, FRESH_S, LEASE_S, 99.0)] == [1.0, 1.0, 0.0, 0.0]
    assert belief((FRESH_S + LEASE_S) / 2) == 0.5


def test_counts_fade_gradually_and_whole() -> None:
    faded = [believed(4, belief(FRESH_S + step * (LEASE_S - FRESH_S) / 100)) for step in range(101)]
    assert faded == sorted(faded, reverse=True)
    assert set(faded) == {0, 1, 2, 3, 4}
    assert (faded[0], faded[-1]) == (4, 0)
    assert believed(0, 1.0) == 0
