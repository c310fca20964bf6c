"""Relative speeds of accelerators."""

from __future__ import annotations

import pytest

from penstock.policy.accelerators import RELATIVE_SPEEDS, RelativeSpeed, relative_speed_of


def test_an_accelerator_with_half_the_arithmetic_and_bandwidth_takes_twice_the_time() -> None:
    assert RELATIVE_SPEEDS["h100"] == RelativeSpeed(1.0, 1.0)
    b200, l4 = RELATIVE_SPEEDS["b200"], RELATIVE_SPEEDS["l4"]
    assert (b200.prefill, b200.decode) == (pytest.approx(0.44, abs=0.01), pytest.approx(0.42, abs=0.01))
    assert (l4.prefill, l4.decode) == (pytest.approx(8.2, abs=0.1), pytest.approx(11.2, abs=0.1))


def test_older_accelerators_are_slower_by_arithmetic_and_bandwidth() -> None:
    a10, a10g, v100, t4 = (RELATIVE_SPEEDS[name] for name in ("a10", "a10g", "v100", "t4"))
    assert a10g.decode == a10.decode
    assert a10.prefill < a10g.prefill == pytest.approx(14.1, abs=0.1)
    assert (v100.prefill, v100.decode) == (pytest.approx(7.9, abs=0.1), pytest.approx(3.7, abs=0.1))
    assert (t4.prefill, t4.decode) == (pytest.approx(15.2, abs=0.1), pytest.approx(10.5, abs=0.1))


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("A100", "a100"),
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("nvidia_a10g", "a10g"),
        ("AMD Instinct MI300X", "mi300x"),
        ("RTX-6000-Ada", None),
        ("a1000", None),
        ("", None),
    ],
)
def test_a_word_of_the_name_decides(name: str, known_as: str | None) -> None:
    assert relative_speed_of(name) == (None if known_as is None else RELATIVE_SPEEDS[known_as])
