"""Temporary instructions of operators that take precedence over the plan: drain, fail over, weight, freeze.

An override is immutable data. Its effect at a moment follows from the data and the time alone, so every control plane
computes the same effect, a new leader needs no other state, and an override that ended still grants its failback ramp.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import inf

import msgspec

from penstock.policy.policy import Policy

MAX_OVERRIDES = 200
"""Overrides kept at once, including ended ones that still ramp: more than a fleet needs, and few enough for one value
of the store."""

OUTLASTS_S = 60.0
"""An override that ends less than this (s) after another with the same effect is a duplicate of it."""

MAX_REASON = 500
"""Maximum length of a reason, in characters."""


class OverrideKind(StrEnum):
    """Kind of an override."""

    DRAIN = "drain"
    """The region receives no new traffic. Shares leave it at the rate at which plans may change."""
    FAIL_OVER = "fail_over"
    """As a drain, but at once, as if the region had failed."""
    WEIGHT = "weight"
    """The region gets at most `value` of its capacity and of any class's traffic, while others can serve the rest."""
    FREEZE = "freeze"
    """Shares in force stay, except for emergencies, residency and other overrides."""


WITHDRAWS = frozenset({OverrideKind.DRAIN, OverrideKind.FAIL_OVER})
"""The kinds that empty a region."""


class Override(msgspec.Struct, frozen=True):
    """One temporary instruction of an operator, or of a maintenance window of the policy."""

    id: str
    kind: OverrideKind
    reason: str
    """Why, for operators."""
    author: str
    """Name of the operator; for a maintenance window, the policy's file and line."""
    begins_at: float
    """Unix time (s) at which it takes effect."""
    region: str | None = None
    """The serving region that it applies to; None for a freeze, which applies to plans."""
    model: str | None = None
    """Limits it to this model's traffic; None for every model."""
    origin: str | None = None
    """Limits it to traffic of this origin; None for every origin."""
    value: float | None = None
    """0-1, for a weight; None for other kinds."""
    last_resort: bool = True
    """Whether an emptied region keeps serving what no other permitted region can serve."""
    expires_at: float | None = None
    """Unix time (s) at which it ends; None to hold until it is lifted."""
    lifted_at: float | None = None
    """Unix time (s) at which an operator lifted it."""
    lifted_by: str = ""

    @property
    def ends_at(self) -> float:
        """Unix time (s) at which it ends; infinite without an end."""
        return min(inf if at is None else at for at in (self.expires_at, self.lifted_at))

    def holds(self, now: float) -> bool:
        """Whether it is in force."""
        return self.begins_at <= now < self.ends_at

    def over(self, now: float, ramp_s: float) -> bool:
        """Whether it ended so long ago that it has no effect any more.

        Args:
            ramp_s: the policy's failback ramp, in seconds.
        """
        return now >= self.ends_at + ramp_s or self.ends_at <= self.begins_at

    def weight(self, now: float, ramp_s: float) -> float:
        """Returns the share (0-1) the region may use: `value` while in force, then growing to 1 over the ramp."""
        if self.kind is OverrideKind.FREEZE or now < self.begins_at or self.over(now, ramp_s):
            return 1.0
        least = self.value if self.kind is OverrideKind.WEIGHT and self.value is not None else 0.0
        if self.holds(now):
            return least
        return least + (1.0 - least) * (now - self.ends_at) / ramp_s

    def concerns(self, origin: str | None, model: str) -> bool:
        """Whether it applies to an origin's demand for a model; origin None stands for origins that no override
        names."""
        return self.origin in (None, origin) and self.model in (None, model)


class OverrideSet(msgspec.Struct, frozen=True):
    """Every override that was set and still has an effect, as one value, so that concurrent writers always conflict."""

    overrides: tuple[Override, ...] = ()

    def find(self, override_id: str) -> Override | None:
        """Returns the override with this id."""
        return next((override for override in self.overrides if override.id == override_id), None)

    def holding(self, now: float) -> tuple[Override, ...]:
        """Returns the overrides in force now or later."""
        return tuple(override for override in self.overrides if now < override.ends_at)

    def replaced(self, override: Override) -> OverrideSet:
        """Returns the set with `override` in place of the one with its id, or appended."""
        if self.find(override.id) is None:
            return OverrideSet((*self.overrides, override))
        return OverrideSet(tuple(override if old.id == override.id else old for old in self.overrides))

    def without_ended(self, now: float, ramp_s: float) -> OverrideSet:
        """Returns the set without overrides that have no effect any more."""
        return OverrideSet(tuple(override for override in self.overrides if not override.over(now, ramp_s)))


def lifted(override: Override, by: str, now: float) -> Override:
    """Returns the override with its end set to `now`."""
    return msgspec.structs.replace(override, lifted_at=now, lifted_by=by)


def validation_error(override: Override, policy: Policy) -> str | None:
    """Returns why an override is invalid under `policy`; None if it is valid."""
    named = (("region", override.region, policy.regions), ("origin", override.origin, policy.regions))
    for field, name, known in (*named, ("model", override.model, policy.models)):
        if name is not None and name not in known:
            return f"{field}: the policy has no {'model' if field == 'model' else 'region'} {name}"
    if override.kind is OverrideKind.FREEZE:
        if override.region is not None:
            return "region: a freeze applies to plans; name the origin whose plan is to stay, or none for all origins"
    elif override.region is None:
        return f"region: required for a {override.kind.value}"
    if (override.kind is OverrideKind.WEIGHT) != (override.value is not None):
        return "value: required for a weight, and not allowed for other kinds"
    if override.value is not None and not 0.0 <= override.value < 1.0:
        return "value: not from 0 to below 1; to restore a region's full share, lift its overrides"
    if not override.reason.strip() or len(override.reason) > MAX_REASON:
        return f"reason: required, 1 to {MAX_REASON} characters"
    if override.ends_at <= override.begins_at:
        return "expires_at: not after the beginning"
    return None


def duplicate_of(overrides: Iterable[Override], wanted: Override, now: float) -> Override | None:
    """Returns an override that already has the effect of `wanted` on the same traffic, or more, for at least as
    long."""
    aim = (wanted.kind, wanted.region, wanted.model, wanted.origin)
    for override in overrides:
        as_long = override.ends_at == inf or wanted.ends_at < override.ends_at + OUTLASTS_S
        as_much = (override.value or 0.0) <= (wanted.value or 0.0) and override.last_resort <= wanted.last_resort
        same = (override.kind, override.region, override.model, override.origin) == aim
        if now < override.ends_at and as_long and as_much and same:
            return override
    return None
