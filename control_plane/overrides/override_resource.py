"""Overrides as the API and commands show them: the fact, and what it does at this moment."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256

import msgspec

from penstock.overrides.overrides import Override


class OverridePhase(StrEnum):
    """Where an override is in its life."""

    HOLDS = "holds"
    RETURNING = "returning"
    """It has ended, and its region has not yet ramped back."""
    OVER = "over"


class OverrideStatus(msgspec.Struct, frozen=True):
    """One override now."""

    override: Override
    phase: OverridePhase
    weight: float
    """How much (0-1) of its part the region may have now; 1 for a freeze."""
    ends_in_s: float | None
    """Seconds until it ends by itself; null: it does not, or has ended."""
    by_policy: bool
    """A maintenance window of the policy: nobody can lift it here."""


class OverridePage(msgspec.Struct, frozen=True):
    """Some overrides."""

    items: tuple[OverrideStatus, ...]
    next_cursor: str | None
    """Give it as `cursor` to have the overrides after these; null: there are none."""


class LiftedOverrides(msgspec.Struct, frozen=True):
    """What was ended."""

    overrides: tuple[OverrideStatus, ...]


def override_status(override: Override, now: float, ramp_s: float, *, by_policy: bool = False) -> OverrideStatus:
    """An override at a moment.

    Args:
        now: Unix time, in seconds.
        ramp_s: the policy's failback ramp, in seconds.
    """
    if override.holds(now):
        phase = OverridePhase.HOLDS
    else:
        phase = OverridePhase.OVER if override.over(now, ramp_s) else OverridePhase.RETURNING
    ends = override.expires_at if phase is OverridePhase.HOLDS else None
    return OverrideStatus(
        override, phase, override.weight(now, ramp_s), None if ends is None else ends - now, by_policy
    )


def digest(override: Override) -> str:
    """Names the state of an override: its ETag."""
    return sha256(msgspec.json.encode(override, order="deterministic")).hexdigest()[:32]
