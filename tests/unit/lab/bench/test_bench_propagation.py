"""The changes that `make bench-propagation` measures."""

from __future__ import annotations

from control_plane.policy.compiler import compile_bundle
from lab.bench.bench_propagation import bundle


def test_each_change_gives_another_policy() -> None:
    assert len({compile_bundle(bundle(number)).digest() for number in range(3)}) == 3
