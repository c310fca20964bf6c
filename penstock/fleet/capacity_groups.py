"""Capacity groups: endpoints of one region that serve the same models, whose slots those models share.

The groups of a region are a partition of its endpoints, so a slot belongs to exactly one group. A pool is the union of
the groups that serve its model; pools overlap, groups do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.fleet.report import GroupReport, PoolReport

MAX_GROUPS = 64
"""Maximum number of capacity groups of several models in a report."""


class SharedSlots(msgspec.Struct, frozen=True):
    """Slots of a capacity group of several models that a plan may use."""

    models: tuple[str, ...]
    """At least two models, sorted by name; the key of the group within its region."""
    slots: float
    """Concurrent requests of all models together."""


def group_reports(groups: Iterable[GroupReport]) -> tuple[GroupReport, ...]:
    """Returns at most MAX_GROUPS capacity groups with distinct sets of models, sorted by their models.

    Beyond that number the smallest groups are merged. A merged group names all their models, so its slots are still
    counted once.
    """
    ordered = sorted(groups, key=lambda group: (-group.slots, group.models))
    while len(ordered) > MAX_GROUPS:
        last = ordered.pop()
        merged = _merged(ordered.pop(), last)
        same = [group for group in ordered if group.models == merged.models]
        ordered = [group for group in ordered if group.models != merged.models]
        ordered.append(_merged(same[0], merged) if same else merged)
    return tuple(sorted(ordered, key=lambda group: group.models))


def are_groups_of(groups: Sequence[GroupReport], pools: Iterable[PoolReport]) -> bool:
    """Whether the groups of a report are well-formed: at most MAX_GROUPS distinct, sorted sets of several models, each
    of which has a pool."""
    known = {pool.model for pool in pools}
    return (
        len(groups) <= MAX_GROUPS
        and len({group.models for group in groups}) == len(groups)
        and all(
            len(group.models) > 1
            and group.models == tuple(sorted(known.intersection(group.models)))
            and group.ready <= group.endpoints
            for group in groups
        )
    )


def coupled_models(groups: Iterable[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns, for each model that shares slots, all models whose capacities depend on one another, itself included.

    The models are sorted by name.

    Args:
        groups: the models of each capacity group of several models.
    """
    sets: dict[str, set[str]] = {}
    for models in groups:
        joined = set(models).union(*(sets[model] for model in models if model in sets))
        for model in joined:
            sets[model] = joined
    ordered = {id(joined): tuple(sorted(joined)) for joined in sets.values()}
    return {model: ordered[id(joined)] for model, joined in sets.items()}


def _merged(first: GroupReport, second: GroupReport) -> GroupReport:
    return GroupReport(
        tuple(sorted({*first.models, *second.models})),
        first.endpoints + second.endpoints,
        first.ready + second.ready,
        first.slots + second.slots,
        first.in_flight + second.in_flight,
    )
