"""An attempt has its share of the time of its endpoint's GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.cost.gpu_time import gpu_time_s, gpus_of
from tests.support.planet import MODEL, policy


def test_the_requests_on_an_endpoint_share_the_time_of_its_gpus() -> None:
    model = policy().models[MODEL]
    large = replace(model, scaling=replace(model.scaling, gpus_per_endpoint=8.0))
    assert gpus_of(large) == 8.0
    assert gpu_time_s(large, 3.0, 4.0) == 6.0


def test_a_model_that_the_policy_lacks_counts_as_one_gpu() -> None:
    assert gpus_of(None) == 1.0
    assert gpu_time_s(None, 3.0, 2.0) == 1.5
