"""GET /v1/tenants: who requests belong to, by the policy in force. No key leaves, nor its digest."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, Page, paged
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from penstock.policy.policy import Policy, Quota, Tenant


class TenantView(msgspec.Struct, frozen=True):
    """A tenant without its secrets."""

    name: str
    data_class: str
    """Names the kind of data in its requests; residency rules match on it."""
    priority: int
    """Higher goes first where something must wait."""
    quota: Quota | None
    """What it may ask of each region that its clients come to; null for no limit."""
    keys: int
    """How many API keys it has."""
    anonymous: bool
    """Whether requests without a key belong to it."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows tenants."""
    router = APIRouter(prefix="/v1/tenants", tags=["fleet"])

    @router.get("", responses=gives(Page[TenantView], "A page of tenants, by name."))
    async def tenants(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """Every tenant of the policy in force."""
        policy = control_plane.policy
        found = [_view(one, policy) for one in policy.tenants.values()] if policy is not None else []
        return answer(paged(found, lambda one: one.name, cursor, limit))

    @router.get("/{name}", responses=gives(TenantView, "The tenant."))
    async def tenant(caller: Viewer, name: Annotated[str, Path(max_length=128)]) -> Response:
        """One tenant."""
        policy = control_plane.policy
        found = policy.tenants.get(name) if policy is not None else None
        if policy is None or found is None:
            raise Problem(404, f"the policy in force has no tenant {name!r}; GET /v1/tenants has those it has")
        return answer(_view(found, policy))

    return router


def _view(tenant: Tenant, policy: Policy) -> TenantView:
    return TenantView(
        name=tenant.name,
        data_class=tenant.data_class,
        priority=tenant.priority,
        quota=tenant.quota,
        keys=len(tenant.key_digests),
        anonymous=tenant.name == policy.anonymous_tenant,
    )
