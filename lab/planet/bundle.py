"""The policy of a fleet: the shipped example bundle, and what the demo changes and adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.wan.matrix import RttMatrix
from penstock.policy.policy import Policy

SHIPPED_BUNDLE = (Path(__file__).parent / "shipped").resolve()
"""A link to `policies/planet` in a checkout, a copy of it in the wheel."""

GEO_ROUTING_FILE = "geo-routing.yaml"

IMAGES_FILE = Path(__file__).with_name("images.yaml")
"""What the demo adds to it."""


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


def demo_bundle(matrix: RttMatrix) -> dict[str, str]:
    """The files of the demo's bundle by name: the shipped bundle, with image jobs and the round trips of `matrix`.

    Raises:
        PolicyRefused: the bundle cannot be read.
        MatrixError: the matrix lacks a pair of regions.
    """
    files = read_folder(SHIPPED_BUNDLE)
    regions = compile_bundle(files).regions
    rtt_ms = {a: {b: matrix.between(a, b) for b in regions} for a in regions}
    routing = yaml.safe_load(files[GEO_ROUTING_FILE]) | {"rtt_ms": rtt_ms}
    files[GEO_ROUTING_FILE] = yaml.safe_dump(routing, sort_keys=False)
    files[IMAGES_FILE.name] = IMAGES_FILE.read_text(encoding="utf-8")
    return files


def write_bundle(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a bundle into `folder`."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
