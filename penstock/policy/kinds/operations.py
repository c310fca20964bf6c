"""Kinds of policy documents: planning, rollouts, limits of overrides, maintenance and drills."""

from __future__ import annotations

from enum import StrEnum

from penstock.policy.fields import PolicyStruct


class PlannerKind(StrEnum):
    """The planner, by name; `penstock.planning.registry` contains the implementations.

    A name always identifies the same planner: a changed planner gets a new name, so that a new release does not change
    plans.
    """

    LINEAR_PROGRAM = "linear_program"
    """Minimises the cost of all demand together, with reserve for the loss of a region."""
    WATERFALL = "waterfall"
    """Fills home to its target, then the next nearest permitted region; ignores costs and keeps no reserve."""


class Objective(PolicyStruct, frozen=True):
    """The planner and its objective, in milliseconds of latency, and the reserve.

    One millisecond of round trip costs one millisecond. Serving demand takes precedence over the reserve, and the
    reserve over all other costs, whatever the weights.
    """

    planner: PlannerKind = PlannerKind.LINEAR_PROGRAM
    """The planner; the other fields are its parameters, and some planners ignore them."""
    latency_ms_per_cost: float = 20_000.0
    """Additional latency (ms) that is worth one unit of the bundle's currency in GPU time and egress."""
    queueing_weight: float = 0.1
    """Milliseconds of round trip that one millisecond of expected queueing is worth: below one, since waiting requests
    may still use spill credits. With a higher value, demand leaves a pool earlier as it fills."""
    change_penalty_ms: float = 5.0
    """Minimum gain (ms) for which demand moves to another region; a tenth of it for a move home."""
    survive_one_loss: bool = True
    """Whether plans keep capacity free, within residency, for the loss of any one region (N-1)."""
    forecast_horizon_s: float = 10.0
    """Horizon (s) of the demand forecast, which is used if it exceeds the measured demand."""


class RolloutRules(PolicyStruct, frozen=True):
    """Stages and limits of the rollout of a policy change."""

    shadow_s: float = 10.0
    """Duration (s) of the shadow phase, which compares plans under both policies; 0 skips it."""
    max_moved_share: float = 0.25
    """Maximum share (0-1) of all demand that changes its region; above it the rollout waits for an operator."""
    canary_regions: tuple[str, ...] = ()
    """Regions that receive the new policy first; empty to skip the canary phase."""
    canary_s: float = 300.0
    """Minimum duration (s) of the canary phase."""
    acknowledge_timeout_s: float = 15.0
    """Maximum time (s) for canary agents to accept the policy; after that it is rolled back."""
    min_requests: int = 100
    """Minimum number of finished canary requests for a comparison, and for the end of the canary phase."""
    max_failure_increase: float = 0.02
    """Maximum increase (0-1) of the share of requests that fail or are refused."""
    max_latency_factor: float = 1.5
    """Maximum ratio of the mean time to first byte to that of the baseline."""
    watch_s: float = 600.0
    """Time (s) for which the same limits apply after every region has received the policy."""


class GuardRails(PolicyStruct, frozen=True):
    """Limits of overrides that operators set without `--force`."""

    max_withdrawn_share: float = 0.5
    """Maximum share (0-1) of the fleet's capacity for one model that overrides may withdraw together."""


class Recurrence(StrEnum):
    """Recurrence of a maintenance window or a drill, in the local time of its time zone."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


class MaintenanceWindow(PolicyStruct, frozen=True):
    """A period for which regions are drained for maintenance."""

    name: str
    regions: frozenset[str]
    starts_at: float
    """Unix time (s) of its first beginning, at which the drain must be complete."""
    duration_s: float
    """Duration (s) of each occurrence."""
    recurrence: Recurrence = Recurrence.NEVER
    lead_s: float = 600.0
    """Time (s) before each beginning at which the drain begins."""
    source: str = ""
    """File and line of the window."""
    time_zone: str | None = None
    """Time zone of the recurrence, an IANA name that `Policy.time_zones` contains; None for UTC."""


class Exercise(StrEnum):
    """The exercise of a drill."""

    EVACUATE_REGION = "evacuate_region"
    """A region is drained until it serves no requests, stays empty for a while, and then receives traffic again."""
    CONTROL_PLANE_FAILOVER = "control_plane_failover"
    """The leader steps down, and another control plane takes over."""


class DrillSchedule(PolicyStruct, frozen=True):
    """A drill that the leader starts automatically."""

    name: str
    exercise: Exercise
    starts_at: float
    """Unix time (s) of its first beginning."""
    region: str | None = None
    """The region that is evacuated; None for a failover of the control planes."""
    recurrence: Recurrence = Recurrence.NEVER
    hold_s: float = 60.0
    """Time (s) for which an evacuated region stays empty."""
    max_burn_rate: float = 2.0
    """Maximum burn rate of a model's error budget since the beginning of the drill. The drill is aborted if the rate is
    higher and the objective is significantly missed."""
    source: str = ""
    """File and line of the drill."""
    time_zone: str | None = None
    """Time zone of the recurrence, an IANA name that `Policy.time_zones` contains; None for UTC."""
