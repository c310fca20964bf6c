"""Relative speeds of accelerators."""

from __future__ import annotations

import pytest

from penstock.policy.accelerators import RELATIVE_SPEEDS, RelativeSpeed


def test_an_accelerator_with_half_the_arithmetic_and_bandwidth_takes_twice_the_time() -> None:
    assert RELATIVE_SPEEDS["h100"] == RelativeSpeed(1.0, 1.0)
    b200, l4 = RELATIVE_SPEEDS["b200"], RELATIVE_SPEEDS["l4"]
    assert (b200.prefill, b200.decode) == (pytest.approx(0.44, abs=0.01), pytest.approx(0.42, abs=0.01))
    assert (l4.prefill, l4.decode) == (pytest.approx(8.2, abs=0.1), pytest.approx(11.2, abs=0.1))
