"""Builders of overrides for tests."""

from __future__ import annotations

from typing import Any

from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override, OverrideKind

RAMP_S = 10.0


def override(kind: OverrideKind, region: str | None = None, **fields: Any) -> Override:
    """An override from time 0 on, without an end."""
    given = {"id": f"{kind.value}-{region}", "reason": "a test", "author": "tests", "begins_at": 0.0} | fields
    return Override(kind=kind, region=region, **given)


def drain(region: str, **fields: Any) -> Override:
    """A drain from time 0 on."""
    return override(OverrideKind.DRAIN, region, **fields)


def fail_over(region: str, **fields: Any) -> Override:
    """A fail-over from time 0 on."""
    return override(OverrideKind.FAIL_OVER, region, **fields)


def weight(region: str, value: float, **fields: Any) -> Override:
    """A weight from time 0 on."""
    return override(OverrideKind.WEIGHT, region, value=value, **fields)


def freeze(**fields: Any) -> Override:
    """A freeze from time 0 on."""
    return override(OverrideKind.FREEZE, **fields)


def interventions(*overrides: Override, now: float = 0.0, ramp_s: float = RAMP_S) -> Interventions:
    """The interventions of overrides at time `now`."""
    return Interventions(overrides, ramp_s, now)


def drain_endpoint(region: str, endpoint: str, **fields: Any) -> Override:
    """A drain of one endpoint from time 0 on."""
    return override(OverrideKind.DRAIN_ENDPOINT, region, endpoint=endpoint, **fields)
