"""Kinds of policy documents: planning, rollouts, limits of overrides, maintenance and drills."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from msgspec import Meta

from penstock.policy.fields import (
    DERIVED,
    Conflict,
    Label,
    ModelRef,
    Moment,
    NonEmpty,
    PolicyStruct,
    RegionRef,
    bounds,
    length,
)


class Objective(PolicyStruct, frozen=True):
    """The weights of planning, in milliseconds of latency, and the reserve. At most one per bundle.

    One millisecond of round trip costs one millisecond. Serving demand takes precedence over the reserve, and the
    reserve over all other costs, whatever the weights.
    """

    planner: Annotated[Literal["linear_program", "waterfall"], DERIVED] = "linear_program"
    """Not used. Earlier releases wrote the planner into the policy, where it is part of the digest."""
    latency_ms_per_cost: Annotated[float, bounds(ge=0, le=1e9)] = 20_000.0
    """Additional latency (ms) that is acceptable to save one unit of the bundle's currency on GPU time and egress."""
    queueing_weight: Annotated[float, bounds(ge=0, le=1000)] = 0.1
    """Weight of one millisecond of expected queueing, relative to one millisecond of round trip. Below 1, since waiting
    requests may still use spill credits. With a higher value, demand leaves a pool earlier as it fills."""
    change_penalty_ms: Annotated[float, bounds(ge=0, le=60_000)] = 5.0
    """Minimum improvement (ms) for which a plan moves demand; for a move to the home region, a tenth of this value."""
    survive_one_loss: bool = True
    """Whether to reserve capacity, within residency, for the loss of any one region (N-1)."""
    forecast_horizon_s: Annotated[float, bounds(ge=0, le=3600)] = 10.0
    """Forecast horizon (s) of demand; a plan covers the higher of forecast and measured demand."""


class RolloutRules(PolicyStruct, frozen=True):
    """Stages and limits of a policy rollout. At most one per bundle; the document in force governs the next rollout."""

    shadow_s: Annotated[float, bounds(ge=0, le=86_400)] = 10.0
    """Time (s) for which the plans of both policies are compared before any region applies the new one. 0: none."""
    max_moved_share: Annotated[float, bounds(ge=0, le=1)] = 0.25
    """Maximum share (0-1) of all demand that the new plan may move; above it, the rollout waits for an operator."""
    canary_regions: tuple[RegionRef, ...] = ()
    """Regions that apply the new policy before all others; `[]`: no canary stage."""
    canary_s: Annotated[float, bounds(ge=0, le=86_400)] = 300.0
    """Minimum time (s) of the canary stage."""
    acknowledge_timeout_s: Annotated[float, bounds(gt=0, le=3600)] = 15.0
    """Time (s) within which every canary agent must report the new policy; otherwise the policy is rolled back, or held
    if no agent of a canary region reports."""
    min_requests: Annotated[int, bounds(ge=0, le=1_000_000_000)] = 100
    """Minimum number of requests that have ended in the canary regions before their results are evaluated and before
    the rollout proceeds. More failures than so many requests may have are evaluated before."""
    max_failure_increase: Annotated[float, bounds(ge=0, le=1)] = 0.02
    """Allowed increase (0-1) of the share of requests that fail or are refused."""
    max_latency_factor: Annotated[float, bounds(ge=1, le=1000)] = 1.5
    """Maximum ratio of the mean time to first byte to its value before the change."""
    watch_s: Annotated[float, bounds(ge=0, le=86_400)] = 600.0
    """Time (s) for which the same limits apply after every region applies the policy."""


class GuardRails(PolicyStruct, frozen=True):
    """Limits of overrides (drain, fail over, weight) that are set without `--force`. At most one per bundle.

    An override that drains the last region of a residency class for a model always needs `--force`.
    """

    max_withdrawn_share: Annotated[float, bounds(gt=0, le=1)] = 0.5
    """Share (0-1) of the fleet's capacity for any one model that all overrides together may withdraw."""


class Recurrence(StrEnum):
    """Recurrence of a maintenance window or a drill, in the local time of its time zone."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


PERIOD_S = {Recurrence.DAILY: 86_400.0, Recurrence.WEEKLY: 7 * 86_400.0}
"""Time (s) between two occurrences by the clock of a window or drill; all days of UTC have the same length."""

StartsAt = Annotated[
    Moment,
    Meta(
        description="First start, date and minute in UTC, such as `2026-12-01T02:00Z`; or, without the Z, in local time"
        " of `time_zone`."
    ),
]
TimeZoneName = Annotated[
    Annotated[str, length(1, 64)] | None,
    Meta(
        description="Time zone of `starts_at` and the recurrence, by IANA name, such as `Europe/Berlin`. A local time"
        " that a change of clocks skips moves by the length of the change; if a local time occurs twice, the first"
        " occurrence counts. null: UTC."
    ),
]
RecurrenceField = Annotated[Recurrence, Meta(description="Period of the recurrence, at the same local time.")]


class MaintenanceWindow(PolicyStruct, frozen=True):
    """A scheduled drain of regions, which are drained by `starts_at`."""

    name: Label
    """Unique name; overrides and warnings cite it."""
    regions: NonEmpty[frozenset[RegionRef]]
    """Names of the regions to drain."""
    starts_at: StartsAt
    duration_s: Annotated[float, bounds(gt=0, le=7 * 86_400)]
    """Duration (s) of each window; the regions then return by the failback ramp."""
    recurrence: RecurrenceField = Recurrence.NEVER
    lead_s: Annotated[float, bounds(ge=0, le=86_400)] = 600.0
    """Time (s) before each start at which the drain begins, so that running requests can end."""
    source: Annotated[str, DERIVED] = ""
    """File and line of the window."""
    time_zone: TimeZoneName = None

    def conflict(self) -> Conflict | None:
        period_s = PERIOD_S.get(self.recurrence)
        if period_s is None or self.lead_s + self.duration_s < period_s:
            return None
        return Conflict("the window never closes", "make the sum of lead_s and duration_s shorter than the recurrence")


class Event(PolicyStruct, frozen=True):
    """An announced event, such as a launch: demand rises by `factor` at its start. Before that, plans and recommended
    endpoints reckon with it as far ahead as they forecast; from then on the measured demand counts."""

    name: Label
    """Unique name; warnings cite it."""
    starts_at: StartsAt
    duration_s: Annotated[float, bounds(gt=0, le=30 * 86_400)]
    """Duration (s). An event that is over has no effect."""
    factor: Annotated[float, bounds(ge=1, le=100)]
    """Expected demand during the event as a multiple of the forecast without it. Of events at one time, the largest
    counts."""
    models: Annotated[tuple[ModelRef, ...], Meta(extra_json_schema={"maxItems": 1000})] = ()
    """Models whose demand rises. Default: all."""
    origins: Annotated[tuple[RegionRef, ...], Meta(extra_json_schema={"maxItems": 1000})] = ()
    """Regions whose clients' demand rises. Default: all."""
    source: Annotated[str, DERIVED] = ""
    """File and line of the event."""
    time_zone: TimeZoneName = None


class Exercise(StrEnum):
    """The exercise of a drill."""

    EVACUATE_REGION = "evacuate_region"
    STEP_DOWN = "step_down"


HOLD_S: Final = 60.0
"""Default time (s) for which a drill keeps a region empty."""

MAX_BURN_RATE: Final = 2.0
"""Default burn rate of an error budget above which a drill is aborted."""


class DrillSchedule(PolicyStruct, frozen=True):
    """A scheduled drill: a safe exercise on the live fleet, refused while the fleet is unhealthy or lacks reserves."""

    name: Label
    """Unique name; drills and warnings cite it."""
    exercise: Exercise
    """`evacuate_region`: drain `region`, keep it empty, and return its traffic. `step_down`: the leader steps down,
    and another control plane takes over."""
    starts_at: StartsAt
    region: RegionRef | None = None
    """Name of the region to evacuate; required for `evacuate_region`, and not allowed otherwise."""
    recurrence: RecurrenceField = Recurrence.NEVER
    hold_s: Annotated[float, bounds(ge=0, le=3600)] = HOLD_S
    """Time (s) for which the region stays empty."""
    max_burn_rate: Annotated[float, bounds(ge=1, le=1000)] = MAX_BURN_RATE
    """Maximum burn rate of a model's error budget since the beginning of the drill; a rate of 1 uses up the budget
    exactly. The drill is aborted if the rate is higher and the objective is significantly missed."""
    source: Annotated[str, DERIVED] = ""
    """File and line of the drill."""
    time_zone: TimeZoneName = None

    def conflict(self) -> Conflict | None:
        if (self.exercise is Exercise.EVACUATE_REGION) == (self.region is not None):
            return None
        return Conflict(
            "exercise and region do not match", "write region for evacuate_region, and for no other exercise"
        )
