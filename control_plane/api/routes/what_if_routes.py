"""`POST /v1/what-if`: effects of another policy, or of the loss of regions, on the fleet's demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from control_plane.api.client_location import Country, Subdivision, require_policy, require_region
from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, json_response
from control_plane.auth.required_roles import Viewer
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.bundle_limits import MAX_FILES
from control_plane.policy.compiler import compile_bundle
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.snapshot import demand, pools
from penstock.policy.policy import Policy
from penstock.what_if.assumed_demand import generated_demand, generated_fleet, max_generated_groups, sustainable_rate
from penstock.what_if.evaluation import evaluate_demand
from penstock.what_if.moved_demand import moves
from penstock.what_if.outcomes import Capacity, DemandGroup

MAX_ROWS = 5_000
"""Maximum number of rows of a given demand."""

MAX_GENERATED_ROWS = 50_000
"""Maximum number of rows of a generated demand."""

MAX_MOVES = 500
"""Maximum number of moves in a response."""

DEFAULT_REQUESTS_PER_S = 100.0
"""Total rate (requests/s) of a generated demand when regions report neither demand nor capacity."""

MAX_REQUESTS_PER_S = 1e6


class DemandRow(BaseModel):
    """Requests of one kind, and their rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origin: str = Field("", max_length=253, description="Region that receives the requests. Default: as steered.")
    tenant: str = Field(max_length=512)
    model: str = Field(max_length=512)
    requests_per_s: float = Field(strict=True, ge=0.0, le=MAX_REQUESTS_PER_S, allow_inf_nan=False)
    country: Country | None = None
    subdivision: Subdivision | None = None


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


def routes(view: FleetView) -> APIRouter:
    """Return the router of what-if evaluations."""
    router = APIRouter(prefix="/v1", tags=["explain"])
    evaluating = asyncio.Lock()

    @router.post("/what-if", responses=returns(WhatIfResponse, "The same demand before and after the change."))
    async def what_if(caller: Viewer, body: WhatIfRequest) -> Response:
        """Compare the current policy with another one, or with the loss of regions, on the same demand.

        The response has the demand that moves, round trips, cost and refusals, computed by the planner and the
        decision functions that serve the fleet. Nothing is changed. One evaluation runs at a time.
        """
        policy = require_policy(view.policy)
        if evaluating.locked():
            raise Problem(429, "another what-if evaluation is running", {"retry-after": "5"})
        async with evaluating:
            result = await asyncio.to_thread(_evaluate, policy, body, _capacities(view), _reported_rate(view))
        return json_response(result)

    return router


def _capacities(view: FleetView) -> list[Capacity]:
    """Return the reported capacity of each pool."""
    return [
        Capacity(region, model, pool.report.slots, pool.report.service_s)
        for (region, model), pool in sorted(pools(view.snapshot, view.now()).items())
        if pool.report.slots > 0 and pool.report.service_s > 0.0
    ]


def _reported_rate(view: FleetView) -> float:
    """Return the reported total demand (requests/s)."""
    return min(sum(row.requests_per_s for row in demand(view.snapshot, view.now())), MAX_REQUESTS_PER_S)


def _evaluate(
    policy: Policy, body: WhatIfRequest, reported: Sequence[Capacity], reported_per_s: float
) -> WhatIfResponse:
    proposed = _compile(body.files) if body.files is not None else policy
    for name in body.lost:
        require_region(proposed, name, "lost")
    for index, row in enumerate(body.demand or ()):
        if row.origin and row.origin not in policy.regions:
            require_region(proposed, row.origin, f"demand[{index}].origin")
    rate_per_s = reported_per_s or min(sustainable_rate(policy, reported), MAX_REQUESTS_PER_S) or DEFAULT_REQUESTS_PER_S
    asked = (
        [
            DemandGroup(row.origin, row.tenant, row.country, row.model, row.requests_per_s, row.subdivision)
            for row in body.demand
        ]
        if body.demand is not None
        else _generate_demand(policy, rate_per_s)
    )
    capacities = reported or generated_fleet((policy, proposed), asked)
    before, after = (
        evaluate_demand(policy, asked, capacities),
        evaluate_demand(proposed, asked, capacities, frozenset(body.lost)),
    )
    moved = moves(asked, before, after)
    given = body.demand is not None
    return WhatIfResponse(
        before=before.totals,
        after=after.totals,
        moves=tuple(moved[:MAX_MOVES]),
        moved_per_s=sum(move.requests_per_s for move in moved),
        policy_before=policy.digest(),
        policy_after=proposed.digest(),
        demand="as given" if given else _describe_demand(rate_per_s, reported=reported_per_s > 0.0),
        fleet="as reported" if reported else "generated: no region reports a pool",
    )


def _describe_demand(rate_per_s: float, *, reported: bool) -> str:
    text = f"generated, {rate_per_s:.1f} requests per second"
    return f"{text} as regions report" if reported else f"{text}, because regions report none"


def _generate_demand(policy: Policy, rate_per_s: float) -> list[DemandGroup]:
    """Return a demand in which every tenant requests every model.

    Raises:
        Problem: 422, it would have more than MAX_GENERATED_ROWS rows.
    """
    if max_generated_groups(policy) > MAX_GENERATED_ROWS:
        raise Problem(422, "demand: this policy has too many tenants, models and regions to generate one; give it")
    return generated_demand(policy, rate_per_s)


def _compile(files: dict[str, str]) -> Policy:
    """Return the proposed policy.

    Raises:
        Problem: 422, with all errors of the bundle.
    """
    try:
        return compile_bundle(files)
    except PolicyRefused as refused:
        errors = [{"field": f"body.files.{error.file}", "problem": str(error)} for error in refused.errors]
        raise Problem(422, f"the bundle is invalid: {len(errors)} error(s)", errors=errors) from None
