"""`/v1/revoked-keys`: API keys of tenants that no agent accepts, whatever the policy in force contains."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from adapters.access.callers import Caller
from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, json_response
from control_plane.api.routes.tenants.tenants_routes import changed
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.page import Page
from control_plane.request_model import RequestModel
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.key_revocation_store import KeyRevocationStore
from control_plane.tenants.tenant_resource import RevokedKeyView, revoked_key_views
from control_plane.tenants.tenant_store import TenantAction, TenantStore
from penstock.policy.revoked_keys import DIGEST_CHARS, ID_CHARS, RevokedKeySet, TooManyRevokedKeys
from penstock.tenancy.created_tenants.tenant_changes import existing, with_revoked_key
from penstock.tenancy.tenant_record import TenantKey, TenantRecord

KeyId = Annotated[
    str,
    Path(
        pattern=rf"^([0-9a-f]{{{ID_CHARS}}}|[0-9a-f]{{{DIGEST_CHARS}}})$",
        description="`id` of the revoked key, or its SHA-256, which also lifts a key that the list lacks.",
    ),
]


class RevokeRequest(RequestModel):
    """The key to revoke."""

    key_digest: str = Field(
        pattern=rf"^[0-9a-f]{{{DIGEST_CHARS}}}$",
        description="SHA-256 of the API key, in lower-case hexadecimal, as in the policy.",
    )
    reason: Reason


RevokeBody = Annotated[RevokeRequest, Depends(JsonBody(RevokeRequest).read)]


def routes(store: KeyRevocationStore, tenants: TenantStore, view: FleetView) -> APIRouter:
    """Return the router of revoked keys."""
    router = APIRouter(prefix="/v1/revoked-keys", tags=["fleet"])

    @router.get("", responses=returns(Page[RevokedKeyView], "A page of revoked keys."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the revoked API keys of tenants."""
        found = paginate((await _read(store)).revoked, lambda entry: entry.id, cursor, limit)
        return json_response(Page(revoked_key_views(found.items, view.policy), found.next_cursor))

    @router.post(
        "",
        status_code=201,
        responses=returns(RevokedKeyView, "The key is revoked.", status=201)
        | returns(RevokedKeyView, "The key was revoked before."),
    )
    async def revoke(caller: Operator, body: RevokeBody) -> Response:
        """Revoke an API key: agents refuse it and end its open requests, under this and every other policy.

        A repeated request is written too: it ends a lift that agents know of and the list does not, such as after the
        restore of a backup. The key of a tenant that the API created is revoked in the tenant's record, for good;
        `GET /v1/tenants/{name}/keys` shows it.
        """
        must_reach(caller, None)
        owner = tenants.owner_of(bytes.fromhex(body.key_digest))
        if owner is not None:
            shown, is_new = await _revoke_created(caller, body, *owner)
            return json_response(shown, 201 if is_new else 200)
        try:
            entry, is_new = await store.revoke(caller, body.key_digest, body.reason)
        except TooManyRevokedKeys as error:
            raise Problem(409, str(error)) from None
        (shown,) = revoked_key_views([entry], view.policy)
        return json_response(shown, 201 if is_new else 200)

    @router.delete("/{id}", responses=returns(RevokedKeyView, "The revocation is lifted."))
    async def lift(caller: Admin, id: KeyId, reason: Annotated[Reason, Query()]) -> Response:
        """Lift a revocation: the key is valid again where the policy in force has it."""
        try:
            entry = await store.lift(caller, id, reason)
        except KeyError:
            detail = (
                f"no key {id} is revoked; GET /v1/revoked-keys lists them, and the whole digest lifts any key. The"
                " revocation of a key that the API created is final: create another key"
            )
            raise Problem(404, detail) from None
        (shown,) = revoked_key_views([entry], view.policy)
        return json_response(shown)

    async def _revoke_created(
        caller: Caller, body: RevokeRequest, tenant: TenantRecord, key: TenantKey
    ) -> tuple[RevokedKeyView, bool]:
        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            return with_revoked_key(existing(before, tenant.name), key.id, now)

        action = TenantAction(caller, "key.revoke", tenant.name, body.reason, key.id)
        revoked = (await changed(tenants, action, edit)).find_key(key.id)
        at = view.now() if revoked is None or revoked.revoked_at is None else revoked.revoked_at
        shown = RevokedKeyView(body.key_digest[:ID_CHARS], tenant.name, at, caller.name, body.reason)
        return shown, key.revoked_at is None

    return router


async def _read(store: KeyRevocationStore) -> RevokedKeySet:
    try:
        return await store.read()
    except StoreError:
        return store.known
