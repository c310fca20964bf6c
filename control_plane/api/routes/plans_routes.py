"""GET /v1/plans: what agents are told to do, now and of late, and what changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, Page, paged
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from control_plane.planning.plan_history import PastPlan, PlanDiff, PlanSummary, summary
from penstock.planning.plan import RegionPlan

MAX_GENERATION = 2**53 - 1
"""What JSON carries exactly everywhere."""

Generation = Annotated[int, Path(ge=0, le=MAX_GENERATION)]


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows plans."""
    router = APIRouter(prefix="/v1/plans", tags=["plans"])
    history = control_plane.history

    def found(generation: int) -> int:
        number = history.find(generation)
        if number is None:
            raise Problem(404, f"plan {generation} is not kept (any more); GET /v1/plans has those that are")
        return number

    @router.get("", responses=gives(Page[PlanSummary], "A page of plans, the newest first."))
    async def plans(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """The plans of late, at most 300, whoever led: when shares moved, how many, and amid what."""
        page = paged(history.steps.items(), lambda one: f"{one[0]:016d}", cursor, limit, newest_first=True)
        return answer(Page(tuple(summary(step) for _, step in page.items), page.next_cursor))

    @router.get("/current", responses=gives(dict[str, RegionPlan], "Slices by region."))
    async def current(caller: Viewer) -> Response:
        """The plan in the store, one slice a region."""
        return answer(control_plane.plans)

    @router.get("/diff", responses=gives(PlanDiff, "The arcs that differ."))
    async def diff(
        caller: Viewer,
        before: Annotated[int, Query(ge=0, le=MAX_GENERATION, description="Generation of one plan.")],
        after: Annotated[
            int | None, Query(ge=0, le=MAX_GENERATION, description="Of the other; without: the newest.")
        ] = None,
    ) -> Response:
        """Whose share moved where between two plans, and why."""
        old = found(before)
        return answer(history.diff(old, found(after) if after is not None else max(history.steps)))

    @router.get("/{generation}", responses=gives(PastPlan, "The plan."))
    async def plan(caller: Viewer, generation: Generation) -> Response:
        """The plan that was in force at a generation, and how it came about."""
        return answer(history.plan(found(generation)))

    return router
