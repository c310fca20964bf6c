"""`/v1/rollouts`: the rollouts of policies, and the actions halt, resume, promote and roll back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from adapters.access.callers import Caller
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.preconditions import IfMatch, etag, must_match
from control_plane.api.responses import Problem, json_response, large_response
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.api.text_fields import Reason
from control_plane.audit.audit_log import ChangeRefused
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.page import Page
from control_plane.request_model import RequestModel
from control_plane.rollout.model_rollout_resource import model_rollout_statuses
from control_plane.rollout.rollout_actions import ActionRefused, PolicyNotStored, RolloutActions
from control_plane.rollout.rollout_resource import RolloutStatus, RolloutSummary, agent_policy_states, summary
from control_plane.rollout.rollout_runner import RolloutRunner
from control_plane.rollout.rollout_store import StoredRollout
from control_plane.status.fleet_view import FleetView
from penstock.policy.kinds.operations import RolloutRules
from penstock.policy.policy_diff import Change, diff
from penstock.rollout.canary_analysis import observations
from penstock.rollout.policy_rollout import Rollout, RolloutEvent
from penstock.rollout.region_evidence import by_region


class ActionRequest(RequestModel):
    """Body of an action on a rollout or policy."""

    reason: Reason


ActionBody = Annotated[ActionRequest, Depends(JsonBody(ActionRequest).read)]


def routes(actions: RolloutActions, rollouts: RolloutRunner, view: FleetView) -> APIRouter:
    """Return the router of rollouts."""
    router = APIRouter(prefix="/v1/rollouts", tags=["rollouts"])

    async def advance(caller: Caller, event: RolloutEvent, if_match: str | None, body: ActionRequest) -> Response:
        must_reach(caller, None)
        current = await current_rollout(actions, if_match)
        try:
            after = await actions.advance(caller, current, event, body.reason)
        except (ActionRefused, ChangeRefused) as refused:
            raise action_problem(refused) from None
        return json_response(summary(after))

    @router.get("", responses=returns(Page[RolloutSummary], "A page of rollouts."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List rollouts, newest first."""
        newest = (await actions.rollouts.newest()).rollout
        every = {rollout.number: rollout for rollout in await actions.rollouts.ended()}
        if newest is not None:
            every[newest.number] = newest
        found = paginate(every.values(), lambda rollout: f"{rollout.number:011d}", cursor, limit, newest_first=True)
        return json_response(Page(tuple(map(summary, found.items)), found.next_cursor))

    @router.get("/current", responses=returns(RolloutStatus, "The newest rollout.", etag=True))
    async def current(caller: Viewer) -> Response:
        """Get the current rollout, or the last one: phase, policy of each agent, and changes.

        Send its ETag as If-Match with actions on rollouts and policies.
        """
        stored = await actions.rollouts.newest()
        if stored.rollout is None:
            raise Problem(404, "no policy has been rolled out yet")
        rollout, shadow = stored.rollout, rollouts.shadow
        compared = shadow if shadow is not None and shadow.number == rollout.number and not rollout.is_over else None
        changes, limits = await _changes(actions, rollout), await _limits(actions, rollout)
        snapshot, outlook, now = view.snapshot, rollouts.outlook, view.now()
        of_models = await rollouts.models.stored()

        def found() -> RolloutStatus:
            return RolloutStatus(
                summary(rollout, compared.moved_share if compared is not None else None),
                agent_policy_states(rollout, snapshot, now),
                changes,
                compared.changes if compared is not None else None,
                limits,
                by_region(rollout, observations(snapshot, now)),
                outlook,
                model_rollout_statuses(of_models, view.policy, snapshot, now),
            )

        response = await large_response(found)
        response.headers["etag"] = etag(stored.revision)
        return response

    @router.post("/current/halt", responses=returns(RolloutSummary, "The rollout is halted."))
    async def halt(caller: Operator, body: ActionBody, if_match: IfMatch = None) -> Response:
        """Halt the rollout.

        No further region receives the policy until the rollout is resumed. Regions that run the policy keep it.
        """
        return await advance(caller, RolloutEvent.HALT, if_match, body)

    @router.post("/current/resume", responses=returns(RolloutSummary, "The rollout continues."))
    async def resume(caller: Admin, body: ActionBody, if_match: IfMatch = None) -> Response:
        """Resume a rollout that is halted or held.

        A shadow plan that was held because it moves much traffic continues with the canary regions. A canary phase
        starts again.
        """
        return await advance(caller, RolloutEvent.RESUME, if_match, body)

    @router.post("/current/promote", responses=returns(RolloutSummary, "The policy is sent to every region."))
    async def promote(caller: Admin, body: ActionBody, if_match: IfMatch = None) -> Response:
        """Send the policy to every region now, without waiting for the remaining evidence.

        The rollout continues to evaluate the regions afterwards.
        """
        return await advance(caller, RolloutEvent.PROMOTE, if_match, body)

    @router.post("/current/rollback", responses=returns(RolloutSummary, "The stable policy is sent to every region."))
    async def rollback(caller: Operator, body: ActionBody, if_match: IfMatch = None) -> Response:
        """Return every region to the stable policy. The rollout does not restart automatically."""
        return await advance(caller, RolloutEvent.ROLL_BACK, if_match, body)

    return router


async def current_rollout(actions: RolloutActions, if_match: str | None) -> StoredRollout:
    """Return the newest rollout if If-Match names its state."""
    stored = await actions.rollouts.newest()
    must_match(if_match, stored.revision or None)
    return stored


def action_problem(error: Exception) -> Problem:
    """Return the problem for an action that was refused."""
    if isinstance(error, PolicyNotStored):
        return Problem(404, str(error))
    if isinstance(error, ChangeRefused):
        return Problem(412, "the rollout has changed: read it again and send its new ETag in If-Match")
    return Problem(409, str(error))


async def _limits(actions: RolloutActions, rollout: Rollout) -> RolloutRules | None:
    try:
        return (await actions.policy(rollout.stable)).rollout
    except PolicyNotStored:
        return None


async def _changes(actions: RolloutActions, rollout: Rollout) -> tuple[Change, ...]:
    if rollout.is_over:
        return ()
    try:
        stable, candidate = await actions.policy(rollout.stable), await actions.policy(rollout.candidate)
    except PolicyNotStored:
        return ()
    # In a thread: comparing thousands of documents takes seconds.
    return await in_api_thread(lambda: diff(stable, candidate))
