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
    except ValueError as error:
        remedy = {"remedy": "write a moment that exists, such as 2026-12-01T02:00Z"}
        raise PydanticCustomError(REMEDY, f"is no moment: {error}", remedy) from None
    return moment


class GuardRailsDocument(PolicyDocument):
    """What overrides (drain, fail over, weight) may do unless an admin says that it is meant. Exactly one a bundle.

    Emptying the last region that a residency class has for a model is always refused without that.
    """

    kind: Literal["GuardRails"]
    most_withdrawn_share: float = Field(gt=0, le=1)
    """How much (0-1) of the fleet's capacity for any one model overrides may take out of use together."""


class MaintenanceWindowDocument(PolicyDocument):
    """When regions are emptied so that people may work on them: a drain that nobody has to set."""

    kind: Literal["MaintenanceWindow"]
    name: Label
    """Unique name; overrides and warnings cite it."""
    regions: SomeOf[Label]
    """Names of the regions that are to be empty."""
    starts_at: Annotated[str, Field(pattern=MOMENT), AfterValidator(_on_the_calendar)]
    """By when they are, the first time: date and minute in UTC, such as `2026-12-01T02:00Z`."""
    duration_s: float = Field(gt=0, le=7 * 86_400)
    """How long (s) it takes each time; then they return by the failback ramp."""
    recurrence: Literal["never", "daily", "weekly"]
    """How often it comes again, at the same time by UTC."""
    lead_s: float = Field(ge=0, le=86_400)
    """How long (s) before each beginning the drain begins, so that what runs there can end."""

    @model_validator(mode="after")
    def _ends_before_it_comes_again(self) -> Self:
        period_s = PERIOD_S.get(self.recurrence)
        if period_s is not None and self.lead_s + self.duration_s >= period_s:
            remedy = {"remedy": "make lead_s and duration_s together shorter than the time between two of them"}
            raise PydanticCustomError(REMEDY, "the window would never close", remedy)
        return self
