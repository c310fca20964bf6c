"""Overrides as the API and the CLI show them: the stored override, and its current effect."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256

import msgspec

from penstock.overrides.overrides import Override


class OverrideState(StrEnum):
    """State of an override."""

    ACTIVE = "active"
    RETURNING = "returning"
    """The override has ended, and its region is still on the failback ramp."""
    ENDED = "ended"


class OverrideStatus(msgspec.Struct, frozen=True):
    """One override and its current effect."""

    override: Override
    state: OverrideState
    weight: float
    """Factor (0-1) of the region's share now; 1 for a freeze."""
    ends_in_s: float | None
    """Time (s) until the override expires; null if it does not expire or has ended."""
    by_policy: bool
    """Whether the override is a maintenance window of the policy, which the API cannot lift."""


class LiftedOverrides(msgspec.Struct, frozen=True):
    """The overrides that were lifted."""

    overrides: tuple[OverrideStatus, ...]


def override_status(override: Override, now: float, ramp_s: float, *, by_policy: bool = False) -> OverrideStatus:
    """Return an override's status.

    Args:
        now: Unix time, in seconds.
        ramp_s: the policy's failback ramp, in seconds.
    """
    if override.holds(now):
        state = OverrideState.ACTIVE
    else:
        state = OverrideState.ENDED if override.over(now, ramp_s) else OverrideState.RETURNING
    ends = override.expires_at if state is OverrideState.ACTIVE else None
    return OverrideStatus(
        override, state, override.weight(now, ramp_s), None if ends is None else ends - now, by_policy
    )


def digest(override: Override) -> str:
    """Return the ETag of an override's state."""
    return sha256(msgspec.json.encode(override, order="deterministic")).hexdigest()[:32]
