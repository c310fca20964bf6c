"""The policy bundle of a lab fleet: the shipped example bundle with the changes and additions of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.wan.matrix import RttMatrix
from penstock.policy.policy import Policy

SHIPPED_BUNDLE = (Path(__file__).parent / "shipped").resolve()
"""In a checkout a symbolic link to `policies/planet`, in the wheel a copy of that directory."""

GEO_ROUTING_FILE = "geo-routing.yaml"

MODELS_FILE = "models.yaml"

REGIONS_FILE = "regions.yaml"

ROLLOUT_FILE = "rollout.yaml"

SPILLOVER_FILE = "spillover.yaml"

IMAGES_FILE = Path(__file__).with_name("images.yaml")
"""Policy of image jobs, which the demo adds to the shipped bundle."""


TENANTS_FILE = Path(__file__).with_name("tenants.yaml")
"""Tiers of the tenants that the demo creates."""


def load_bundle() -> Policy:
    """Read and compile the shipped bundle.

    Raises:
        PolicyRefused: the bundle is invalid or cannot be read.
    """
    return compile_bundle(read_folder(SHIPPED_BUNDLE))


def matrix_of(policy: Policy) -> RttMatrix:
    """Return the round trips between all pairs of regions from the policy."""
    pairs = {
        (origin, server): policy.round_trip_ms(origin, server) for origin in policy.regions for server in policy.regions
    }
    return RttMatrix(pairs, "the policy bundle")


def demo_bundle(matrix: RttMatrix) -> dict[str, str]:
    """Return the demo's bundle by file name: the shipped bundle with image jobs and the round trips of `matrix`.

    Raises:
        PolicyRefused: the bundle cannot be read.
        MatrixError: the matrix lacks a pair of regions.
    """
    files = read_folder(SHIPPED_BUNDLE)
    regions = compile_bundle(files).regions
    rtt_ms = {a: {b: matrix.between(a, b) for b in regions} for a in regions}
    routing = yaml.safe_load(files[GEO_ROUTING_FILE]) | {"rtt_ms": rtt_ms}
    files[GEO_ROUTING_FILE] = yaml.safe_dump(routing, sort_keys=False)
    for file in (IMAGES_FILE, TENANTS_FILE):
        files[f"demo-{file.name}"] = file.read_text(encoding="utf-8")
    return files


def without_stages(files: Mapping[str, str]) -> dict[str, str]:
    """Return a bundle whose changes reach every region at once, without canary regions and evaluation."""
    at_once = {"canary_regions": [], "shadow_s": 0, "canary_s": 0, "min_requests": 0, "watch_s": 0}
    return {**files, ROLLOUT_FILE: yaml.safe_dump({**yaml.safe_load(files[ROLLOUT_FILE]), **at_once})}


def usage_store_file(folder: Path, region: str) -> str:
    """Return the policy file of a usage store in a folder, which holds the records of one region.

    The agents of all other regions keep their records in their spools.
    """
    fields = {"name": "demo", "url": f"file://{folder}", "regions": [region]}
    return yaml.safe_dump({"apiVersion": "penstock/v1", "kind": "UsageStore", **fields}, sort_keys=False)


def job_store_file(folder: Path, regions: Sequence[str], concurrency: int) -> str:
    """Return the policy file of job stores in a folder, one for each of `regions`.

    Args:
        concurrency: requests of jobs that one agent runs at a time.
    """
    stores = [
        {"apiVersion": "penstock/v1", "kind": "JobStore", "name": f"demo-{region}", "url": f"file://{folder}/{region}"}
        | {"regions": [region], "concurrency": concurrency}
        for region in regions
    ]
    return yaml.safe_dump_all(stores, sort_keys=False)


def bench_router_bundle(folder: Path = SHIPPED_BUNDLE, *, continue_streams: bool) -> dict[str, str]:
    """Return the bundle of the router benchmark by file name: that in `folder`, with `continue_streams` in every model.

    Raises:
        PolicyRefused: the bundle cannot be read.
    """
    files = read_folder(folder)
    models = [model | {"continue_streams": continue_streams} for model in yaml.safe_load_all(files[MODELS_FILE])]
    files[MODELS_FILE] = yaml.safe_dump_all(models, sort_keys=False)
    return files


def write_bundle(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a bundle into `folder`."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
