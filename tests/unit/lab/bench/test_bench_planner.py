"""The planner's benchmark measures the stated quantities, and the measured plans cost no more than the waterfall's."""

from __future__ import annotations

import pytest

from lab.bench.bench_planner import measure
from lab.bench.planets import Size


@pytest.mark.parametrize("size", [Size(10, 10, 5, 2), Size(30, 20, 10, 3)])
def test_a_size_is_measured_and_the_flow_is_never_dearer_than_the_waterfall(size: Size) -> None:
    row = measure(size, 2)
    assert row["tables"] == size.origins * size.classes
    assert row["cost"]["total"] <= row["waterfall_cost"]["total"]
    assert all(row[name] > 0.0 for name in ("cold_ms", "warm_ms", "warm_cpu_ms", "loss_of_a_region_cpu_ms"))
