"""`/v1/rollouts/models`: the actions halt, resume, promote and roll back on the rollouts of versions of models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from adapters.access.callers import Caller
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.preconditions import IfMatch, must_match
from control_plane.api.responses import Problem, json_response
from control_plane.api.serving.client_location import require_policy
from control_plane.api.text_fields import Reason
from control_plane.audit.audit_log import ChangeRefused
from control_plane.auth.required_roles import Admin, Operator, must_reach
from control_plane.request_model import RequestModel
from control_plane.rollout.model_rollout_resource import ModelRolloutSummary, model_summary
from control_plane.rollout.model_rollouts import ModelRollouts, NoSuchRollout, NotPossible
from control_plane.status.fleet_view import FleetView
from penstock.rollout.model_rollout import ModelEvent


class ModelActionRequest(RequestModel):
    """Body of an action on the rollout of a version."""

    name: str = Field(max_length=128, description="Name that clients request.")
    reason: Reason


ModelActionBody = Annotated[ModelActionRequest, Depends(JsonBody(ModelActionRequest).read)]


def routes(models: ModelRollouts, view: FleetView) -> APIRouter:
    """Return the router of the actions."""
    router = APIRouter(prefix="/v1/rollouts/models", tags=["rollouts"])

    async def advance(caller: Caller, event: ModelEvent, if_match: str | None, body: ModelActionRequest) -> Response:
        must_reach(caller, None)
        policy = require_policy(view.policy)
        seen = (await models.stored()).get(body.name)
        if seen is None:
            raise Problem(404, f"there is no rollout of {body.name}")
        must_match(if_match, seen.revision)
        try:
            after = await models.advance(caller, policy, seen, event, body.reason, view.now())
        except NoSuchRollout as error:
            raise Problem(404, str(error)) from None
        except NotPossible as error:
            raise Problem(409, str(error)) from None
        except ChangeRefused:
            problem = "the rollout has changed: read it again and send its new revision in If-Match"
            raise Problem(412, problem) from None
        return json_response(model_summary(after))

    @router.post("/halt", responses=returns(ModelRolloutSummary, "The rollout is halted."))
    async def halt_model(caller: Operator, body: ModelActionBody, if_match: IfMatch = None) -> Response:
        """Halt the rollout of a version: its share remains until the rollout is resumed."""
        return await advance(caller, ModelEvent.HALT, if_match, body)

    @router.post("/resume", responses=returns(ModelRolloutSummary, "The rollout continues."))
    async def resume_model(caller: Admin, body: ModelActionBody, if_match: IfMatch = None) -> Response:
        """Resume the rollout of a version, or begin again after a rollback."""
        return await advance(caller, ModelEvent.RESUME, if_match, body)

    @router.post("/promote", responses=returns(ModelRolloutSummary, "The version has its last share."))
    async def promote_model(caller: Admin, body: ModelActionBody, if_match: IfMatch = None) -> Response:
        """Give a version its last share now. It is still judged."""
        return await advance(caller, ModelEvent.PROMOTE, if_match, body)

    @router.post("/rollback", responses=returns(ModelRolloutSummary, "The percentages of the policy apply."))
    async def roll_back_model(caller: Operator, body: ModelActionBody, if_match: IfMatch = None) -> Response:
        """Return to the percentages of the policy. The rollout does not restart automatically."""
        return await advance(caller, ModelEvent.ROLL_BACK, if_match, body)

    return router
