"""Whether an override may be set: one rule for the change itself and for every preview of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from penstock.overrides.guard_rails import Objection, objection
from penstock.overrides.maintenance import windows
from penstock.overrides.overrides import MAX_OVERRIDES, Override, described, duplicate_of, validation_error
from penstock.policy.policy import Policy

NO_REPORTS = "regions have not reported to this control plane yet, so guard rails cannot be checked; try again"
"""The reason to set no override while the fleet's capacity is unknown."""


class RejectedBy(StrEnum):
    """The rule that rejects an override."""

    INVALID = "invalid"
    """A field is invalid under the policy."""
    IDENTIFIER = "identifier"
    """Another override has the identifier."""
    DUPLICATE = "duplicate"
    """An override or maintenance window in force has the same effect for as long."""
    TOO_MANY = "too_many"
    """MAX_OVERRIDES overrides are set."""
    GUARD_RAIL = "guard_rail"
    """The override would empty a residency class or withdraw too much capacity; an admin may force it."""


class OverrideRejection(msgspec.Struct, frozen=True):
    """The reason for which an override is not set."""

    by: RejectedBy
    detail: str
    """The reason as text, for operators."""
    objection: Objection | None = None
    """Of a guard rail."""
    standing: Override | None = None
    """The override that has the same effect."""


def rejection(
    policy: Policy,
    overrides: Iterable[Override],
    wanted: Override,
    capacity: Mapping[tuple[str, str], float],
    now: float,
) -> OverrideRejection | None:
    """Returns the reason to reject an override; None if it may be set.

    Args:
        overrides: the overrides already set that still have an effect.
        capacity: see `objection`.
        now: Unix time, in seconds.
    """
    if (wrong := validation_error(wanted, policy)) is not None:
        return OverrideRejection(RejectedBy.INVALID, wrong)
    existing = tuple(overrides)
    if any(override.id == wanted.id for override in existing):
        return OverrideRejection(
            RejectedBy.IDENTIFIER, f"another override has the identifier {wanted.id}; choose another one"
        )
    standing = duplicate_of((*existing, *windows(policy, now)), wanted, now)
    if standing is not None:
        detail = f"{described(standing)} does this already, set by {standing.author}"
        return OverrideRejection(RejectedBy.DUPLICATE, detail, standing=standing)
    if len(existing) >= MAX_OVERRIDES:
        return OverrideRejection(
            RejectedBy.TOO_MANY, f"{MAX_OVERRIDES} overrides are set, and no more are kept: lift some"
        )
    against = objection(policy, existing, wanted, capacity, now)
    return None if against is None else OverrideRejection(RejectedBy.GUARD_RAIL, against.detail, against)
