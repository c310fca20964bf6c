"""Patterns of adapter names in a bundle: every name that clients may request belongs to one model."""

from __future__ import annotations

import pytest

from control_plane.policy.compiler import compile_bundle
from penstock.policy.adapter_patterns import base_model_of
from tests.support.policy_bundle import BUNDLE, refused

MODELS = """\
apiVersion: penstock/v1
kind: Model
name: llama
adapters: {llama}
---
apiVersion: penstock/v1
kind: Model
name: qwen
adapters: {qwen}
"""


def bundle(llama: str, qwen: str = "[]") -> dict[str, str]:
    return BUNDLE | {"models.yaml": MODELS.format(llama=llama, qwen=qwen)}


def test_a_pattern_admits_adapters_without_documents() -> None:
    policy = compile_bundle(bundle("[llama-lora-*, sql]", "['qwen/*']"))
    names = ("llama-lora-sql", "sql", "qwen/a", "other", "llama")
    assert [base_model_of(policy, name) for name in names] == ["llama", "llama", "qwen", None, None]


@pytest.mark.parametrize(
    ("llama", "qwen", "error"),
    [
        ("['*']", "[]", "models.yaml:4: adapters[0]: matches llama, which has a document of its own"),
        ("[sql, 'qw*']", "[]", "models.yaml:4: adapters[1]: matches qwen, which has a document of its own"),
        ("[lora-*]", "['*-sql']", "models.yaml:9: adapters[0]: some names match this pattern and lora-* of llama"),
        ("[lora-*, lora-a*]", "[]", "models.yaml:4: adapters[1]: some names match this pattern and lora-* of llama"),
        ("[a b]", "[]", "models.yaml:4: adapters[0]: is not well-formed"),
    ],
)
def test_a_name_of_two_models_is_refused(llama: str, qwen: str, error: str) -> None:
    assert any(found.startswith(error) for found in refused(bundle(llama, qwen)))


def test_the_patterns_of_a_bundle_are_limited() -> None:
    def models(count: int) -> str:
        model = "apiVersion: penstock/v1\nkind: Model\nname: m{0}\nadapters: [{1}]\n"
        return "---\n".join(model.format(n, ", ".join(f"a-{n}-{index}" for index in range(50))) for n in range(count))

    assert len(compile_bundle(BUNDLE | {"models.yaml": models(40)}).adapter_patterns) == 2000
    assert refused(BUNDLE | {"models.yaml": models(41)}) == [
        "models.yaml:204: adapters: more than 2000 patterns in all models; use fewer, with wildcards"
    ]
