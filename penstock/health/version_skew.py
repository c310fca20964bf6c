"""Whether the endpoints of a pool serve what policy expects, and the same as their siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.health.engines.model_revision import comparable_parts, is_expected, same_spelling


class SkewAgainst(StrEnum):
    """What an endpoint differs from."""

    POLICY = "policy"
    """The revision is not the one that the model's policy expects."""
    SIBLINGS = "siblings"
    """The revision is not that of most endpoints of the pool; only for models without an expected revision."""
    ENGINE = "engine"
    """The version of the engine is not that of most endpoints of the pool with the same kind of engine."""


class Serving(NamedTuple):
    """What one endpoint reports about one model."""

    endpoint: str
    kind: str
    """Kind of the engine."""
    version: str
    """Version of the engine; empty if unknown."""
    revision: str
    """Revision of the model; empty if unknown."""


class Skew(NamedTuple):
    """How an endpoint differs."""

    against: SkewAgainst
    detail: str
    """For operators."""


def skews(pool: Sequence[Serving], expected: str | None) -> dict[str, Skew]:
    """Return the endpoints of a pool that differ, each with the gravest difference. What is unknown does not differ.

    Args:
        expected: pattern of the revision that policy expects; None if policy expects none.
    """
    found: dict[str, Skew] = {}
    for kind in sorted({each.kind for each in pool}):
        of_kind = {each.endpoint: each.version for each in pool if each.kind == kind and each.version}
        for endpoint, usual in odd_ones(of_kind):
            detail = f"runs {kind} {of_kind[endpoint]}, and its siblings {usual}"
            found[endpoint] = Skew(SkewAgainst.ENGINE, detail)
    revisions = {each.endpoint: each.revision for each in pool if each.revision}
    if expected is None:
        for endpoint, usual in odd_revisions(revisions):
            detail = f"serves {revisions[endpoint]}, and its siblings {usual}"
            found[endpoint] = Skew(SkewAgainst.SIBLINGS, detail)
        return found
    for endpoint, revision in revisions.items():
        if not is_expected(expected, revision):
            found[endpoint] = Skew(SkewAgainst.POLICY, f"serves {revision}, and policy expects {expected}")
    return found


def odd_revisions(revisions: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yields the names whose revision is not that of the majority, as `odd_ones`. Spelling makes no difference."""
    spelled = same_spelling(revisions.values())
    alike = {name: spelled[text] for name, text in revisions.items()}
    found: set[str] = set()
    for part in comparable_parts(alike):
        for name, usual in odd_ones(part):
            if name not in found:
                found.add(name)
                yield name, usual


def odd_ones(values: dict[str, str]) -> Iterable[tuple[str, str]]:
    """Yields the names whose value is not that of the majority, with the usual value; without one, all differ."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    usual, number = counts.most_common(1)[0]
    has_majority = 2 * number > len(values)
    for endpoint, value in values.items():
        if not has_majority:
            others = sorted(counts.keys() - {value})
            yield endpoint, " or ".join(others[:3])
        elif value != usual:
            yield endpoint, usual
