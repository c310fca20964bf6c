"""`/v1/overrides`: set, list and lift overrides. `/v1/regions/{name}/drain` and `undrain` are shortcuts."""

from __future__ import annotations

from secrets import token_hex
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from adapters.access.callers import Caller, Role
from adapters.error_text import suggest
from adapters.store.config_store import StoreError
from control_plane.api.json_bodies import JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.preconditions import IfMatch, etag, must_match
from control_plane.api.responses import Problem, json_response
from control_plane.api.serving.client_location import require_policy, require_region
from control_plane.api.text_fields import Reason
from control_plane.auth.required_roles import Operator, Viewer, must_reach
from control_plane.overrides.override_fields import NO_END, BadExpiry, Expiry, LastResort, OverrideFields
from control_plane.overrides.override_resource import LiftedOverrides, OverrideStatus, digest, override_status
from control_plane.overrides.override_store import OverrideRefused, OverrideStore
from control_plane.page import Page
from control_plane.request_model import RequestModel
from control_plane.status.fleet_view import FleetView
from penstock.fleet.reported_endpoints import endpoints, omitted_endpoints
from penstock.overrides.last_endpoints import last_of
from penstock.overrides.maintenance import windows
from penstock.overrides.override_check import NO_REPORTS, OverrideRejection, RejectedBy
from penstock.overrides.overrides import WITHDRAWS, Override, OverrideKind, OverrideSet
from penstock.policy.policy import Policy

Force = Annotated[
    bool,
    Field(strict=True, description="Set the override although guard rails refuse it. Admins only; audited."),
]
NewId = Annotated[
    str,
    Path(
        pattern="^[a-z0-9][a-z0-9-]{0,62}$",
        description="Identifier of the new override, such as a UUID. `drill-` and `window-` are reserved.",
    ),
]
RESERVED_IDS = ("drill-", "window-")
"""Beginnings of the identifiers of the overrides that drills set and of maintenance windows."""

RegionName = Annotated[str, Path(max_length=253, description="Name of the region.")]


class LiftRequest(RequestModel):
    """Reason of a lift."""

    reason: Reason


class DrainRequest(RequestModel):
    """Reason and duration of a drain."""

    reason: Reason
    expires_in_s: Expiry = NO_END
    last_resort: LastResort = True
    force: Force = False


class OverrideRequest(OverrideFields):
    """An override to set."""

    reason: Reason
    force: Force = False


LiftBody = Annotated[LiftRequest, Depends(JsonBody(LiftRequest).read)]
DrainBody = Annotated[DrainRequest, Depends(JsonBody(DrainRequest).read)]
OverrideBody = Annotated[OverrideRequest, Depends(JsonBody(OverrideRequest).read)]


def routes(store: OverrideStore, view: FleetView) -> APIRouter:
    """Return the router of overrides."""
    router = APIRouter(prefix="/v1", tags=["overrides"])
    overrides = _Overrides(store, view)

    @router.get("/overrides", responses=returns(Page[OverrideStatus], "A page of overrides."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List overrides and open maintenance windows of the policy."""
        found = paginate(await overrides.list(), lambda status: status.override.id, cursor, limit)
        return json_response(found)

    @router.post("/overrides", status_code=201, responses=returns(OverrideStatus, "The override is set.", status=201))
    async def create(caller: Operator, body: OverrideBody) -> Response:
        """Set an override: drain, fail over, weight, freeze, or drain an endpoint.

        409 if an equal override is in force, or if guard rails refuse it. In the latter case `classes` has the
        residency classes and tenants that would have no region left, `names` the DNS names likewise, and `withdrawn`
        the share of the fleet's capacity that would be out of use, by model.
        """
        return await overrides.create(caller, body, token_hex(6))

    @router.put(
        "/overrides/{id}",
        status_code=201,
        responses=returns(OverrideStatus, "The override is set.", status=201)
        | returns(OverrideStatus, "This request has set the override before."),
    )
    async def create_named(caller: Operator, id: NewId, body: OverrideBody) -> Response:
        """Set an override with an identifier of the caller's choice. A repeated request changes nothing.

        409 as for POST, and if another override has the identifier. An identifier is free again once its override has
        ended and the region has returned along the failback ramp.
        """
        if id.startswith(RESERVED_IDS):
            raise Problem(422, f"id: {id} is reserved for drills and maintenance windows; choose another one")
        return await overrides.create(caller, body, id)

    @router.get("/overrides/{id}", responses=returns(OverrideStatus, "The override.", etag=True))
    async def override(caller: Viewer, id: Annotated[str, Path(max_length=200)]) -> Response:
        """Get one override."""
        return _response(await overrides.get(id))

    @router.delete("/overrides/{id}", responses=returns(OverrideStatus, "The override is lifted."))
    async def lift(
        caller: Operator,
        id: Annotated[str, Path(max_length=200)],
        reason: Annotated[Reason, Query()],
        if_match: IfMatch = None,
    ) -> Response:
        """Lift an override. The traffic of its region returns along the failback ramp."""
        return _response(await overrides.lift(caller, id, reason, if_match))

    @router.post(
        "/regions/{name}/drain", status_code=201, responses=returns(OverrideStatus, "The drain is set.", status=201)
    )
    async def drain(caller: Operator, name: RegionName, body: DrainBody) -> Response:
        """Drain a region: an override of kind `drain` for all of its traffic."""
        request = OverrideRequest(kind=OverrideKind.DRAIN, region=name, **body.model_dump())
        return await overrides.create(caller, request, token_hex(6))

    @router.post("/regions/{name}/undrain", responses=returns(LiftedOverrides, "The overrides are lifted."))
    async def undrain(caller: Operator, name: RegionName, body: LiftBody) -> Response:
        """Lift every drain and failover of a region."""
        return json_response(LiftedOverrides(await overrides.undrain(caller, name, body.reason)))

    return router


class _Overrides:
    """Operations on overrides on behalf of callers."""

    def __init__(self, store: OverrideStore, view: FleetView) -> None:
        self._store = store
        self._view = view

    async def list(self) -> list[OverrideStatus]:
        policy, now = self._policy(), self._view.now()
        own = (await self._read()).without_ended(now, policy.failover.failback_ramp_s).overrides
        return [*map(self._status, own), *(self._status(window, by_policy=True) for window in windows(policy, now))]

    async def get(self, id: str) -> OverrideStatus:
        found = (await self._read()).find(id)
        if found is not None:
            return self._status(found)
        for window in windows(self._policy(), self._view.now()):
            if window.id == id:
                return self._status(window, by_policy=True)
        raise _not_found(id)

    async def create(self, caller: Caller, request: OverrideRequest, id: str) -> Response:
        _authorise(caller, request)
        capacity = self._view.capacity()
        if capacity is None and not request.force and request.kind is not OverrideKind.FREEZE:
            raise Problem(503, NO_REPORTS, {"retry-after": "2"})
        policy = self._policy()
        for field in ("region", "origin"):
            if (name := getattr(request, field)) is not None:
                require_region(policy, name, field)
        try:
            wanted = request.override(id, caller.name, request.reason, self._view.now())
            if wanted.endpoint is not None:
                wanted = msgspec.structs.replace(wanted, last_of=await self._last_of(wanted))
            override = await self._store.begin(caller, wanted, policy, capacity or {}, force=request.force)
        except BadExpiry as bad:
            raise Problem(422, str(bad)) from None
        except OverrideRefused as refused:
            raise _problem(refused.rejection) from None
        headers = {"etag": etag(digest(override)), "location": f"/v1/overrides/{override.id}"}
        return json_response(self._status(override), 201 if override is wanted else 200, headers)

    async def _last_of(self, wanted: Override) -> tuple[str, ...]:
        """Return the models that lose their last endpoint of the region; raise 404 if no agent reports the endpoint."""
        overrides = (await self._read()).overrides
        snapshot, region, endpoint = self._view.snapshot, wanted.region or "", wanted.endpoint or ""
        reports = [each.report for each in endpoints(snapshot, self._view.now(), region)]
        names = {report.name for report in reports}
        if names and endpoint not in names and not omitted_endpoints(snapshot, region):
            remedy = suggest(endpoint, names, "GET /v1/endpoints lists them")
            raise Problem(404, f"the agents of {region} report no endpoint {endpoint!r}; {remedy}")
        return last_of(wanted, reports, overrides)

    async def lift(self, caller: Caller, id: str, reason: str, if_match: str | None) -> OverrideStatus:
        def check(override: Override) -> None:
            place = override.region if override.region is not None else override.origin
            must_reach(caller, None if place is None else {place})
            must_match(if_match, digest(override))

        try:
            return self._status(await self._store.lift(caller, id, reason, check))
        except KeyError:
            if any(window.id == id for window in windows(self._policy(), self._view.now())):
                raise Problem(409, "this is a maintenance window of the policy: change the policy") from None
            raise _not_found(id) from None

    async def undrain(self, caller: Caller, name: str, reason: str) -> tuple[OverrideStatus, ...]:
        must_reach(caller, {name})
        policy, now = self._policy(), self._view.now()
        lifted = [
            await self._store.lift(caller, override.id, reason, lambda _: None)
            for override in (await self._store.read()).overrides
            if override.region == name and override.kind in WITHDRAWS and now < override.ends_at
        ]
        if not lifted:
            require_region(policy, name, "region")
            active = [window for window in windows(policy, now) if window.region == name and window.holds(now)]
            because = f" except by the policy: {active[0].reason} ({active[0].author})" if active else ""
            raise Problem(409, f"{name} is not drained or failed over{because}")
        return tuple(map(self._status, lifted))

    def _policy(self) -> Policy:
        return require_policy(self._view.policy)

    def _status(self, override: Override, *, by_policy: bool = False) -> OverrideStatus:
        ramp_s = self._policy().failover.failback_ramp_s
        return override_status(override, self._view.now(), ramp_s, by_policy=by_policy)

    async def _read(self) -> OverrideSet:
        try:
            return await self._store.read()
        except StoreError:
            return self._store.seen


def _response(status: OverrideStatus) -> Response:
    return json_response(status, headers={"etag": etag(digest(status.override))})


def _authorise(caller: Caller, request: OverrideRequest) -> None:
    """Raise 403 unless the caller may change the region, and use `force` if it is set."""
    if request.kind is OverrideKind.FREEZE:
        must_reach(caller, None if request.origin is None else {request.origin})
    elif request.region is not None:
        must_reach(caller, {request.region})
    if request.force and not caller.role.covers(Role.ADMIN):
        raise Problem(403, f"{caller.name} has the role {caller.role.value}; force requires {Role.ADMIN.value}")


def _not_found(id: str) -> Problem:
    return Problem(404, f"there is no override {id[:64]}; it may have ended")


def _problem(refused: OverrideRejection) -> Problem:
    if refused.by is RejectedBy.INVALID:
        return Problem(422, refused.detail)
    if (against := refused.objection) is not None:
        return Problem(
            409,
            f"{refused.detail}; an admin can set it with force: true",
            guard=True,
            classes=msgspec.to_builtins(against.classes),
            withdrawn=dict(against.withdrawn),
            names=list(against.names),
        )
    members = {} if refused.standing is None else {"override": refused.standing.id}
    return Problem(409, refused.detail, None, **members)
