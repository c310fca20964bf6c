"""Whether the last awake endpoint of a model in a region may be the last that some requests may use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, mask
from penstock.verification.situations import situations

Scopes = frozenset[frozenset[str]]
"""The sets of regions that requests may use, of which residency permits each set to some requests."""


class CopyView(NamedTuple):
    """What decides whether a region may let its last awake endpoint of a model sleep."""

    region: str
    ready_elsewhere: frozenset[str]
    """The other regions that have a ready endpoint of the model."""
    scopes: Scopes
    """The permitted regions of all requests that the region may process."""


def scopes_of(policy: Policy, region: str) -> Scopes:
    """Return the permitted regions of all requests that may be processed in a region."""
    if not policy.residency:
        return frozenset({frozenset(policy.regions)})
    masks = (mask(policy, situation.facts) for situation in situations(policy))
    scopes = (each.permitted.regions for each in masks if isinstance(each, Mask))
    return frozenset(scope for scope in scopes if region in scope)


def may_be_last(view: CopyView) -> bool:
    """Whether the last awake endpoint of a region must stay awake, because it may be the last that requests may use.

    Of the permitted regions with a ready endpoint, the first by name keeps its own. So two regions that see each other
    never both let their last endpoint sleep, however old their views are.
    """
    return any(_is_first(view.region, view.ready_elsewhere & scope) for scope in view.scopes)


def _is_first(region: str, others: Iterable[str]) -> bool:
    return all(other > region for other in others)
