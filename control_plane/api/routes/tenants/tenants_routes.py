"""`/v1/tenants`: the tenants of the policy in force, and those that the API creates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Response

from adapters.access.callers import Caller
from adapters.error_text import suggest
from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.preconditions import IfMatch, etag, must_match
from control_plane.api.responses import Problem, json_response, large_response
from control_plane.api.serving.client_location import require_policy
from control_plane.api.tenant_bodies import Explained, NewTenant, TenantChange, TenantSettings, budgets_of
from control_plane.api.text_fields import LabelText, Reason
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.page import Page
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.tenant_resource import TenantSource, TenantView, created_view, digest, policy_view
from control_plane.tenants.tenant_store import TenantAction, TenantStore
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.tenancy.created_tenants.tenant_changes import (
    Edit,
    TenantConflict,
    TenantNotFound,
    created,
    deleted,
    existing,
)
from penstock.tenancy.tenant_record import TenantRecord

TenantName = Annotated[str, Path(max_length=128, description="Name of the tenant.")]
NewName = Annotated[LabelText, Path(description="Name of the new tenant.")]
Search = Annotated[str | None, Query(max_length=63, description="List only tenants whose name contains this text.")]
TierFilter = Annotated[str | None, Query(max_length=63, description="List only tenants of this tier.")]
SourceFilter = Annotated[TenantSource | None, Query(description="List only tenants from this source.")]

NewTenantBody = Annotated[NewTenant, Depends(JsonBody(NewTenant).read)]
SettingsBody = Annotated[TenantSettings, Depends(JsonBody(TenantSettings).read)]
ChangeBody = Annotated[TenantChange, Depends(JsonBody(TenantChange).read)]
ReasonBody = Annotated[Explained, Depends(JsonBody(Explained).read)]


def routes(store: TenantStore, view: FleetView) -> APIRouter:
    """Return the router of tenants."""
    router = APIRouter(prefix="/v1/tenants", tags=["tenants"])
    tenants = _Tenants(store, view)

    @router.get("", responses=returns(Page[TenantView], "A page of tenants, by name."))
    async def page(
        caller: Viewer,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
        search: Search = None,
        tier: TierFilter = None,
        source: SourceFilter = None,
    ) -> Response:
        """List the tenants of the policy in force and those that the API has created."""
        policy, now = view.policy, view.now()

        def found() -> Page[TenantView]:
            records = _listed(store, policy, search or "", tier, source)
            names = paginate(records, lambda each: each.name, cursor, limit)
            return Page(tuple(tenants.view(each, policy, now) for each in names.items), names.next_cursor)

        return await large_response(found)

    @router.post("", status_code=201, responses=returns(TenantView, "The tenant is created.", status=201))
    async def create(caller: Operator, body: NewTenantBody) -> Response:
        """Create a tenant. PUT does the same, and can be repeated.

        409 if there is a tenant of the name, or was one and the request does not restore it.
        """
        return await tenants.create(caller, body.name, body, may_exist=False)

    @router.put(
        "/{name}",
        status_code=201,
        responses=returns(TenantView, "The tenant is created.", status=201)
        | returns(TenantView, "This request has created the tenant before."),
    )
    async def create_named(caller: Operator, name: NewName, body: SettingsBody) -> Response:
        """Create a tenant. A repeated request changes nothing.

        409 if there is another tenant of the name (PATCH changes a tenant), or was one and the request does not restore
        it.
        """
        return await tenants.create(caller, name, body, may_exist=True)

    @router.get("/{name}", responses=returns(TenantView, "The tenant.", etag=True))
    async def tenant(caller: Viewer, name: TenantName) -> Response:
        """Get one tenant."""
        return await tenants.get(name)

    @router.patch("/{name}", responses=returns(TenantView, "The tenant is changed."))
    async def change(caller: Operator, name: TenantName, body: ChangeBody, if_match: IfMatch = None) -> Response:
        """Change tier, budgets or note of a tenant. Fields that the request does not have stay as they are."""
        return await tenants.patch(caller, name, body, if_match)

    @router.post("/{name}/suspend", responses=returns(TenantView, "The tenant is suspended."))
    async def suspend(caller: Operator, name: TenantName, body: ReasonBody) -> Response:
        """Suspend a tenant: agents refuse its requests and end the open ones. Its keys stay."""
        return await tenants.suspend(caller, name, body.reason, is_suspended=True)

    @router.post("/{name}/resume", responses=returns(TenantView, "The tenant is not suspended."))
    async def resume(caller: Operator, name: TenantName, body: ReasonBody) -> Response:
        """End the suspension of a tenant."""
        return await tenants.suspend(caller, name, body.reason, is_suspended=False)

    @router.delete("/{name}", responses=returns(TenantView, "The tenant as it was before the deletion."))
    async def delete(
        caller: Admin, name: TenantName, reason: Annotated[Reason, Query()], if_match: IfMatch = None
    ) -> Response:
        """Delete a tenant: its keys are revoked for good. What the job store has of the tenant stays until it expires.

        A repeated request changes nothing.
        """
        return await tenants.delete(caller, name, reason, if_match)

    return router


class _Tenants:
    """Operations on tenants on behalf of callers."""

    def __init__(self, store: TenantStore, view: FleetView) -> None:
        self._store = store
        self._view = view

    def view(self, found: Tenant | TenantRecord, policy: Policy | None, now: float) -> TenantView:
        if isinstance(found, TenantRecord):
            return created_view(found, policy, now)
        is_anonymous = policy is not None and found.name == policy.anonymous_tenant
        return policy_view(found, is_anonymous=is_anonymous, hides=self._store.find(found.name) is not None)

    async def get(self, name: str) -> Response:
        policy = self._view.policy
        if policy is not None and (own := policy.tenants.get(name)) is not None:
            return json_response(self.view(own, policy, self._view.now()), headers={"etag": etag(policy.digest()[:32])})
        try:
            record = await self._store.read(name)
        except StoreError:
            record = self._store.find(name)
        if record is None:
            raise Problem(404, f"there is no tenant {name!r}; GET /v1/tenants lists them")
        return self._response(record)

    async def create(self, caller: Caller, name: str, body: TenantSettings, *, may_exist: bool) -> Response:
        must_reach(caller, None)
        policy = require_policy(self._view.policy)
        if name in policy.tenants:
            raise Problem(409, f"name: the policy has a tenant {name}; choose another name")
        require_tier(policy, body.tier)
        is_new = False

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            nonlocal is_new
            wanted = TenantRecord(name, body.tier, now, budgets=budgets_of(body.budgets), note=body.note)
            after = created(before, wanted, restores=body.restore)
            is_new = after is wanted
            if not is_new and not may_exist:
                raise TenantConflict(f"there is a tenant {name}; PATCH changes it")
            return after

        record = await changed(self._store, TenantAction(caller, "tenant.create", name, body.reason or ""), edit)
        return self._response(record, 201 if is_new else 200, location=f"/v1/tenants/{name}")

    async def patch(self, caller: Caller, name: str, body: TenantChange, if_match: str | None) -> Response:
        must_reach(caller, None)
        policy = require_policy(self._view.policy)
        given = body.model_fields_set - {"reason"}
        if not given:
            raise Problem(422, "body: has nothing to change; give tier, budgets or note")
        fields = {field: getattr(body, field) for field in given}
        if "budgets" in fields:
            fields["budgets"] = budgets_of(body.budgets)
        if "tier" in fields:
            require_tier(policy, body.tier)

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            record = existing(before, name)
            must_match(if_match, digest(record))
            after = msgspec.structs.replace(record, **fields)
            return record if after == record else after

        self._must_be_created(name)
        action = TenantAction(caller, "tenant.change", name, body.reason or "")
        return self._response(await changed(self._store, action, edit))

    async def suspend(self, caller: Caller, name: str, reason: str, *, is_suspended: bool) -> Response:
        must_reach(caller, None)
        self._must_be_created(name)

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            record = existing(before, name)
            if record.is_suspended == is_suspended:
                return record
            return msgspec.structs.replace(record, is_suspended=is_suspended)

        action = TenantAction(caller, "tenant.suspend" if is_suspended else "tenant.resume", name, reason)
        return self._response(await changed(self._store, action, edit))

    async def delete(self, caller: Caller, name: str, reason: str, if_match: str | None) -> Response:
        must_reach(caller, None)
        if self._store.find(name) is None:
            self._must_be_created(name)
        before: list[TenantRecord] = []

        def edit(found: TenantRecord | None, now: float) -> TenantRecord:
            if found is not None and found.deleted_at is not None and if_match in (None, "*"):
                before[:] = [found]
                return found
            record = existing(found, name)
            must_match(if_match, digest(record))
            before[:] = [record]
            return deleted(record, now)

        await changed(self._store, TenantAction(caller, "tenant.delete", name, reason), edit)
        return json_response(created_view(before[0], self._view.policy, self._view.now()))

    def _must_be_created(self, name: str) -> None:
        """Raise 409 for a tenant of the policy."""
        policy = self._view.policy
        if policy is not None and name in policy.tenants:
            raise Problem(409, f"{name} is a tenant of the policy: change the policy")

    def _response(self, record: TenantRecord, status: int = 200, **headers: str) -> Response:
        shown = created_view(record, self._view.policy, self._view.now())
        return json_response(shown, status, {"etag": etag(digest(record)), **headers})


async def changed(store: TenantStore, action: TenantAction, edit: Edit) -> TenantRecord:
    """Make a change of one tenant.

    Raises:
        Problem: 404, there is no such tenant or key; 409, the change contradicts the tenant's state.
    """
    try:
        return await store.change(action, edit)
    except TenantNotFound as error:
        raise Problem(404, str(error)) from None
    except TenantConflict as error:
        raise Problem(409, str(error)) from None


def require_tier(policy: Policy, name: str) -> None:
    """Raise 422 unless the policy has a tier of this name."""
    if policy.tier(name) is None:
        known = policy.tiers or {}
        remedy = suggest(name, known, "name a tier of the policy") if known else "add a document of kind Tier to it"
        problem = f"the policy in force has no tier {name!r}; {remedy}"
        raise Problem(422, f"tier: {problem}", errors=[{"field": "tier", "problem": problem}])


def _listed(
    store: TenantStore, policy: Policy | None, search: str, tier: str | None, source: TenantSource | None
) -> Iterator[Tenant | TenantRecord]:
    own = policy.tenants if policy is not None else {}
    if source is not TenantSource.API:
        for tenant in own.values():
            if search in tenant.name and (tier is None or tenant.tier == tier):
                yield tenant
    if source is not TenantSource.POLICY:
        for record in store.tenants():
            if search in record.name and (tier is None or record.tier == tier) and record.name not in own:
                yield record
