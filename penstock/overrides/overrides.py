"""Temporary instructions of operators that take precedence over the plan: drain, fail over, weight, freeze, and drains
of single endpoints.

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
"""Maximum number of stored overrides, including ended overrides that still ramp: more than a fleet needs, and few
enough for one value of the store."""

OUTLASTS_S = 60.0
"""An override that ends less than this time (s) after another override with the same effect is a duplicate."""

SAME_DURATION_S = 0.001
"""Durations that differ by less (s) are equal: they are differences of Unix times."""

MAX_REASON = 500
"""Maximum length of a reason, in characters."""


class OverrideKind(StrEnum):
    """Kind of an override."""

    DRAIN = "drain"
    """The region receives no new traffic. Shares leave it at the rate at which plans may change."""
    FAIL_OVER = "fail_over"
    """As a drain, but shares leave the region at once, as if the region had failed."""
    WEIGHT = "weight"
    """The region gets at most `value` of its capacity and of any class's traffic, while others can serve the rest."""
    FREEZE = "freeze"
    """Shares in force stay, except for emergencies, residency and other overrides."""
    DRAIN_ENDPOINT = "drain_endpoint"
    """One endpoint of the region receives no new requests; its running requests complete."""


WITHOUT_WEIGHT = frozenset({OverrideKind.FREEZE, OverrideKind.DRAIN_ENDPOINT})
"""The kinds that limit no region's share."""

WITHDRAWS = frozenset({OverrideKind.DRAIN, OverrideKind.FAIL_OVER})
"""The kinds that empty a region."""


class Override(msgspec.Struct, frozen=True):
    """One temporary instruction of an operator, or of a maintenance window of the policy."""

    id: str
    kind: OverrideKind
    reason: str
    """Reason of the override, for operators."""
    author: str
    """Name of the operator; for a maintenance window, the policy's file and line."""
    begins_at: float
    """Unix time (s) at which the override takes effect."""
    region: str | None = None
    """The serving region that the override applies to; None for a freeze, which applies to plans."""
    model: str | None = None
    """Model whose traffic the override is limited to; None for every model."""
    origin: str | None = None
    """Origin region whose traffic the override is limited to; None for every origin."""
    value: float | None = None
    """Weight (0 to below 1) of an override of kind `weight`; None for other kinds."""
    last_resort: bool = True
    """Whether an emptied region keeps serving demand that no other permitted region can serve."""
    expires_at: float | None = None
    """Unix time (s) at which the override ends; None for no end until the override is lifted."""
    lifted_at: float | None = None
    """Unix time (s) at which an operator lifted the override; None if it has not been lifted."""
    lifted_by: str = ""
    endpoint: str | None = None
    """Name of the endpoint of the region that is drained; None for other kinds."""
    last_of: tuple[str, ...] = ()
    """Models for which the endpoint was the last one of the region that accepted requests when the drain was set."""

    @property
    def ends_at(self) -> float:
        """Unix time (s) at which the override ends; infinite without an end."""
        return min(inf if at is None else at for at in (self.expires_at, self.lifted_at))

    def holds(self, now: float) -> bool:
        """Whether the override is in force at `now` (Unix time, s).

        `begins_at` does not count: every override is created when it begins. A leader whose clock is behind that of the
        control plane that created a drain must not lift the drain.
        """
        return now < self.ends_at

    def over(self, now: float, ramp_s: float) -> bool:
        """Whether the override has no effect any more: its failback ramp is over, or it ended before it began.

        Args:
            ramp_s: the policy's failback ramp, in seconds.
        """
        return now >= self.ends_at + ramp_s or self.ends_at <= self.begins_at

    def weight(self, now: float, ramp_s: float) -> float:
        """Returns the share (0-1) that the region may use: `value` (0 for a drain or failover) while in force, then
        growing to 1 over the ramp."""
        if self.kind in WITHOUT_WEIGHT or self.over(now, ramp_s):
            return 1.0
        least = self.value if self.kind is OverrideKind.WEIGHT and self.value is not None else 0.0
        if self.holds(now):
            return least
        return least + (1.0 - least) * (now - self.ends_at) / ramp_s

    def set_by(self, wanted: Override) -> bool:
        """Whether the request for `wanted` is the one that set this override, repeated; times count from a request."""
        own, other = (
            msgspec.structs.replace(each, begins_at=0.0, expires_at=None, lifted_at=None, lifted_by="", last_of=())
            for each in (self, wanted)
        )
        if own != other or (self.expires_at is None) is not (wanted.expires_at is None):
            return False
        own_s, other_s = ((each.expires_at or 0.0) - each.begins_at for each in (self, wanted))
        return self.expires_at is None or abs(own_s - other_s) < SAME_DURATION_S

    def concerns(self, origin: str | None, model: str) -> bool:
        """Whether the override applies to an origin's demand for a model; origin None stands for origins that no
        override names."""
        return self.origin in (None, origin) and self.model in (None, model)


class OverrideSet(msgspec.Struct, frozen=True):
    """Every override that was set and still has an effect, as one value, so that concurrent writers always conflict."""

    overrides: tuple[Override, ...] = ()

    def find(self, override_id: str) -> Override | None:
        """Returns the override with this id; None if the set has no such override."""
        return next((override for override in self.overrides if override.id == override_id), None)

    def holding(self, now: float) -> tuple[Override, ...]:
        """Returns the overrides in force now or later."""
        return tuple(override for override in self.overrides if now < override.ends_at)

    def replaced(self, override: Override) -> OverrideSet:
        """Returns the set with `override` in place of the override with the same id, or appended."""
        if self.find(override.id) is None:
            return OverrideSet((*self.overrides, override))
        return OverrideSet(tuple(override if old.id == override.id else old for old in self.overrides))

    def without_ended(self, now: float, ramp_s: float) -> OverrideSet:
        """Returns the set without overrides that have no effect any more."""
        return OverrideSet(tuple(override for override in self.overrides if not override.over(now, ramp_s)))


def lifted(override: Override, by: str, now: float) -> Override:
    """Returns the override with its end set to `now`."""
    return msgspec.structs.replace(override, lifted_at=now, lifted_by=by)


def described(override: Override) -> str:
    """Returns the kind, id, region, endpoint and weight of an override as text."""
    name = f"{override.kind.value.replace('_', ' ')} {override.id}"
    if override.region is not None:
        name += f" of {override.region}"
    if override.endpoint is not None:
        name += f"/{override.endpoint}"
    return name if override.value is None else f"{name} to {override.value:g}"


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
    if (override.kind is OverrideKind.DRAIN_ENDPOINT) != (override.endpoint is not None):
        return "endpoint: required for a drain_endpoint, and not allowed for other kinds"
    if override.endpoint is not None and (override.model, override.origin) != (None, None):
        return "model, origin: a drained endpoint receives no request of any model and origin; leave them out"
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
    """Returns an override that has at least the effect of `wanted`, on the same traffic and for at least as long; None
    if there is no such override."""
    aim = (wanted.kind, wanted.region, wanted.model, wanted.origin, wanted.endpoint)
    for override in overrides:
        as_long = override.ends_at == inf or wanted.ends_at < override.ends_at + OUTLASTS_S
        as_much = (override.value or 0.0) <= (wanted.value or 0.0) and override.last_resort <= wanted.last_resort
        same = (override.kind, override.region, override.model, override.origin, override.endpoint) == aim
        if now < override.ends_at and as_long and as_much and same:
            return override
    return None
