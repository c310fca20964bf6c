"""The division of an amount by demand: none has more than it wants while another one lacks some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tenancy.water_filling import shares, water_filling

amounts = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6)


@given(st.floats(0.0, 200.0), amounts)
def test_no_agent_with_unmet_demand_has_less_than_another(total: float, demands: list[float]) -> None:
    parts = water_filling(total, demands)
    assert sum(parts) == pytest.approx(min(total, sum(demands)))
    for part, demand in zip(parts, demands, strict=True):
        assert 0.0 <= part <= demand
        assert part == demand or part >= max(parts) - 1e-9


@given(st.floats(0.1, 200.0), amounts)
def test_shares_are_of_the_whole_and_what_exceeds_the_demand_is_divided_by_it(
    total: float, demands: list[float]
) -> None:
    wanted = sum(demands)
    found = shares(total, demands, [0.0] * len(demands))
    assert sum(found) == pytest.approx(1.0)
    if wanted > total:
        assert [share * total for share in found] == pytest.approx(water_filling(total, demands))
    elif wanted > 0.0:
        assert [share * wanted for share in found] == pytest.approx(demands)


@pytest.mark.parametrize(
    ("earlier", "expected"), [([0.0, 0.0], [0.5, 0.5]), ([0.2, 0.6], [0.25, 0.75]), ([0.0, 0.3], [0.0, 1.0])]
)
def test_without_demand_shares_stay_as_they_were(earlier: list[float], expected: list[float]) -> None:
    assert shares(10.0, [0.0, 0.0], earlier) == pytest.approx(expected)
