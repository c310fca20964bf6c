"""Documents on where overflow may go: compiled, and refused with their line where they do not fit the bundle."""

from __future__ import annotations

import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.policy import SpilloverLimit
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
TEXT = FILES["spillover.yaml"]
SECOND_ORDER = """---
apiVersion: penstock/v1
kind: SpilloverOrder
origin: us-east
description: Another.
regions: [us-west]
"""


def test_limits_and_orders_are_part_of_the_policy() -> None:
    policy = compile_bundle(FILES)
    assert policy.spillover_orders == {"us-east": ("eu-de", "us-west")}
    little, dear = policy.spillover_limits
    assert dear == SpilloverLimit("nothing-expensive", max_cost_per_gpu_hour=1.2, source="spillover.yaml:11")
    assert (little.origins, little.models, little.max_share) == ({"br-sao"}, {"llama-3.1-8b"}, 0.2)
    assert compile_bundle({**FILES, "spillover.yaml": TEXT.replace("0.2\n", "0.3\n")}).digest() != policy.digest()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("origin: us-east", "origin: us-eest", "spillover.yaml:5: origin: there is no Region us-eest; did you mean"),
        ("[eu-de, us-west]", "[eu-de, mars]", "spillover.yaml:7: regions[1]: there is no Region mars"),
        ("[eu-de, us-west]", "[eu-de, us-east]", "spillover.yaml:7: regions[1]: is the origin itself; name other"),
        ("[eu-de, us-west]", "[eu-de, eu-de]", "spillover.yaml:7: regions: 'eu-de' is listed twice"),
        ("origins: [br-sao]", "origins: []", "spillover.yaml:20: origins: "),
        ("models: [llama-3.1-8b]", "models: [llama]", "spillover.yaml:21: models[0]: there is no Model llama"),
        ("max_share: 0.2", "max_share: null", "spillover.yaml:16: limits nothing; give a number for one of"),
        ("max_share: 0.2", "max_share: 1.2", "spillover.yaml:22: max_share: "),
        (
            "max_share: 0.2\n",
            "max_share: 0.2\n" + SECOND_ORDER,
            "origin: us-east has an order already; keep one; see ",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    assert old in TEXT
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle({**FILES, "spillover.yaml": TEXT.replace(old, new)})
    assert error in str(raised.value)
