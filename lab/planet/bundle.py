"""The policy of a fleet: the shipped example bundle, with measured round trips where they are given."""

from __future__ import annotations

from pathlib import Path

import yaml

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.wan.matrix import RttMatrix
from penstock.policy.policy import Policy

SHIPPED_BUNDLE = (Path(__file__).parent / "shipped").resolve()
"""A link to `policies/planet` in a checkout, a copy of it in the wheel."""

GEO_ROUTING_FILE = "geo-routing.yaml"


def load_bundle() -> Policy:
    """The shipped bundle, compiled.

    Raises:
        PolicyRefused: it has errors, or cannot be read.
    """
    return compile_bundle(read_folder(SHIPPED_BUNDLE))


def matrix_of(policy: Policy) -> RttMatrix:
    """Round trips between every two regions, as the policy has them."""
    pairs = {
        (origin, server): policy.round_trip_ms(origin, server) for origin in policy.regions for server in policy.regions
    }
    return RttMatrix(pairs, "the policy bundle")


def write_bundle(folder: Path, matrix: RttMatrix) -> None:
    """Copy the shipped bundle into `folder`, with the round trips of `matrix` between its regions.

    Raises:
        PolicyRefused: the bundle cannot be read.
        MatrixError: the matrix lacks a pair of regions.
    """
    files = read_folder(SHIPPED_BUNDLE)
    regions = compile_bundle(files).regions
    rtt_ms = {a: {b: matrix.between(a, b) for b in regions} for a in regions}
    routing = yaml.safe_load(files[GEO_ROUTING_FILE]) | {"rtt_ms": rtt_ms}
    files[GEO_ROUTING_FILE] = yaml.safe_dump(routing, sort_keys=False)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
