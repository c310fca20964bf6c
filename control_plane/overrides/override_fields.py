"""The fields that describe an override, in requests that set one and in requests that preview one."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from control_plane.request_model import RequestModel
from penstock.fleet.endpoint_report import MAX_TEXT
from penstock.overrides.overrides import Override, OverrideKind

MAX_DURATION_S = 366 * 86_400
"""Maximum duration (s) of an override that expires."""

_MAX_NUMBER = 1e300
"""Larger numbers, and values that are not a number, are rejected before the comparison with MAX_DURATION_S."""


class BadExpiry(Exception):
    """The duration is out of bounds; the message names the field."""


def _expiry(given: object) -> object:
    if given == "none":
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < _MAX_NUMBER:
        return given
    raise PydanticCustomError("expiry", "give a number of seconds, or `none`")


Expiry = Annotated[
    float | Literal["none"],
    BeforeValidator(_expiry),
    Field(description="Seconds until the override expires; `none`: it lasts until lifted.", examples=[7200, "none"]),
]

NO_END: Final = "none"
"""Default of `expires_in_s` for API, command line and page. A region that was withdrawn does not return by itself: its
fault may still exist."""

LastResort = Annotated[
    bool,
    Field(
        strict=True,
        description="Whether the region still serves the requests that no other permitted region can serve.",
    ),
]


class OverrideFields(RequestModel):
    """An override."""

    kind: OverrideKind
    region: str | None = Field(None, max_length=253, description="Name of the region; none for a freeze.")
    model: str | None = Field(None, max_length=512, description="Limit to the traffic of this model.")
    origin: str | None = Field(None, max_length=253, description="Limit to the requests that arrive in this region.")
    endpoint: str | None = Field(None, max_length=MAX_TEXT, description="Name of the endpoint of a drain_endpoint.")
    value: float | None = Field(None, strict=True, description="Share of a weight, from 0 to below 1.")
    last_resort: LastResort = True
    expires_in_s: Expiry = NO_END

    def override(self, id: str, author: str, reason: str, now: float) -> Override:
        """Return the override as of `now` (Unix time, s).

        Raises:
            BadExpiry: the duration is out of bounds.
        """
        return Override(
            id=id,
            kind=self.kind,
            reason=reason,
            author=author,
            begins_at=now,
            region=self.region,
            model=self.model,
            origin=self.origin,
            endpoint=self.endpoint,
            value=self.value,
            last_resort=self.last_resort,
            expires_at=None if self.expires_in_s == "none" else now + _duration_s(self.expires_in_s),
        )


def _duration_s(given: float | str) -> float:
    seconds = float(given)
    if not 0.0 < seconds <= MAX_DURATION_S:
        raise BadExpiry(f"expires_in_s: must be more than 0 and at most {MAX_DURATION_S} seconds, or `none`")
    return seconds
