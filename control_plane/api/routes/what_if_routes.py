"""`POST /v1/what-if`: effects of another policy, of overrides, or of the loss of regions, on the fleet as it is."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from control_plane.api.evaluation_response import evaluation_response
from control_plane.api.json_bodies import MAX_BODY, require_json
from control_plane.api.openapi import body_of, returns
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.api.serving.client_location import require_policy
from control_plane.auth.required_roles import Viewer
from control_plane.evaluation.evaluation_jobs import LiveFleet, WhatIfJob
from control_plane.evaluation.evaluator import Evaluator
from control_plane.evaluation.what_if_request import WhatIfRequest
from control_plane.overrides.override_store import OverrideStore
from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES
from control_plane.status.fleet_view import FleetView
from control_plane.status.query_responses import WhatIfResponse
from penstock.fleet.capacity import service_times
from penstock.fleet.capacity_groups import SharedSlots
from penstock.fleet.snapshot import demand, pools
from penstock.health.region_health import RegionState
from penstock.overrides.overrides import Override, OverrideKind
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.what_if.demand_outcomes import Capacity

FREEZE = OverrideKind.FREEZE.value.encode()


def routes(view: FleetView, overrides: OverrideStore, evaluator: Evaluator) -> APIRouter:
    """Return the router of what-if evaluations."""
    router = APIRouter(prefix="/v1", tags=["explain"])

    @router.post(
        "/what-if",
        responses=returns(WhatIfResponse, "The same demand before and after the change."),
        openapi_extra={MAX_BODY: MAX_BUNDLE_BYTES, "requestBody": body_of(WhatIfRequest)},
    )
    async def what_if(caller: Viewer, request: Request) -> Response:
        """Compare the fleet as it is with another policy, with overrides, or with the loss of regions.

        Both sides have the same demand, and the overrides, maintenance windows and failed regions of now. The response
        has the demand that moves, round trips, cost and refusals, computed by the planner and the decision functions
        that serve the fleet, and the reasons for which proposed overrides would be rejected. Nothing is changed. A
        caller has one evaluation at a time.
        """
        body = await request.body()
        require_json(request, body)
        policy = require_policy(view.policy)
        known = overrides.seen.without_ended(view.now(), policy.failover.failback_ramp_s).overrides
        # The plan of a large fleet has some megabytes, and only a freeze depends on it.
        freezes = FREEZE in body or any(override.kind is OverrideKind.FREEZE for override in known)
        plans = tuple(view.plans.values()) if freezes else ()
        fleet = await in_api_thread(lambda: _live_fleet(view, policy, known, plans))
        return await evaluation_response(evaluator, caller.name, WhatIfJob(policy, body, fleet))

    return router


def _live_fleet(
    view: FleetView, policy: Policy, overrides: tuple[Override, ...], plans: tuple[RegionPlan, ...]
) -> LiveFleet:
    now, available = view.now(), view.capacity()
    return LiveFleet(
        now,
        _capacities(view, policy),
        tuple(demand(view.snapshot, now)),
        tuple(sorted(name for name, state in view.region_states().items() if state is RegionState.FAILED)),
        overrides,
        None if available is None else tuple((*pool, slots) for pool, slots in sorted(available.items())),
        plans,
    )


def _capacities(view: FleetView, policy: Policy) -> tuple[Capacity, ...]:
    """Return the reported capacity of each pool that has ready slots and a service time."""
    seen = pools(view.snapshot, view.now())
    times_s = {key: pool.report.service_s for key, pool in seen.items()} | service_times(policy, seen)
    return tuple(
        Capacity(
            region,
            model,
            pool.report.slots,
            times_s[region, model],
            tuple(SharedSlots(group.models, group.slots) for group in pool.groups),
            pool.report.slots / pool.report.ready if pool.report.ready else None,
            pool.report.burst_slots,
        )
        for (region, model), pool in sorted(seen.items())
        if pool.report.slots > 0 and times_s[region, model] > 0.0
    )
