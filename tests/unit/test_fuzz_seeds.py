"""Every committed input of every fuzz target, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import check_of, seeds, targets

CASES = [(target, seed) for target in targets() for seed in seeds(target)]


@pytest.mark.parametrize(("target", "seed"), CASES, ids=[f"{target}/{seed.name}" for target, seed in CASES])
def test_the_property_holds(target: str, seed: Path) -> None:
    check_of(target)(seed.read_bytes())


def test_every_target_states_its_property() -> None:
    for target in targets():
        assert "Property:" in (check_of(target).__globals__["__doc__"] or "")
