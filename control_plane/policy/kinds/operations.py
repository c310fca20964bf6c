"""Kinds for the operation of a fleet: planning, rollouts, guard rails, maintenance windows, drills."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import MOMENT, REMEDY, Label, NonEmptyList, PolicyDocument, UniqueList

PERIOD_S = {"daily": 86_400.0, "weekly": 7 * 86_400.0}


def _valid_date(moment: str) -> str:
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        remedy = {"remedy": "write a date and time of the calendar, such as 2026-12-01T02:00Z"}
        raise PydanticCustomError(REMEDY, "is not a valid date and time", remedy) from None
    return moment


class ObjectiveDocument(PolicyDocument):
    """The planner and its weights, in milliseconds of latency. At most one per bundle."""

    kind: Literal["Objective"]
    planner: Literal["linear_program", "waterfall"] = "linear_program"
    """Algorithm that computes plans. `linear_program`: the shares with the lowest cost for all demand at once; the
    other fields are its parameters. `waterfall`: the home region up to its target, then the next nearest region; of
    the other fields, only forecast_horizon_s applies."""
    latency_ms_per_cost: float = Field(20_000.0, ge=0, le=1e9)
    """Additional latency (ms) that is acceptable to save one unit of the bundle's currency on GPU time and egress."""
    queueing_weight: float = Field(0.1, ge=0, le=1000)
    """Weight of one millisecond of expected queueing, relative to one millisecond of round trip."""
    change_penalty_ms: float = Field(5.0, ge=0, le=60_000)
    """Minimum improvement (ms) for which a plan moves demand; for a move to the home region, a tenth of this value."""
    survive_one_loss: bool = True
    """Whether to reserve capacity, within residency, for the loss of any one region (N-1)."""
    forecast_horizon_s: float = Field(10.0, ge=0, le=3600)
    """Forecast horizon (s) of demand; a plan covers the higher of forecast and measured demand."""


class RolloutDocument(PolicyDocument):
    """Stages and limits of a policy rollout. At most one per bundle; the document in force governs the next rollout."""

    kind: Literal["Rollout"]
    shadow_s: float = Field(10.0, ge=0, le=86_400)
    """Time (s) for which the plans of both policies are compared before any region applies the new one. 0: none."""
    max_moved_share: float = Field(0.25, ge=0, le=1)
    """Maximum share (0-1) of all demand that the new plan may move; above it, the rollout waits for an operator."""
    canary_regions: UniqueList[Label] = Field(default_factory=list)
    """Regions that apply the new policy before all others; `[]`: no canary stage."""
    canary_s: float = Field(300.0, ge=0, le=86_400)
    """Minimum time (s) of the canary stage."""
    acknowledge_timeout_s: float = Field(15.0, gt=0, le=3600)
    """Time (s) within which every canary agent must report the new policy; otherwise the policy is rolled back."""
    min_requests: int = Field(100, ge=0, le=1_000_000_000)
    """Minimum number of requests that have ended in the canary regions before their results are evaluated and before
    the rollout proceeds."""
    max_failure_increase: float = Field(0.02, ge=0, le=1)
    """Allowed increase (0-1) of the share of requests that fail or are refused."""
    max_latency_factor: float = Field(1.5, ge=1, le=1000)
    """Maximum ratio of the mean time to first byte to its value before the change."""
    watch_s: float = Field(600.0, ge=0, le=86_400)
    """Time (s) for which the same limits apply after every region applies the policy."""


class GuardRailsDocument(PolicyDocument):
    """Limits of overrides (drain, fail over, weight) that are set without `--force`. At most one per bundle.

    An override that drains the last region of a residency class for a model always needs `--force`.
    """

    kind: Literal["GuardRails"]
    max_withdrawn_share: float = Field(0.5, gt=0, le=1)
    """Share (0-1) of the fleet's capacity for any one model that all overrides together may withdraw."""


class ScheduledDocument(PolicyDocument):
    """Fields of documents with a schedule."""

    name: Label
    """Unique name; overrides, drills and warnings cite it."""
    starts_at: Annotated[str, Field(pattern=MOMENT), AfterValidator(_valid_date)]
    """First start, date and minute in UTC, such as `2026-12-01T02:00Z`; or, without the Z, in local time of
    `time_zone`."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Time zone of `starts_at` and the recurrence, by IANA name, such as `Europe/Berlin`. A local time that a
    change of clocks skips moves by the length of the change; if a local time occurs twice, the first occurrence counts.
    null: UTC."""
    recurrence: Literal["never", "daily", "weekly"] = "never"
    """Period of the recurrence, at the same local time."""

    @model_validator(mode="after")
    def _has_time_zone(self) -> Self:
        if self.time_zone is None and not self.starts_at.endswith("Z"):
            remedy = {"remedy": "append Z to starts_at for UTC, or write time_zone"}
            raise PydanticCustomError(REMEDY, "starts_at has no time zone", remedy)
        if self.time_zone is not None and self.starts_at.endswith("Z"):
            remedy = {"remedy": "write starts_at in local time, without the Z, or remove time_zone"}
            raise PydanticCustomError(REMEDY, "starts_at is in UTC, but time_zone is set", remedy)
        return self


class MaintenanceWindowDocument(ScheduledDocument):
    """A scheduled drain of regions, which are drained by `starts_at`."""

    kind: Literal["MaintenanceWindow"]
    regions: NonEmptyList[Label]
    """Names of the regions to drain."""
    duration_s: float = Field(gt=0, le=7 * 86_400)
    """Duration (s) of each window; the regions then return by the failback ramp."""
    lead_s: float = Field(600.0, ge=0, le=86_400)
    """Time (s) before each start at which the drain begins, so that running requests can end."""

    @model_validator(mode="after")
    def _closes_before_it_recurs(self) -> Self:
        period_s = PERIOD_S.get(self.recurrence)
        if period_s is not None and self.lead_s + self.duration_s >= period_s:
            remedy = {"remedy": "make the sum of lead_s and duration_s shorter than the recurrence"}
            raise PydanticCustomError(REMEDY, "the window never closes", remedy)
        return self


class DrillDocument(ScheduledDocument):
    """A scheduled drill: a safe exercise on the live fleet, refused while the fleet is unhealthy or lacks reserves."""

    kind: Literal["Drill"]
    exercise: Literal["evacuate_region", "control_plane_failover"]
    """`evacuate_region`: drain `region`, keep it empty, and return its traffic. `control_plane_failover`: the leader
    steps down, and another control plane takes over."""
    region: Label | None = None
    """Name of the region to evacuate; required for `evacuate_region`, and not allowed otherwise."""
    hold_s: float = Field(60.0, ge=0, le=3600)
    """Time (s) for which the region stays empty."""
    max_burn_rate: float = Field(2.0, ge=1, le=1000)
    """Maximum burn rate of a model's error budget since the beginning of the drill, above which the drill is aborted. A
    rate of 1 uses up the budget exactly."""

    @model_validator(mode="after")
    def _names_its_region(self) -> Self:
        if (self.exercise == "evacuate_region") != (self.region is not None):
            remedy = {"remedy": "write region for evacuate_region, and for no other exercise"}
            raise PydanticCustomError(REMEDY, "exercise and region do not match", remedy)
        return self
