"""ModelRollout documents: compiled with their name, refused with their line, and absent from other policies."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.kinds.model_rollouts import ModelRollout, ShadowRequests
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
TEXT = """apiVersion: penstock/v1
kind: Model
name: llama-3.1-8b-v2
---
apiVersion: penstock/v1
kind: ModelVersions
name: chat
versions: [{model: llama-3.1-8b, percent: 100}, {model: llama-3.1-8b-v2, percent: 0}]
---
apiVersion: penstock/v1
kind: ModelRollout
name: chat
to: llama-3.1-8b-v2
steps: [5, 50, 100]
header: x-preview
shadow: {percent: 2}
"""


def test_a_rollout_belongs_to_the_versions_of_its_name() -> None:
    policy = compile_bundle({**FILES, "rollout.yaml": TEXT})
    expected = ModelRollout(
        "chat", "llama-3.1-8b-v2", (5.0, 50.0, 100.0), header="x-preview", shadow=ShadowRequests(percent=2.0)
    )
    assert policy.model_rollouts == {"chat": expected}
    assert b"model_rollouts" not in msgspec.json.encode(compile_bundle(FILES))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("to: llama-3.1-8b-v2", "to: llama", "rollout.yaml:13: to: there is no Model llama"),
        ("name: chat\nto", "name: chats\nto", "rollout.yaml:12: name: there is no ModelVersions chats"),
        ("percent: 100}, {", "percent: 100}, {model: m3, percent: 0}, {", "rollout.yaml:8: versions[1].model"),
        ("percent: 0}", "percent: 0}, {model: llama-3.1-70b, percent: 0}", "chat has 3 versions"),
        ("100}, {model: llama-3.1-8b-v2, percent: 0", "90}, {model: llama-3.1-8b-v2, percent: 10", ":14: steps[0]: "),
        ("[5, 50, 100]", "[50, 5, 100]", "rollout.yaml:10: steps do not rise"),
        ("[5, 50, 100]", "[]", "rollout.yaml:14: steps: "),
        ("[5, 50, 100]", "[5, 101]", "rollout.yaml:14: steps[1]: "),
        ("x-preview", "authorization", "rollout.yaml:15: header: "),
        ("percent: 2", "percent: 0", "rollout.yaml:16: shadow.percent: "),
        ("percent: 2", "max_concurrent: 1000", "rollout.yaml:16: shadow.max_concurrent: "),
    ],
)
def test_an_invalid_rollout_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    third = "---\napiVersion: penstock/v1\nkind: Model\nname: llama-3.1-70b\n"
    assert old in TEXT
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle({**FILES, "rollout.yaml": TEXT.replace(old, new), "third.yaml": third.removeprefix("---\n")})
    assert error in str(raised.value)
