"""`/v1/tenants/{name}/keys`: API keys of tenants. A key is in the response to its creation, and in no other."""

from __future__ import annotations

from os import urandom
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from msgspec.structs import replace

from adapters.access.callers import Caller
from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.responses import Problem, json_response
from control_plane.api.routes.tenants.tenants_routes import TenantName, changed
from control_plane.api.tenant_bodies import KeySettings, Rotation, budgets_of
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Operator, Viewer, must_reach
from control_plane.page import Page
from control_plane.status.fleet_view import FleetView
from control_plane.tenants.tenant_resource import KeyState, NewTenantKey, TenantKeyView, key_view
from control_plane.tenants.tenant_store import TenantAction, TenantStore
from penstock.policy.revoked_keys import ID_CHARS
from penstock.tenancy.created_tenants.tenant_changes import Edit, existing, with_key, with_revoked_key, with_rotated_key
from penstock.tenancy.tenant_record import ID_BYTES, SECRET_BYTES, TenantKey, TenantRecord, key_digest, new_key

KeyId = Annotated[str, Path(max_length=64, description="Identifier of the key, the beginning of the key itself.")]
KeyBody = Annotated[KeySettings, Depends(JsonBody(KeySettings).read)]
RotationBody = Annotated[Rotation, Depends(JsonBody(Rotation).read)]

NO_STORE = {"cache-control": "no-store"}
"""Headers of a response with a key."""


def routes(store: TenantStore, view: FleetView) -> APIRouter:
    """Return the router of keys."""
    router = APIRouter(prefix="/v1/tenants/{name}/keys", tags=["tenants"])

    @router.get("", responses=returns(Page[TenantKeyView], "A page of keys."))
    async def keys(caller: Viewer, name: TenantName, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the keys of a tenant, revoked and expired ones included."""
        found = paginate(await _keys(store, view, name), lambda key: key.id, cursor, limit)
        return json_response(found)

    @router.post("", status_code=201, responses=returns(NewTenantKey, "The key is created.", status=201))
    async def create_key(caller: Operator, name: TenantName, body: KeyBody) -> Response:
        """Create a key of a tenant that the API created. `key` is in this response only.

        A repeated request creates another key: list the keys after a lost response, and revoke the one that was not
        received.
        """
        key, secret = _new_key(view.now(), body.expires_in_s)
        key = replace(key, note=body.note, budgets=budgets_of(body.budgets))

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            return with_key(existing(before, name), key, now)

        await _change(TenantAction(caller, "key.create", name, body.reason or "", key.id), edit)
        shown = key_view(name, key, view.now())
        return json_response(NewTenantKey(_sent(caller, secret), shown), 201, NO_STORE)

    @router.post("/{id}/rotate", status_code=201, responses=returns(NewTenantKey, "The key is rotated.", status=201))
    async def rotate_key(caller: Operator, name: TenantName, id: KeyId, body: RotationBody) -> Response:
        """Create the successor of a key. The key itself expires after an overlap, in which both are valid."""
        key, secret = _new_key(view.now(), body.expires_in_s)

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            return with_rotated_key(existing(before, name), id, key, body.overlap_s, now)

        record = await _change(TenantAction(caller, "key.rotate", name, body.reason or "", id), edit)
        shown, replaced = (_shown(record, each) for each in (key.id, id))
        return json_response(NewTenantKey(_sent(caller, secret), shown, replaced), 201, NO_STORE)

    @router.delete("/{id}", responses=returns(TenantKeyView, "The key is revoked."))
    async def revoke_key(caller: Operator, name: TenantName, id: KeyId, reason: Annotated[Reason, Query()]) -> Response:
        """Revoke a key: agents refuse it within a second and end its open requests. A revocation is final."""

        def edit(before: TenantRecord | None, now: float) -> TenantRecord:
            return with_revoked_key(existing(before, name), id, now)

        record = await _change(TenantAction(caller, "key.revoke", name, reason, id), edit)
        return json_response(_shown(record, id))

    async def _change(action: TenantAction, edit: Edit) -> TenantRecord:
        must_reach(action.caller, None)
        policy = view.policy
        if policy is not None and action.tenant in policy.tenants and store.find(action.tenant) is None:
            remedy = "change its keys there, or revoke one with `penstock tenant revoke-key`"
            raise Problem(409, f"{action.tenant} is a tenant of the policy: {remedy}")
        return await changed(store, action, edit)

    def _shown(record: TenantRecord, id: str) -> TenantKeyView:
        key = record.find_key(id)
        assert key is not None
        return key_view(record.name, key, view.now())

    return router


def _new_key(now: float, expires_in_s: float | None) -> tuple[TenantKey, str]:
    """Return a new key as it is stored, and the key itself."""
    id, secret = new_key(urandom(ID_BYTES + SECRET_BYTES))
    expires_at = None if expires_in_s is None else now + expires_in_s
    return TenantKey(id, key_digest(secret), now, expires_at), secret


def _sent(caller: Caller, secret: str) -> str:
    """Return the key as the response has it: empty for a dry run, in which no key was made."""
    return "" if caller.is_dry_run else secret


async def _keys(store: TenantStore, view: FleetView, name: str) -> list[TenantKeyView]:
    policy, now = view.policy, view.now()
    if policy is not None and (own := policy.tenants.get(name)) is not None:
        return [TenantKeyView(each[:ID_CHARS], name, KeyState.VALID, None) for each in own.key_digests]
    try:
        record = await store.read(name)
    except StoreError:
        record = store.find(name)
    if record is None:
        raise Problem(404, f"there is no tenant {name!r}; GET /v1/tenants lists them")
    return [key_view(name, key, now) for key in record.keys]
