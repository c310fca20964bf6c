"""What operators may do without saying that they know what it does, and when regions are emptied by the calendar."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import MOMENT, REMEDY, Label, NonEmptyList, PolicyDocument, UniqueList

PERIOD_S = {"daily": 86_400.0, "weekly": 7 * 86_400.0}


def _on_the_calendar(moment: str) -> str:
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        remedy = {"remedy": "write a date and time of the calendar, such as 2026-12-01T02:00Z"}
        raise PydanticCustomError(REMEDY, "is not a valid date and time", remedy) from None
    return moment


class ObjectiveDocument(PolicyDocument):
    """How plans are made; what they minimise is weighed in milliseconds of latency. Exactly one a bundle."""

    kind: Literal["Objective"]
    plan_logic: Literal["linear_program", "waterfall"] = "linear_program"
    """How plans are computed. `linear_program`: the cheapest shares for all demand at once; the other fields are its
    parameters. `waterfall`: home up to its target, then the next nearest region; it uses forecast_horizon_s alone."""
    latency_ms_per_cost: float = Field(20_000.0, ge=0, le=1e9)
    """Latency (ms) that a request may gain to save one unit of the bundle's currency on GPU time and egress."""
    queueing_weight: float = Field(0.1, ge=0, le=1000)
    """How many milliseconds of round trip one millisecond of expected queueing is worth."""
    change_penalty_ms: float = Field(5.0, ge=0, le=60_000)
    """How much sooner (ms) elsewhere than where the plan in force has it before demand moves; a tenth for home."""
    survive_one_loss: bool = True
    """Keep room, within residency, for what any one region serves, in case that region is lost (N-1)."""
    forecast_horizon_s: float = Field(10.0, ge=0, le=3600)
    """How far ahead (s) demand is forecast; a plan is for the higher of the forecast and what is measured."""


class RolloutDocument(PolicyDocument):
    """How a change of policy reaches the fleet. Exactly one a bundle; the one in force rules the way of the next."""

    kind: Literal["Rollout"]
    shadow_s: float = Field(10.0, ge=0, le=86_400)
    """How long (s) both plans are made and compared before any region obeys the new policy; 0 compares nothing."""
    max_moved_share: float = Field(0.25, ge=0, le=1)
    """The part (0-1) of all demand that the new plan may serve elsewhere; beyond it a person must say how to go on."""
    canary_regions: UniqueList[Label] = Field(default_factory=list)
    """Regions that obey the new policy before all others; `[]` tries it nowhere first."""
    canary_s: float = Field(300.0, ge=0, le=86_400)
    """How long (s), at least, they do so before the others follow."""
    acknowledge_timeout_s: float = Field(15.0, gt=0, le=3600)
    """An agent there that has not taken it after this long (s) is reason to roll back; reports come once a second."""
    min_requests: int = Field(100, ge=0, le=1_000_000_000)
    """Requests that must have ended there before anything is judged by them, and before the others follow."""
    max_failure_increase: float = Field(0.02, ge=0, le=1)
    """How much (0-1) the part of requests that fail or are refused may grow."""
    max_latency_factor: float = Field(1.5, ge=1, le=1000)
    """How many times as long as before the mean time to the first byte may become."""
    watch_s: float = Field(600.0, ge=0, le=86_400)
    """How long (s) it is watched, by the same limits, once every region obeys it; then it is stable."""


class GuardRailsDocument(PolicyDocument):
    """What overrides (drain, fail over, weight) may do unless an admin says that it is meant. Exactly one a bundle.

    Emptying the last region that a residency class has for a model is always refused without that.
    """

    kind: Literal["GuardRails"]
    max_withdrawn_share: float = Field(0.5, gt=0, le=1)
    """How much (0-1) of the fleet's capacity for any one model overrides may take out of use together."""


class MaintenanceWindowDocument(PolicyDocument):
    """When regions are emptied so that people may work on them: a drain that nobody has to set."""

    kind: Literal["MaintenanceWindow"]
    name: Label
    """Unique name; overrides and warnings cite it."""
    regions: NonEmptyList[Label]
    """Names of the regions that are to be empty."""
    starts_at: Annotated[str, Field(pattern=MOMENT), AfterValidator(_on_the_calendar)]
    """By when they are, the first time: date and minute in UTC, such as `2026-12-01T02:00Z`; or as the clocks of
    `time_zone` show it, without the Z."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """By whose clocks it begins and recurs: a name of the IANA time zone database, such as `Europe/Berlin`. A time that
    they leave out once is taken as long after the change, one that they show twice as the first. null: by UTC."""
    duration_s: float = Field(gt=0, le=7 * 86_400)
    """How long (s) it takes each time; then they return by the failback ramp."""
    recurrence: Literal["never", "daily", "weekly"] = "never"
    """How often it comes again, at the same time on the clock."""
    lead_s: float = Field(600.0, ge=0, le=86_400)
    """How long (s) before each beginning the drain begins, so that what runs there can end."""

    @model_validator(mode="after")
    def _says_whose_clocks(self) -> Self:
        if self.time_zone is None and not self.starts_at.endswith("Z"):
            remedy = {"remedy": "write Z behind starts_at for UTC, or name the time_zone"}
            raise PydanticCustomError(REMEDY, "starts_at does not say by whose clocks it is", remedy)
        if self.time_zone is not None and self.starts_at.endswith("Z"):
            remedy = {"remedy": "write starts_at as clocks there show it, without the Z; or time_zone: null"}
            raise PydanticCustomError(REMEDY, "starts_at is in UTC and time_zone is named", remedy)
        return self

    @model_validator(mode="after")
    def _ends_before_it_comes_again(self) -> Self:
        period_s = PERIOD_S.get(self.recurrence)
        if period_s is not None and self.lead_s + self.duration_s >= period_s:
            remedy = {"remedy": "make lead_s and duration_s together shorter than the time between two of them"}
            raise PydanticCustomError(REMEDY, "the window would never close", remedy)
        return self
