"""Patterns of adapter names: which names match, and when two patterns overlap."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.adapter_patterns import base_model_of, matches, overlap, served_model
from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy

POLICY = Policy(
    regions={},
    models={"llama": Model("llama", adapters=("llama-*", "sql")), "qwen": Model("qwen", adapters=("qwen-*-lora",))},
    tenants={},
    residency=(),
)
patterns = st.text("ab*", min_size=1, max_size=5)
NAMES = ["".join(letters) for length in range(7) for letters in product("ab", repeat=length)]


@given(patterns, st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatchcase(name, pattern)


def test_the_parts_of_a_pattern_share_no_characters() -> None:
    assert matches("*ab*ab*", "ab-ab")
    assert not matches("*ab*ab*", "ab")
    assert not matches("ab*ab", "ab")


@given(patterns, patterns)
def test_two_patterns_overlap_where_some_name_matches_both(pattern: str, other: str) -> None:
    overlaps = overlap(pattern, other)
    assert overlaps == overlap(other, pattern)
    # Two patterns of five characters have a name in common of at most eight characters, stars being empty or one run.
    longer = any(matches(pattern, name) and matches(other, name) for name in NAMES)
    assert overlaps or not longer
    if overlaps and len(pattern) + len(other) <= 6:
        assert longer


def test_patterns_whose_ends_differ_do_not_overlap() -> None:
    assert overlap("llama-*-sql", "llama-*-x-sql")
    assert not overlap("llama-*-sqla", "llama-*-sqlb")
    assert not overlap("llama-*-axb", "llama-*-cxb")
    assert not overlap("ab*", "aa*")
    assert overlap("ab*", "a*c*")
    assert not overlap("ab*", "c*b*")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("llama-sql", "llama"),
        ("sql", "llama"),
        ("sqlx", None),
        ("qwen-a-lora", "qwen"),
        ("qwen-lora", None),
        ("llama", None),
    ],
)
def test_an_adapter_has_one_base_model(name: str, base: str | None) -> None:
    assert base_model_of(POLICY, name) == base
    assert served_model(POLICY, name) == (base or name)
