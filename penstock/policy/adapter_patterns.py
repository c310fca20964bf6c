"""Adapters: names that a base model's document admits by patterns, such as those of LoRA adapters.

A request for an adapter is handled as a request for its base model, except that only endpoints that have loaded the
adapter serve the request. Names of adapters come from clients, so no state is kept by name.
"""

from __future__ import annotations

from itertools import product

from penstock.policy.policy import Policy

ANY = "*"
"""Wildcard of a pattern: any number of characters, including none."""


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern. Takes time in proportion to the length of the name."""
    first, *rest = pattern.split(ANY)
    if not rest:
        return name == pattern
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def overlap(pattern: str, other: str) -> bool:
    """Whether some name matches both patterns."""
    if not _may_begin_alike(pattern, other) or not _may_begin_alike(pattern[::-1], other[::-1]):
        return False
    rows, columns = len(pattern), len(other)
    common = {(rows, columns)}
    """Pairs of positions at which the remainders of both patterns have a common name."""
    for row, column in product(range(rows, -1, -1), range(columns, -1, -1)):
        own = pattern[row] if row < rows else ""
        its = other[column] if column < columns else ""
        if (
            (own == ANY and ((row + 1, column) in common or (its and (row, column + 1) in common)))
            or (its == ANY and ((row, column + 1) in common or (own and (row + 1, column) in common)))
            or (own and own == its and (row + 1, column + 1) in common)
        ):
            common.add((row, column))
    return (0, 0) in common


def base_model_of(policy: Policy, name: str) -> str | None:
    """The model whose document admits an adapter of this name; None if no document does."""
    for pattern, model in policy.adapter_patterns:
        if matches(pattern, name):
            return model
    return None


def served_model(policy: Policy, name: str) -> str:
    """The model that a request for a name is planned as: the base model of an adapter, or the name itself."""
    if name in policy.models or name in policy.versions:
        return name
    return base_model_of(policy, name) or name


def _may_begin_alike(pattern: str, other: str) -> bool:
    first, second = pattern.partition(ANY)[0], other.partition(ANY)[0]
    return first.startswith(second) or second.startswith(first)
