"""What operators want for a while, whatever the plan would do: drain, fail over, weigh, freeze.

An override is a fact. What it does at a moment follows from the fact and the moment alone, so every control plane says
the same of it, a new leader has nothing to remember, and one that has ended still grants its region the failback ramp.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import inf

import msgspec

from penstock.policy.policy import Policy

MAX_OVERRIDES = 200
"""As many are kept at once, ended ones that still ramp included: more than a fleet needs, few enough for one value of
the store."""

OUTLASTS_S = 60.0
"""One that ends less than this (s) after another of the same aim adds nothing to it: it is the same, sent twice."""

MAX_REASON = 500
"""Characters of a reason."""


class OverrideKind(StrEnum):
    """What an override does."""

    DRAIN = "drain"
    """The region takes no new traffic. Its shares leave it at the rate at which plans may move."""
    FAIL_OVER = "fail_over"
    """As a drain, but at once, as if the region were lost."""
    WEIGHT = "weight"
    """The region has at most `value` of its capacity and of any class's traffic, while others can serve the rest."""
    FREEZE = "freeze"
    """Shares in force stay, but for emergencies, residency and other overrides."""


WITHDRAWS = frozenset({OverrideKind.DRAIN, OverrideKind.FAIL_OVER})
"""The kinds that empty a region."""


class Override(msgspec.Struct, frozen=True):
    """One thing that an operator, or a maintenance window of the policy, wants for a while."""

    id: str
    kind: OverrideKind
    reason: str
    """For people: why."""
    author: str
    """Who wanted it: the name of a caller, or the policy's file and line for a maintenance window."""
    begins_at: float
    """Unix time (s) from which it holds."""
    region: str | None = None
    """The serving region that it is about; None for a freeze, which is about plans."""
    model: str | None = None
    """Only this model's traffic; None is every model."""
    origin: str | None = None
    """Only what lands on this region; None is every origin."""
    value: float | None = None
    """Of a weight: 0-1. None for the others."""
    last_resort: bool = True
    """Whether an emptied region goes on serving what no other permitted region can serve."""
    expires_at: float | None = None
    """Unix time (s) at which it ends by itself; None holds until it is lifted."""
    lifted_at: float | None = None
    """Unix time (s) at which somebody ended it."""
    lifted_by: str = ""

    @property
    def ends_at(self) -> float:
        """Unix time (s) from which it no longer holds; infinite where nothing says when."""
        return min(inf if one is None else one for one in (self.expires_at, self.lifted_at))

    def holds(self, now: float) -> bool:
        """Whether it is in force."""
        return self.begins_at <= now < self.ends_at

    def over(self, now: float, ramp_s: float) -> bool:
        """Whether it has ended so long ago that nothing follows from it any more.

        Args:
            ramp_s: the policy's failback ramp, in seconds.
        """
        return now >= self.ends_at + ramp_s or self.ends_at <= self.begins_at

    def weight(self, now: float, ramp_s: float) -> float:
        """How much (0-1) of its part the region may have: its value while it holds, then up to whole over the ramp."""
        if self.kind is OverrideKind.FREEZE or now < self.begins_at or self.over(now, ramp_s):
            return 1.0
        least = self.value if self.kind is OverrideKind.WEIGHT and self.value is not None else 0.0
        if self.holds(now):
            return least
        return least + (1.0 - least) * (now - self.ends_at) / ramp_s

    def concerns(self, origin: str | None, model: str) -> bool:
        """Whether it is about an origin's demand for a model; the origin None stands for those that nothing names."""
        return self.origin in (None, origin) and self.model in (None, model)


class OverrideSet(msgspec.Struct, frozen=True):
    """Every override that somebody set and that still matters, as one value, so that two writers never miss each
    other."""

    overrides: tuple[Override, ...] = ()

    def find(self, override_id: str) -> Override | None:
        """The one with an id."""
        return next((one for one in self.overrides if one.id == override_id), None)

    def holding(self, now: float) -> tuple[Override, ...]:
        """Those that hold, or will."""
        return tuple(one for one in self.overrides if now < one.ends_at)

    def replaced(self, override: Override) -> OverrideSet:
        """With `override` in the place of the one that has its id, or at the end."""
        if self.find(override.id) is None:
            return OverrideSet((*self.overrides, override))
        return OverrideSet(tuple(override if one.id == override.id else one for one in self.overrides))

    def without_ended(self, now: float, ramp_s: float) -> OverrideSet:
        """Without those from which nothing follows any more."""
        return OverrideSet(tuple(one for one in self.overrides if not one.over(now, ramp_s)))


def lifted(override: Override, by: str, now: float) -> Override:
    """The override, ended now."""
    return msgspec.structs.replace(override, lifted_at=now, lifted_by=by)


def flaw(override: Override, policy: Policy) -> str | None:
    """What is wrong with an override that somebody wants to set under `policy`; None where nothing is."""
    named = (("region", override.region, policy.regions), ("origin", override.origin, policy.regions))
    for field, name, known in (*named, ("model", override.model, policy.models)):
        if name is not None and name not in known:
            return f"{field}: the policy has no {'model' if field == 'model' else 'region'} {name}"
    if override.kind is OverrideKind.FREEZE:
        if override.region is not None:
            return "region: a freeze is about plans; name the origin whose plan shall stay, or none for all"
    elif override.region is None:
        return f"region: a {override.kind.value} needs one"
    if (override.kind is OverrideKind.WEIGHT) != (override.value is not None):
        return "value: a weight needs one, and nothing else has one"
    if override.value is not None and not 0.0 <= override.value < 1.0:
        return "value: not from 0 to below 1; to give a region all of its part again, lift its overrides"
    if not override.reason.strip() or len(override.reason) > MAX_REASON:
        return f"reason: say why, in 1 to {MAX_REASON} characters"
    if override.ends_at <= override.begins_at:
        return "expires_at: is not after it begins"
    return None


def same_aim(overrides: Iterable[Override], wanted: Override, now: float) -> Override | None:
    """One that does to the same traffic what `wanted` would do, or more, and does so for as long; one may outlast
    another."""
    aim = (wanted.kind, wanted.region, wanted.model, wanted.origin)
    for one in overrides:
        as_long = one.ends_at == inf or wanted.ends_at < one.ends_at + OUTLASTS_S
        as_much = (one.value or 0.0) <= (wanted.value or 0.0) and one.last_resort <= wanted.last_resort
        if now < one.ends_at and as_long and as_much and (one.kind, one.region, one.model, one.origin) == aim:
            return one
    return None
