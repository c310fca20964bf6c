"""How a new revision of the bundle reaches the fleet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.shape import EachOnce, Label, PolicyDocument


class RolloutDocument(PolicyDocument):
    """How a change of policy reaches the fleet. Exactly one a bundle; the one in force rules the way of the next."""

    kind: Literal["Rollout"]
    shadow_s: float = Field(10.0, ge=0, le=86_400)
    """How long (s) both plans are made and compared before any region obeys the new policy; 0 compares nothing."""
    max_moved_share: float = Field(0.25, ge=0, le=1)
    """The part (0-1) of all demand that the new plan may serve elsewhere; beyond it a person must say how to go on."""
    canary_regions: EachOnce[Label] = Field(default_factory=list)
    """Regions that obey the new policy before all others; `[]` tries it nowhere first."""
    canary_s: float = Field(300.0, ge=0, le=86_400)
    """How long (s), at least, they do so before the others follow."""
    acknowledge_within_s: float = Field(15.0, gt=0, le=3600)
    """An agent there that has not taken it after this long (s) is reason to roll back; reports come once a second."""
    least_requests: int = Field(100, ge=0, le=1_000_000_000)
    """Requests that must have ended there before anything is judged by them, and before the others follow."""
    max_failures_added: float = Field(0.02, ge=0, le=1)
    """How much (0-1) the part of requests that fail or are refused may grow."""
    max_latency_factor: float = Field(1.5, ge=1, le=1000)
    """How many times as long as before the mean time to the first byte may become."""
    watch_s: float = Field(600.0, ge=0, le=86_400)
    """How long (s) it is watched, by the same limits, once every region obeys it; then it is stable."""
