"""`/v1/capacity/recommendations`: the endpoints that each region should have, for autoscalers and operators.

Only the leader receives reports, so other control planes forward these requests.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import json_response, large_response
from control_plane.api.routes.fleet_routes import InRegion, OfModel, check_filters
from control_plane.auth.required_roles import Viewer
from control_plane.page import Page
from control_plane.planning.planning_loop import PlanningLoop
from control_plane.status.fleet_view import FleetView
from control_plane.status.status import StandbyStatus
from penstock.scaling.recommender import Recommendation


def routes(planning: PlanningLoop, view: FleetView) -> APIRouter:
    """Return the router of capacity."""
    router = APIRouter(prefix="/v1/capacity", tags=["fleet"])

    @router.get(
        "/recommendations", responses=returns(Page[Recommendation], "A page of recommendations, by region and model.")
    )
    async def recommendations(
        caller: Viewer,
        region: InRegion = None,
        model: OfModel = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> Response:
        """List the number of endpoints that each region should have for each model, and the endpoints to drain.

        The numbers follow from the forecast demand, the reserve for the loss of a region, and the cold start of the
        model, and are renewed every 5 s. The list is empty until the leader has made a plan. Penstock does not start or
        stop endpoints.
        """
        every, policy = planning.recommendations, view.policy

        def found() -> Page[Recommendation]:
            rows = (row for row in every if region in (None, row.region) and model in (None, row.model))
            page = paginate(rows, lambda row: f"{row.region}/{row.model}", cursor, limit)
            check_filters(policy, page, region, model)
            return page

        return await large_response(found)

    @router.get("/takeover", responses=returns(StandbyStatus, "The current takeover, or the last one."))
    async def takeover(caller: Viewer) -> Response:
        """Show how long standby regions took to take over from lost regions: since this leader leads, the last time."""
        return json_response(StandbyStatus(planning.takeover))

    return router
