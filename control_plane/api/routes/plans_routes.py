"""`/v1/plans`: the traffic plan in force, recent plans, and differences between them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, json_response, large_response
from control_plane.auth.required_roles import Viewer
from control_plane.page import Page
from control_plane.status.fleet_view import FleetView
from penstock.planning.plan import RegionPlan
from penstock.planning.plan_history import PastPlan, PlanDiff, PlanHistory, PlanSummary, summary

MAX_GENERATION = 2**53 - 1
"""The largest integer that every JSON implementation represents exactly."""

Generation = Annotated[int, Path(ge=0, le=MAX_GENERATION)]


def routes(history: PlanHistory, view: FleetView) -> APIRouter:
    """Return the router of plans."""
    router = APIRouter(prefix="/v1/plans", tags=["plans"])

    def find(generation: int) -> int:
        number = history.find(generation)
        if number is None:
            raise Problem(404, f"plan {generation} is not stored; GET /v1/plans lists the stored plans")
        return number

    @router.get("", responses=returns(Page[PlanSummary], "A page of plans, newest first."))
    async def plans(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the last 300 plans that changed shares: time, number of changed arcs, and related events."""
        page = paginate(history.steps.items(), lambda item: f"{item[0]:016d}", cursor, limit, newest_first=True)
        return json_response(Page(tuple(summary(step) for _, step in page.items), page.next_cursor))

    @router.get("/current", responses=returns(dict[str, RegionPlan], "Plan slices by region."))
    async def current(caller: Viewer) -> Response:
        """Get the plan in the store, one slice per region."""
        plans = view.plans
        return await large_response(lambda: plans)

    @router.get("/diff", responses=returns(PlanDiff, "The arcs that differ."))
    async def diff(
        caller: Viewer,
        before: Annotated[int, Query(ge=0, le=MAX_GENERATION, description="Generation of the first plan.")],
        after: Annotated[
            int | None,
            Query(ge=0, le=MAX_GENERATION, description="Generation of the second plan. Default: the newest."),
        ] = None,
    ) -> Response:
        """Compare two plans: arcs whose share changed, with the reasons."""
        first = find(before)
        return json_response(history.diff(first, find(after) if after is not None else max(history.steps)))

    @router.get("/{generation}", responses=returns(PastPlan, "The plan."))
    async def plan(caller: Viewer, generation: Generation) -> Response:
        """Get the plan that was in force at a generation, with its changes and their reasons."""
        return json_response(history.plan(find(generation)))

    return router
