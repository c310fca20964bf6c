"""`/v1/drills`: begin, list, show and abort drills."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from pydantic import Field

from adapters.access.callers import Caller
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, json_response
from control_plane.api.serving.client_location import require_policy, require_region
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Operator, Viewer, must_reach
from control_plane.drills.drill_resource import DrillReport, drill_report
from control_plane.drills.drill_runner import DrillRefused, DrillRunner, LeaderNotReady, NoSuchDrill
from control_plane.drills.drill_store import UnreadableDrill
from control_plane.page import Page
from control_plane.request_model import RequestModel
from control_plane.status.fleet_view import FleetView
from penstock.drills.drill_state import Drill, DrillRequest
from penstock.policy.kinds.operations import HOLD_S, MAX_BURN_RATE, Exercise

MAX_NUMBER = 2**53 - 1

Number = Annotated[int, Path(ge=1, le=MAX_NUMBER, description="Number of the drill.")]


class BeginDrill(RequestModel):
    """A drill to begin."""

    exercise: Exercise
    reason: Reason
    region: str | None = Field(None, max_length=253, description="Region to evacuate; only for `evacuate_region`.")
    hold_s: float = Field(HOLD_S, strict=True, ge=0, le=3600, description="Seconds for which the region stays empty.")
    max_burn_rate: float = Field(
        MAX_BURN_RATE,
        strict=True,
        ge=1,
        le=1000,
        description="Abort when the error budget of a model burns faster; 1 is the rate that uses it up exactly.",
    )


class AbortDrill(RequestModel):
    """Reason of an abort."""

    reason: Reason


BeginDrillBody = Annotated[BeginDrill, Depends(JsonBody(BeginDrill).read)]
AbortDrillBody = Annotated[AbortDrill, Depends(JsonBody(AbortDrill).read)]


def routes(runner: DrillRunner, view: FleetView) -> APIRouter:
    """Return the router of drills."""
    router = APIRouter(prefix="/v1/drills", tags=["drills"])

    @router.get("", responses=returns(Page[DrillReport], "A page of drills."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List drills with their reports, newest first."""
        every = await runner.drills.every()
        found = paginate(every.values(), lambda drill: f"{drill.number:011d}", cursor, limit, newest_first=True)
        return json_response(Page(tuple(map(drill_report, found.items)), found.next_cursor))

    @router.post("", status_code=201, responses=returns(DrillReport, "The drill begins.", status=201))
    async def begin(caller: Operator, body: BeginDrillBody) -> Response:
        """Begin a drill: evacuate a region and bring it back, or make the leader step down.

        409 if a condition does not hold: another drill or a rollout is under way, a region failed or is drained, a
        service objective is missed now, the other regions have too little capacity, or no second control plane exists.
        """
        return await begin_drill(caller, body, None)

    @router.put(
        "/{number}",
        status_code=201,
        responses=returns(DrillReport, "The drill begins.", status=201)
        | returns(DrillReport, "This request has begun the drill before."),
    )
    async def begin_numbered(caller: Operator, number: Number, body: BeginDrillBody) -> Response:
        """Begin the drill with the next number: that of the newest drill plus one, or 1. A repetition begins no other.

        409 as for POST, and if the number is not the next one.
        """
        return await begin_drill(caller, body, number)

    async def begin_drill(caller: Caller, body: BeginDrill, number: int | None) -> Response:
        if (body.exercise is Exercise.EVACUATE_REGION) != (body.region is not None):
            raise Problem(422, "region: required for evacuate_region, and not allowed for other exercises")
        if body.region is not None:
            require_region(require_policy(view.policy), body.region, "region")
        _authorise(caller, body.region)
        request = DrillRequest(
            body.exercise, body.region, body.hold_s, body.max_burn_rate, reason=body.reason, author=caller.name
        )
        try:
            drill, is_new = await runner.begin(caller, request, number)
        except (DrillRefused, UnreadableDrill) as refused:
            raise Problem(409, str(refused)) from None
        except LeaderNotReady as error:
            raise Problem(503, str(error), {"retry-after": "2"}) from None
        return json_response(drill_report(drill), 201 if is_new else 200, {"location": f"/v1/drills/{drill.number}"})

    @router.get("/{number}", responses=returns(DrillReport, "The drill."))
    async def drill(caller: Viewer, number: Number) -> Response:
        """Get the report of one drill."""
        found = (await runner.drills.every()).get(number)
        if found is None:
            raise Problem(404, f"there is no drill {number}")
        return json_response(drill_report(found))

    @router.post("/{number}/abort", responses=returns(DrillReport, "The drill is aborted."))
    async def abort(caller: Operator, number: Number, body: AbortDrillBody) -> Response:
        """Abort the drill under way. An evacuated region gets its traffic back along the failback ramp."""

        def check(drill: Drill) -> None:
            _authorise(caller, drill.request.region)

        try:
            return json_response(drill_report(await runner.abort(caller, number, body.reason, check)))
        except NoSuchDrill as error:
            raise Problem(404, str(error)) from None
        except (DrillRefused, UnreadableDrill) as refused:
            raise Problem(409, str(refused)) from None

    return router


def _authorise(caller: Caller, region: str | None) -> None:
    """Raise 403 unless the caller may change the region, or the whole fleet for a step-down of the leader."""
    must_reach(caller, None if region is None else {region})
