"""`POST /v1/what-if`: effects of another policy, or of the loss of regions, on the fleet's demand."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from control_plane.api.client_location import Country, Subdivision, require_policy
from control_plane.api.evaluation_response import evaluation_response
from control_plane.api.openapi import returns
from control_plane.auth.required_roles import Viewer
from control_plane.evaluation.evaluation_jobs import MAX_REQUESTS_PER_S, WhatIfJob
from control_plane.evaluation.evaluator import Evaluator
from control_plane.policy.bundle_limits import MAX_FILES
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.capacity_groups import SharedSlots
from penstock.fleet.snapshot import demand, pools
from penstock.what_if.outcomes import Capacity, DemandGroup

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
    lost: list[str] = Field(default_factory=list, max_length=1_000, description="Regions that fail.")
    demand: list[DemandRow] | None = Field(
        None,
        max_length=MAX_ROWS,
        description="Default: every tenant requests every model, at the total rate that regions report; if they report "
        "none, at the rate that uses half of their capacity.",
    )


def routes(view: FleetView, evaluator: Evaluator) -> APIRouter:
    """Return the router of what-if evaluations."""
    router = APIRouter(prefix="/v1", tags=["explain"])

    @router.post("/what-if", responses=returns(WhatIfResponse, "The same demand before and after the change."))
    async def what_if(caller: Viewer, body: WhatIfRequest) -> Response:
        """Compare the current policy with another one, or with the loss of regions, on the same demand.

        The response has the demand that moves, round trips, cost and refusals, computed by the planner and the
        decision functions that serve the fleet. Nothing is changed. A caller has one evaluation at a time.
        """
        given = None if body.demand is None else tuple(row.group() for row in body.demand)
        job = WhatIfJob(
            require_policy(view.policy), body.files, tuple(body.lost), given, _capacities(view), _reported_rate(view)
        )
        return await evaluation_response(evaluator, caller.name, job)

    return router


def _capacities(view: FleetView) -> tuple[Capacity, ...]:
    """Return the reported capacity of each pool."""
    return tuple(
        Capacity(
            region,
            model,
            pool.report.slots,
            pool.report.service_s,
            tuple(SharedSlots(group.models, group.slots) for group in pool.groups),
            pool.report.slots / pool.report.ready if pool.report.ready else None,
        )
        for (region, model), pool in sorted(pools(view.snapshot, view.now()).items())
        if pool.report.slots > 0 and pool.report.service_s > 0.0
    )


def _reported_rate(view: FleetView) -> float:
    """Return the reported total demand (requests/s)."""
    return min(sum(row.requests_per_s for row in demand(view.snapshot, view.now())), MAX_REQUESTS_PER_S)
