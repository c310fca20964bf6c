"""Smoothed demand and fading peaks: by elapsed time, whatever the number of calls."""

from __future__ import annotations

from math import exp

import pytest

from penstock.scaling.demand_levels import Peaks, Smoothed

PEAK_S, SMOOTH_S = 3600.0, 60.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


@pytest.mark.parametrize("steps", [1, 7])
def test_a_mean_follows_with_its_time_constant(steps: int) -> None:
    means = Smoothed[str]()
    assert means.update({"a": 10.0}, 100.0) == {"a": 10.0}
    for step in range(1, steps + 1):
        found = means.update({"a": 20.0, "b": 3.0}, 100.0 + SMOOTH_S * step / steps)
    assert found == {"a": pytest.approx(20.0 - 10.0 * exp(-1.0)), "b": 3.0}
    assert means.update({"a": 0.0}, 1000.0) == {"a": 0.0}
    assert means.update({"a": 5.0, "b": 7.0}, 999.0)["b"] == 7.0, "forgotten"


@pytest.mark.parametrize("steps", [1, 7])
def test_a_peak_fades_to_the_present_rate(steps: int) -> None:
    peaks = Peaks[str]()
    assert peaks.update({"a": 50.0}, 0.0) == {"a": 50.0}
    for step in range(1, steps + 1):
        found = peaks.update({"a": 10.0}, PEAK_S * step / steps)
    assert found == {"a": pytest.approx(10.0 + 40.0 * exp(-1.0))}
    assert peaks.update({"a": 80.0}, PEAK_S) == {"a": 80.0}
    assert peaks.update({}, PEAK_S) == {}
