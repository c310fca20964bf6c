"""The bundles that the lab derives from the shipped one."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.policy.compiler import compile_bundle
from lab.planet.bundle import bench_router_bundle, load_bundle


@pytest.mark.parametrize("continue_streams", [False, True])
def test_the_router_benchmark_changes_only_whether_streams_are_continued(continue_streams: bool) -> None:
    shipped, policy = load_bundle(), compile_bundle(bench_router_bundle(continue_streams=continue_streams))
    assert {model.continue_streams for model in policy.models.values()} == {continue_streams}
    models = {
        name: msgspec.structs.replace(model, continue_streams=continue_streams)
        for name, model in shipped.models.items()
    }
    assert policy == msgspec.structs.replace(shipped, models=models)
