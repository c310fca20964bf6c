"""The body of `POST /v1/what-if`. It has up to some megabytes, so an evaluation process decodes and validates it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from control_plane.api.text_fields import Country, Subdivision
from control_plane.policy.bundle_limits import MAX_FILES
from penstock.what_if.outcomes import DemandGroup

MAX_REQUESTS_PER_S = 1e6

MAX_ROWS = 5_000
"""Maximum number of rows of a given demand."""


class DemandRow(BaseModel):
    """Requests of one kind, and their rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origin: str = Field("", max_length=253, description="Region that receives the requests. Default: as steered.")
    tenant: str = Field(max_length=512)
    model: str = Field(max_length=512)
    requests_per_s: float = Field(strict=True, ge=0.0, le=MAX_REQUESTS_PER_S, allow_inf_nan=False)
    country: Country | None = None
    subdivision: Subdivision | None = None

    def group(self) -> DemandGroup:
        """Return the demand group of the row."""
        return DemandGroup(self.origin, self.tenant, self.country, self.model, self.requests_per_s, self.subdivision)


class WhatIfRequest(BaseModel):
    """The proposed change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: dict[str, str] | None = Field(
        None,
        max_length=MAX_FILES,
        description="A complete bundle, file contents by file name. Default: the policy in force.",
    )
    lost: list[str] = Field(default_factory=list, max_length=1_000, fail_fast=True, description="Regions that fail.")
    demand: Annotated[list[DemandRow], Field(max_length=MAX_ROWS, fail_fast=True)] | None = Field(
        None,
        description="Default: every tenant requests every model, at the total rate that regions report; if they report "
        "none, at the rate that uses half of their capacity.",
    )
