"""Spillover documents: compiled, or refused with their line if they do not match the bundle."""

from __future__ import annotations

import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
TEXT = FILES["spillover.yaml"]


def test_limits_and_orders_are_part_of_the_policy() -> None:
    policy = compile_bundle(FILES)
    assert policy.spillover_orders == {"us-east": ("eu-de", "us-west")}
    little, dear = policy.spillover_limits
    assert dear == SpilloverLimit("nothing-expensive", max_cost_per_gpu_hour=1.2, source="spillover.yaml:5")
    assert (little.origins, little.models, little.max_share) == ({"br-sao"}, {"llama-3.1-8b"}, 0.2)
    assert compile_bundle({**FILES, "spillover.yaml": TEXT.replace("0.2\n", "0.3\n")}).digest() != policy.digest()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("origins: [br-sao]", "origins: []", "spillover.yaml:14: origins: "),
        ("models: [llama-3.1-8b]", "models: [llama]", "spillover.yaml:15: models[0]: there is no Model llama"),
        ("max_share: 0.2", "max_share: null", "spillover.yaml:10: limits nothing; give a number for one of"),
        ("max_share: 0.2", "max_share: 1.2", "spillover.yaml:16: max_share: "),
    ],
)
def test_an_invalid_document_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    assert old in TEXT
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle({**FILES, "spillover.yaml": TEXT.replace(old, new)})
    assert error in str(raised.value)
