"""How plans are made: by what logic, what they minimise, and what they keep in reserve."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.shape import PolicyDocument


class ObjectiveDocument(PolicyDocument):
    """How plans are made; what they minimise is weighed in milliseconds of latency. Exactly one a bundle."""

    kind: Literal["Objective"]
    plan_logic: Literal["linear_program", "waterfall"] = "linear_program"
    """What makes plans. `linear_program`: the cheapest shares for all demand at once; the other fields are its
    parameters. `waterfall`: home up to its target, then the next nearest region; of them it heeds forecast_ahead_s."""
    latency_ms_per_cost: float = Field(20_000.0, ge=0, le=1e9)
    """Latency (ms) that a request may gain to save one unit of the bundle's currency on GPU time and egress."""
    queueing_weight: float = Field(0.1, ge=0, le=1000)
    """How many milliseconds of round trip one millisecond of expected queueing is worth."""
    change_ms: float = Field(5.0, ge=0, le=60_000)
    """How much sooner (ms) elsewhere than where the plan in force has it before demand moves; a tenth for home."""
    survive_one_loss: bool = True
    """Keep room, within residency, for what any one region serves, in case that region is lost (N-1)."""
    forecast_ahead_s: float = Field(10.0, ge=0, le=3600)
    """How far ahead (s) demand is forecast; a plan is for the higher of the forecast and what is measured."""
