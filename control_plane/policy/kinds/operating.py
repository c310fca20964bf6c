"""What operators may do without saying that they know what it does, and when regions are emptied by the calendar."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.shape import MOMENT, REMEDY, Label, PolicyDocument, SomeOf

PERIOD_S = {"daily": 86_400.0, "weekly": 7 * 86_400.0}


def _on_the_calendar(moment: str) -> str:
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        remedy = {"remedy": "write a date and time of the calendar, such as 2026-12-01T02:00Z"}
        raise PydanticCustomError(REMEDY, "is not a valid date and time", remedy) from None
    return moment


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
    regions: SomeOf[Label]
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
