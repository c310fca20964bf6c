"""Adapters: names that a base model's document accepts by patterns, such as those of LoRA adapters.

A request for an adapter is handled as a request for its base model, except that only endpoints that have loaded the
adapter serve the request. Names of adapters come from clients, so no state is kept by name.
"""

from __future__ import annotations

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
    if ANY not in other:
        return matches(pattern, other)
    if ANY not in pattern:
        return matches(other, pattern)
    # A name with the longer start, then the parts between the wildcards of either, then the longer end matches both.
    return _may_begin_alike(pattern, other) and _may_begin_alike(pattern[::-1], other[::-1])


def base_model_of(policy: Policy, name: str) -> str | None:
    """The model whose document accepts an adapter of this name; None if no document does."""
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
