"""GET /v1/plans: what agents are told to do, now and of late, and what changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from control_plane.access.required import Viewer
from control_plane.api.answers import answer
from control_plane.api.openapi import gives
from control_plane.api.pages import USUAL_LIMIT, Cursor, Limit, Page, paged
from control_plane.daemon import ControlPlane
from control_plane.plan_history import PastPlan, PlanDiff, PlanSummary
from control_plane.problems import Problem
from penstock.plan import RegionPlan
from penstock.plan_diff import plan_diff

LARGEST_GENERATION = 2**53 - 1
"""What JSON carries exactly everywhere."""

Generation = Annotated[int, Path(ge=0, le=LARGEST_GENERATION)]


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows plans."""
    router = APIRouter(prefix="/v1/plans", tags=["plans"])
    history = control_plane.history

    def found(generation: int) -> PastPlan:
        plan = history.find(generation)
        if plan is None:
            raise Problem(404, f"plan {generation} is not kept (any more); GET /v1/plans has those that are")
        return plan

    @router.get("", responses=gives(Page[PlanSummary], "A page of plans, the newest first."))
    async def plans(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """The plans of late, as this control plane saw them since its start, at most 200."""
        summaries = [_summary(one) for one in history.plans]
        return answer(paged(summaries, lambda one: f"{one.generation:016d}", cursor, limit, newest_first=True))

    @router.get("/current", responses=gives(dict[str, RegionPlan], "Slices by region."))
    async def current(caller: Viewer) -> Response:
        """The plan in the store, one slice a region."""
        return answer(control_plane.plans)

    @router.get("/diff", responses=gives(PlanDiff, "The arcs that differ."))
    async def diff(
        caller: Viewer,
        before: Annotated[int, Query(ge=0, le=LARGEST_GENERATION, description="Generation of one plan.")],
        after: Annotated[
            int | None, Query(ge=0, le=LARGEST_GENERATION, description="Of the other; without: the newest.")
        ] = None,
    ) -> Response:
        """Whose share moved where between two plans, and why."""
        old = found(before)
        new = found(after) if after is not None else history.plans[-1]
        return answer(PlanDiff(_summary(old), _summary(new), plan_diff(old.slices, new.slices)))

    @router.get("/{generation}", responses=gives(PastPlan, "The plan."))
    async def plan(caller: Viewer, generation: Generation) -> Response:
        """The plan that was in force at a generation, and what it changed."""
        return answer(found(generation))

    return router


def _summary(plan: PastPlan) -> PlanSummary:
    return PlanSummary(plan.generation, plan.epoch, plan.policy_digest, plan.made_at, len(plan.changes))
