"""`/v1/result-cache/purges`: makes kept responses unreachable."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, json_response
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Operator, Viewer, must_reach
from control_plane.page import Page
from control_plane.request_model import RequestModel
from control_plane.result_cache.purge_store import PurgeStore
from control_plane.status.fleet_view import FleetView
from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.policy import Policy
from penstock.result_cache.cache_purges import EVERY_MODEL, CachePurge


class PurgeRequest(RequestModel):
    """What to purge."""

    model: str = Field(
        min_length=1,
        max_length=256,
        description="Name of a model, a model version, an adapter, or of several versions; `*` for all.",
    )
    reason: Reason


PurgeBody = Annotated[PurgeRequest, Depends(JsonBody(PurgeRequest).read)]


def routes(store: PurgeStore, view: FleetView) -> APIRouter:
    """Return the router of purges."""
    router = APIRouter(prefix="/v1/result-cache/purges", tags=["fleet"])

    @router.get("", responses=returns(Page[CachePurge], "A page of purges."))
    async def purges(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the newest purge of each model. Purges are removed when all responses that they concern have expired."""
        found = paginate((await store.read()).purges, lambda purge: purge.model, cursor, limit)
        return json_response(found)

    @router.post("", status_code=201, responses=returns(CachePurge, "The responses are purged.", status=201))
    async def purge(caller: Operator, body: PurgeBody) -> Response:
        """Purge the kept responses of a model: no agent that is connected to the store sends them from then on."""
        must_reach(caller, None)
        policy = view.policy
        if policy is not None and not _is_known(policy, body.model):
            raise Problem(422, f"model: the policy has no model, version or adapter {body.model!r}; `*` purges all")
        return json_response(await store.purge(caller, body.model, body.reason), 201)

    return router


def _is_known(policy: Policy, name: str) -> bool:
    return (
        name == EVERY_MODEL
        or name in policy.models
        or name in policy.versions
        or base_model_of(policy, name) is not None
    )
