"""`POST /v1/what-if`: effects of another policy, or of the loss of regions, on the fleet's demand."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from control_plane.api.api_threads import in_api_thread
from control_plane.api.client_location import require_policy
from control_plane.api.evaluation_response import evaluation_response
from control_plane.api.json_bodies import MAX_BODY, require_json
from control_plane.api.openapi import body_of, returns
from control_plane.auth.required_roles import Viewer
from control_plane.evaluation.evaluation_jobs import WhatIfJob
from control_plane.evaluation.evaluator import Evaluator
from control_plane.evaluation.what_if_request import MAX_REQUESTS_PER_S, WhatIfRequest
from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.capacity_groups import SharedSlots
from penstock.fleet.snapshot import demand, pools
from penstock.what_if.outcomes import Capacity


def routes(view: FleetView, evaluator: Evaluator) -> APIRouter:
    """Return the router of what-if evaluations."""
    router = APIRouter(prefix="/v1", tags=["explain"])

    @router.post(
        "/what-if",
        responses=returns(WhatIfResponse, "The same demand before and after the change."),
        openapi_extra={MAX_BODY: MAX_BUNDLE_BYTES, "requestBody": body_of(WhatIfRequest)},
    )
    async def what_if(caller: Viewer, request: Request) -> Response:
        """Compare the current policy with another one, or with the loss of regions, on the same demand.

        The response has the demand that moves, round trips, cost and refusals, computed by the planner and the
        decision functions that serve the fleet. Nothing is changed. A caller has one evaluation at a time.
        """
        body = await request.body()
        require_json(request, body)
        policy = require_policy(view.policy)
        capacities, reported_per_s = await in_api_thread(lambda: (_capacities(view), _reported_rate(view)))
        job = WhatIfJob(policy, body, capacities, reported_per_s)
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
