"""`/v1/tenants`: the tenants of the policy in force. API keys and their digests are not returned."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Response

from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, paginate
from control_plane.api.responses import Problem, json_response, large_response
from control_plane.auth.required_roles import Viewer
from control_plane.status.fleet_view import FleetView
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.policy import Policy


class TenantView(msgspec.Struct, frozen=True):
    """A tenant without its secrets."""

    name: str
    data_class: str
    """Class of the data in the tenant's requests; residency rules match it."""
    priority: int
    """Requests of higher priority are served first when requests have to wait."""
    quota: Quota | None
    """Limits of the tenant in each origin region; null: no limit."""
    keys: int
    """Number of API keys."""
    anonymous: bool
    """Whether requests without an API key belong to this tenant."""


def routes(view: FleetView) -> APIRouter:
    """Return the router of tenants."""
    router = APIRouter(prefix="/v1/tenants", tags=["fleet"])

    @router.get("", responses=returns(Page[TenantView], "A page of tenants, by name."))
    async def tenants(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the tenants of the policy in force."""
        policy = view.policy

        def page() -> Page[TenantView]:
            found = [_tenant_view(tenant, policy) for tenant in policy.tenants.values()] if policy is not None else []
            return paginate(found, lambda tenant: tenant.name, cursor, limit)

        return await large_response(page)

    @router.get("/{name}", responses=returns(TenantView, "The tenant."))
    async def tenant(caller: Viewer, name: Annotated[str, Path(max_length=128)]) -> Response:
        """Get one tenant."""
        policy = view.policy
        found = policy.tenants.get(name) if policy is not None else None
        if policy is None or found is None:
            raise Problem(404, f"the policy in force has no tenant {name!r}; GET /v1/tenants lists them")
        return json_response(_tenant_view(found, policy))

    return router


def _tenant_view(tenant: Tenant, policy: Policy) -> TenantView:
    return TenantView(
        name=tenant.name,
        data_class=tenant.data_class,
        priority=tenant.priority,
        quota=tenant.quota,
        keys=len(tenant.key_digests),
        anonymous=tenant.name == policy.anonymous_tenant,
    )
