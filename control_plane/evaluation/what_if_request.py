"""The body of `POST /v1/what-if`. It has up to some megabytes, so an evaluation process decodes and validates it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from control_plane.api.text_fields import Country, Subdivision
from control_plane.overrides.override_fields import OverrideFields
from control_plane.policy.bundle_limits import MAX_FILES
from control_plane.request_model import RequestModel
from penstock.overrides.overrides import MAX_OVERRIDES
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.growth import Growth

MAX_REQUESTS_PER_S = 1e6

MAX_ROWS = 5_000
"""Maximum number of rows of a given demand or fleet."""

MAX_SLOTS = 1_000_000_000

MAX_GROWTH = 1_000.0
"""Largest factor of a growth."""

MAX_PROPOSED = 20
"""Maximum number of overrides that a request proposes."""


class DemandRow(RequestModel):
    """Requests of one kind, and their rate."""

    origin: str = Field("", max_length=253, description="Region that receives the requests. Default: as steered.")
    tenant: str = Field(
        max_length=512, description="Tenant of the policy, or TIER/* for the tenants that the API creates with a tier."
    )
    model: str = Field(max_length=512)
    requests_per_s: float = Field(strict=True, ge=0.0, le=MAX_REQUESTS_PER_S, allow_inf_nan=False)
    country: Country | None = None
    subdivision: Subdivision | None = None

    def group(self) -> DemandGroup:
        """Return the demand group of the row."""
        return DemandGroup(self.origin, self.tenant, self.country, self.model, self.requests_per_s, self.subdivision)


class GrowthRow(RequestModel):
    """A factor of the demand on the side after."""

    factor: float = Field(strict=True, ge=0.0, le=MAX_GROWTH, allow_inf_nan=False)
    model: str = Field("", max_length=512, description="Requested model. Default: all.")
    origin: str = Field("", max_length=253, description="Region that receives the requests. Default: all.")

    def growth(self) -> Growth:
        """Return the growth of the row."""
        return Growth(self.factor, self.model, self.origin)


class CapacityRow(RequestModel):
    """Capacity of one region for one model."""

    region: str = Field(max_length=253)
    model: str = Field(max_length=512)
    slots: int = Field(strict=True, ge=0, le=MAX_SLOTS, description="Maximum number of concurrent requests.")
    service_s: float = Field(
        strict=True,
        ge=0.001,
        le=86_400.0,
        allow_inf_nan=False,
        description="Mean time (s) that a request holds a slot.",
    )
    slots_per_endpoint: float | None = Field(None, strict=True, ge=1.0, le=MAX_SLOTS, allow_inf_nan=False)
    burst_slots: int = Field(
        0, strict=True, ge=0, le=MAX_SLOTS, description="Maximum number of concurrent requests on burst endpoints."
    )

    def capacity(self) -> Capacity:
        """Return the capacity of the row."""
        return Capacity(
            self.region,
            self.model,
            self.slots,
            self.service_s,
            slots_per_endpoint=self.slots_per_endpoint,
            burst_slots=self.burst_slots,
        )


class WhatIfRequest(RequestModel):
    """The proposed change, and the conditions of both sides.

    The overrides and maintenance windows in force are in effect on both sides.
    """

    files: dict[str, str] | None = Field(
        None,
        max_length=MAX_FILES,
        description="A complete bundle, file contents by file name. Default: the policy of the side before.",
    )
    files_before: dict[str, str] | None = Field(
        None, max_length=MAX_FILES, description="The bundle of the side before. Default: the policy in force."
    )
    lost: list[str] = Field(default_factory=list, max_length=1_000, fail_fast=True, description="Regions that fail.")
    lost_before: list[str] = Field(
        default_factory=list, max_length=1_000, fail_fast=True, description="Regions that have failed on both sides."
    )
    overrides: Annotated[list[OverrideFields], Field(max_length=MAX_PROPOSED, fail_fast=True)] = Field(
        default_factory=list, description="Overrides that are set, each checked as `POST /v1/overrides` checks it."
    )
    lift: list[str] = Field(
        default_factory=list, max_length=MAX_OVERRIDES, fail_fast=True, description="Ids of overrides that are lifted."
    )
    demand: Annotated[list[DemandRow], Field(max_length=MAX_ROWS, fail_fast=True)] | None = Field(
        None,
        description="Default: every tenant requests every model, at the total rate that regions report; if they report "
        "none, at the rate that uses half of their capacity.",
    )
    growth: Annotated[list[GrowthRow], Field(max_length=MAX_PROPOSED, fail_fast=True)] = Field(
        default_factory=list,
        description="Factors of the demand on the side after. Each group is multiplied by all that match it.",
    )
    fleet: Annotated[list[CapacityRow], Field(max_length=MAX_ROWS, fail_fast=True)] | None = Field(
        None, description="Capacity of each pool. Default: as regions report it."
    )
