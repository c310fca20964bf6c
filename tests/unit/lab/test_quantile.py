from lab.quantile import quantile


def test_a_quantile_is_the_smallest_value_that_covers_its_share() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values[::-1], part) for part in (0.5, 0.99, 1.0, 0.001)] == [50.0, 99.0, 100.0, 1.0]
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([7.0], 0.99) == 7.0


def test_an_empty_list_has_no_quantile() -> None:
    assert quantile([], 0.5) is None
