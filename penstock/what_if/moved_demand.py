"""Compares two evaluations of one demand: which requests change region when one policy replaces another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.what_if.demand_outcomes import DemandGroup, DemandOutcome, Evaluation

MIN_SHARE = 0.001
"""Moves of a smaller share (0-1) of a group of requests are omitted."""


class Move(msgspec.Struct, frozen=True):
    """A share of a group of requests whose serving region or rejection reason changes."""

    origin: str
    tenant: str
    model: str
    countries: tuple[str, ...]
    """Countries of the clients; a question mark stands for an unknown country."""
    residency_before: str
    """Name of the residency class; empty if the requests are rejected before one is assigned."""
    residency_after: str
    source: str
    """Region that served the requests before; or `refused:` and the reason."""
    target: str
    """Region that serves the requests after the change, in the format of `source`."""
    share: float
    """Share (0-1) of the group."""
    requests_per_s: float


def moves(demand: Sequence[DemandGroup], before: Evaluation, after: Evaluation) -> list[Move]:
    """Moves by descending rate. Requests that differ only in the client's country are one move."""
    rates: dict[_MoveKey, float] = defaultdict(float)
    totals: dict[_MoveKey, float] = defaultdict(float)
    countries: dict[_MoveKey, set[str]] = defaultdict(set)
    for group, old, new in zip(demand, before.demand_outcomes, after.demand_outcomes, strict=True):
        for source, target, share in _flows(_places(old), _places(new)):
            key = _MoveKey(group.origin, group.tenant, group.model, old.residency, new.residency, source, target)
            rates[key] += share * group.requests_per_s
            totals[key] += group.requests_per_s
            countries[key].add(group.country or "?")
    found = [
        Move(
            origin=key.origin,
            tenant=key.tenant,
            model=key.model,
            countries=tuple(sorted(countries[key])),
            residency_before=key.residency_before,
            residency_after=key.residency_after,
            source=key.source,
            target=key.target,
            share=rate / totals[key],
            requests_per_s=rate,
        )
        for key, rate in rates.items()
        if rate >= MIN_SHARE * totals[key] > 0.0
    ]
    return sorted(found, key=lambda move: (-move.requests_per_s, move.origin, move.tenant, move.model, move.target))


class _MoveKey(NamedTuple):
    """The attributes that requests of one `Move` share."""

    origin: str
    tenant: str
    model: str
    residency_before: str
    residency_after: str
    source: str
    target: str


def _places(demand_outcome: DemandOutcome) -> dict[str, float]:
    return {
        **demand_outcome.servers,
        **{f"refused: {reason}": share for reason, share in demand_outcome.refused.items()},
    }


def _flows(old: dict[str, float], new: dict[str, float]) -> list[tuple[str, str, float]]:
    """Flows as (from, to, share). Lost shares are distributed over the gaining regions in proportion to their gains."""
    less = {name: share - new.get(name, 0.0) for name, share in old.items() if share > new.get(name, 0.0)}
    more = {name: share - old.get(name, 0.0) for name, share in new.items() if share > old.get(name, 0.0)}
    whole = sum(more.values())
    return [(a, b, gone * come / whole) for a, gone in less.items() for b, come in more.items()] if whole else []
