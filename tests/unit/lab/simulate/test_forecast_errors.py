"""The measured errors of forecasts: naive forecasts have known errors, and no forecast uses later rates."""

from __future__ import annotations

from math import pi, sin

import pytest

from lab.simulate.forecast_errors import Trace, forecast_errors, real_traces

HOUR_S = 3600.0


@pytest.mark.long
def test_a_demand_that_repeats_has_no_error_against_last_week() -> None:
    rates = tuple(100.0 + 50.0 * sin(2 * pi * hour / 24) for hour in range(14 * 24))
    (found,) = forecast_errors(Trace("sine", HOUR_S, rates), (HOUR_S,))
    assert found.last_week == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < found.forecast < 0.6 * found.newest
    step = tuple(10.0 if hour < 300 else 30.0 for hour in range(14 * 24))
    (found,) = forecast_errors(Trace("step", HOUR_S, step), (HOUR_S,))
    assert found.forecast * 168 * (132 * 10 + 36 * 30) / 168 >= 20.0, "no forecast sees the step before it"


def test_the_real_traces_have_whole_weeks() -> None:
    assert {trace.name: len(trace.rates) / trace.week for trace in real_traces()} == {
        "servegen-m-small": 2,
        "servegen-m-large": 2,
        "nyc-taxi": 5,
    }
