"""/v1/rollouts: how a new policy reaches the fleet, who runs what, and how to halt, resume, promote and roll back."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, paged
from control_plane.api.preconditions import IfMatch, etag, must_match
from control_plane.api.problems import Problem
from control_plane.api.text_fields import Reason
from control_plane.audit.audit_log import ChangeRefused
from control_plane.auth.callers import Caller
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.daemon import ControlPlane
from control_plane.rollout.rollout_actions import NotKept, OrderRefused
from control_plane.rollout.rollout_records import Stored
from control_plane.rollout.rollout_resource import RolloutPage, RolloutStatus, RolloutSummary, runs, summary
from penstock.policy.policy_diff import Change, diff
from penstock.rollout.state_machine import Event, Rollout


class Order(BaseModel):
    """Why it is done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Reason


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows and steers rollouts."""
    router = APIRouter(prefix="/v1/rollouts", tags=["rollouts"])
    orders = control_plane.orders

    async def advanced(caller: Caller, event: Event, if_match: str | None, body: Order) -> Response:
        must_reach(caller, None)
        seen = await seen_rollout(control_plane, if_match)
        try:
            after = await orders.advance(caller, seen, event, body.reason)
        except (OrderRefused, ChangeRefused) as refused:
            raise refusal(refused) from None
        return answer(summary(after))

    @router.get("", responses=gives(RolloutPage, "A page of rollouts."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """Rollouts, newest first."""
        newest = (await orders.records.newest()).rollout
        every = {one.number: one for one in await orders.records.ended()}
        if newest is not None:
            every[newest.number] = newest
        some = paged(every.values(), lambda one: f"{one.number:011d}", cursor, limit, newest_first=True)
        return answer(RolloutPage(tuple(summary(one) for one in some.items), some.next_cursor))

    @router.get("/current", responses=gives(RolloutStatus, "The newest rollout.", etag=True))
    async def current(caller: Viewer) -> Response:
        """The rollout under way, or the last one: how far it is, who runs what, and what it changes.

        Its ETag is what changes of rollouts and policies want in If-Match.
        """
        stored = await orders.records.newest()
        if stored.rollout is None:
            raise Problem(404, "no policy has been rolled out yet")
        rollout, shadow = stored.rollout, control_plane.staging.shadow
        compared = shadow if shadow is not None and shadow.number == rollout.number and not rollout.is_over else None
        told = RolloutStatus(
            summary(rollout, compared.moved_share if compared is not None else None),
            runs(rollout, control_plane.snapshot, control_plane.now()),
            await _changes(control_plane, rollout),
            compared.changes if compared is not None else None,
        )
        return answer(told, headers={"etag": etag(stored.revision)})

    @router.post("/current/halt", responses=gives(RolloutSummary, "No further region follows."))
    async def halt(caller: Operator, body: Order, if_match: IfMatch = None) -> Response:
        """Let no further region follow until it is resumed; those that try it go on."""
        return await advanced(caller, Event.HALT, if_match, body)

    @router.post("/current/resume", responses=gives(RolloutSummary, "It goes on."))
    async def resume(caller: Admin, body: Order, if_match: IfMatch = None) -> Response:
        """Go on with what is held: a shadow that moves much goes to the canary regions, a canary begins anew."""
        return await advanced(caller, Event.RESUME, if_match, body)

    @router.post("/current/promote", responses=gives(RolloutSummary, "Every region is told to obey it."))
    async def promote(caller: Admin, body: Order, if_match: IfMatch = None) -> Response:
        """Let every region obey it now, whatever is not proven yet; it is still watched."""
        return await advanced(caller, Event.PROMOTE, if_match, body)

    @router.post("/current/rollback", responses=gives(RolloutSummary, "Every region obeys the stable policy."))
    async def rollback(caller: Operator, body: Order, if_match: IfMatch = None) -> Response:
        """Take it back everywhere; it does not begin by itself again."""
        return await advanced(caller, Event.ROLL_BACK, if_match, body)

    return router


async def seen_rollout(control_plane: ControlPlane, if_match: str | None) -> Stored:
    """The newest rollout, if it is what the caller saw."""
    stored = await control_plane.orders.records.newest()
    must_match(if_match, stored.revision or None)
    return stored


def refusal(error: Exception) -> Problem:
    """The problem for an order that is not followed."""
    if isinstance(error, NotKept):
        return Problem(404, str(error))
    if isinstance(error, ChangeRefused):
        return Problem(412, "it has changed meanwhile: look again, and send the new ETag in If-Match")
    return Problem(409, str(error))


async def _changes(control_plane: ControlPlane, rollout: Rollout) -> tuple[Change, ...]:
    if rollout.is_over:
        return ()
    try:
        return diff(
            await control_plane.orders.policy(rollout.stable), await control_plane.orders.policy(rollout.candidate)
        )
    except NotKept:
        return ()
