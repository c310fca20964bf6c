"""/v1/overrides: drain, fail over, weigh, freeze, and lift again; /v1/regions/{name}/drain and undrain for short."""

from __future__ import annotations

import math
from secrets import token_hex
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from adapters.store.config_store import StoreError
from control_plane.api.client_location import policy_in_force, region_of
from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, paged
from control_plane.api.preconditions import IfMatch, etag, must_match
from control_plane.api.problems import Problem
from control_plane.api.text_fields import Reason
from control_plane.auth.callers import Caller, Role
from control_plane.auth.required_roles import Operator, Viewer, must_reach
from control_plane.daemon import ControlPlane
from control_plane.overrides.override_resource import Lifted, OverridePage, OverrideStatus, digest, shown
from control_plane.overrides.override_store import Flawed, Guarded, OverrideRefused, Standing
from penstock.overrides.maintenance import windows
from penstock.overrides.overrides import WITHDRAWS, Override, OverrideKind, OverrideSet
from penstock.policy.policy import Policy

MAX_S = 366 * 86_400
"""Seconds that an override may last, unless it is said to have no end."""

_NO_TIME_S = 1e300
"""Seconds that no float need hold; what is not a number is not below it either."""


def _expiry(given: object) -> object:
    if given == "none":
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < _NO_TIME_S:
        return given
    raise PydanticCustomError("expiry", "give a number of seconds, or `none`")


Expiry = Annotated[
    float | Literal["none"],
    BeforeValidator(_expiry),
    Field(description="Seconds until it ends by itself; `none`: it holds until it is lifted.", examples=[7200, "none"]),
]
Guard = Annotated[
    bool,
    Field(strict=True, description="Do it although guard rails speak against it. Admins only; the audit log says so."),
]
RegionName = Annotated[str, Path(max_length=253, description="The region.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LiftRequest(_Body):
    """Why something ends."""

    reason: Reason


class DrainRequest(_Body):
    """Why a region is emptied, and for how long."""

    reason: Reason
    expires_in_s: Expiry
    last_resort: bool = Field(
        True, strict=True, description="Whether it goes on serving what no other permitted region can serve."
    )
    force: Guard = False


class OverrideRequest(DrainRequest):
    """What is wanted, for what traffic, why, and for how long."""

    kind: OverrideKind
    region: str | None = Field(None, max_length=253, description="The region; none for a freeze.")
    model: str | None = Field(None, max_length=512, description="Only this model's traffic.")
    origin: str | None = Field(None, max_length=253, description="Only what lands on this region.")
    value: float | None = Field(None, strict=True, description="Of a weight: from 0 to below 1.")


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows and changes overrides."""
    router = APIRouter(prefix="/v1", tags=["overrides"])
    overrides = _Overrides(control_plane)

    @router.get("/overrides", responses=gives(OverridePage, "A page of overrides."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """What is set, and what the policy's maintenance windows ask for now."""
        some = paged(await overrides.every(), lambda one: one.override.id, cursor, limit)
        return answer(OverridePage(some.items, some.next_cursor))

    @router.post("/overrides", status_code=201, responses=gives(OverrideStatus, "It holds.", status=201))
    async def begin(caller: Operator, body: OverrideRequest) -> Response:
        """Drain, fail over, weigh or freeze.

        Refused (409) where one that does the same is there, and where guard rails speak against it: then `classes` has
        the residency classes and tenants that would have no region left, and `withdrawn` how much of the fleet's
        capacity would be out of use, by model.
        """
        return await overrides.begin(caller, body)

    @router.get("/overrides/{id}", responses=gives(OverrideStatus, "The override.", etag=True))
    async def one(caller: Viewer, id: Annotated[str, Path(max_length=200)]) -> Response:
        """One override, by its id."""
        return _told(await overrides.one(id))

    @router.delete("/overrides/{id}", responses=gives(OverrideStatus, "It holds no longer."))
    async def lift(
        caller: Operator,
        id: Annotated[str, Path(max_length=200)],
        reason: Annotated[Reason, Query()],
        if_match: IfMatch = None,
    ) -> Response:
        """Lift an override; its region returns along the failback ramp."""
        return _told(await overrides.lift(caller, id, reason, if_match))

    @router.post("/regions/{name}/drain", status_code=201, responses=gives(OverrideStatus, "It holds.", status=201))
    async def drain(caller: Operator, name: RegionName, body: DrainRequest) -> Response:
        """Empty a region: the override of that kind, for all of its traffic."""
        return await overrides.begin(caller, OverrideRequest(kind=OverrideKind.DRAIN, region=name, **body.model_dump()))

    @router.post("/regions/{name}/undrain", responses=gives(Lifted, "They hold no longer."))
    async def undrain(caller: Operator, name: RegionName, body: LiftRequest) -> Response:
        """Let a region return: lift every drain and fail-over of it."""
        return answer(Lifted(await overrides.undrain(caller, name, body.reason)))

    return router


class _Overrides:
    """What callers see of overrides, and what they may do with them."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._ledger = control_plane.overrides

    async def every(self) -> list[OverrideStatus]:
        policy, now = self._policy(), self._control_plane.now()
        own = (await self._seen()).without_ended(now, policy.failover.failback_ramp_s).overrides
        return [*map(self._status, own), *(self._status(one, by_policy=True) for one in windows(policy, now))]

    async def one(self, id: str) -> OverrideStatus:
        found = (await self._seen()).find(id)
        if found is not None:
            return self._status(found)
        for window in windows(self._policy(), self._control_plane.now()):
            if window.id == id:
                return self._status(window, by_policy=True)
        raise _unknown(id)

    async def begin(self, caller: Caller, wanted: OverrideRequest) -> Response:
        _may(caller, wanted)
        capacity = self._control_plane.capacity()
        if capacity is None and not wanted.force and wanted.kind is not OverrideKind.FREEZE:
            detail = "regions have not reported to this control plane yet, so guard rails cannot be judged; try again"
            raise Problem(503, detail, {"retry-after": "2"})
        policy = self._policy()
        for field in ("region", "origin"):
            if (name := getattr(wanted, field)) is not None:
                region_of(policy, name, field)
        one = _wanted_by(caller, wanted, self._control_plane.now())
        try:
            one = await self._ledger.begin(caller, one, policy, capacity or {}, force=wanted.force)
        except OverrideRefused as refused:
            raise _problem(refused) from None
        headers = {"etag": etag(digest(one)), "location": f"/v1/overrides/{one.id}"}
        return answer(self._status(one), 201, headers)

    async def lift(self, caller: Caller, id: str, reason: str, if_match: str | None) -> OverrideStatus:
        def expected(there: Override) -> None:
            _reach(caller, there)
            must_match(if_match, digest(there))

        try:
            return self._status(await self._ledger.lift(caller, id, reason, expected))
        except KeyError:
            if any(window.id == id for window in windows(self._policy(), self._control_plane.now())):
                raise Problem(409, "a maintenance window of the policy: change it there") from None
            raise _unknown(id) from None

    async def undrain(self, caller: Caller, name: str, reason: str) -> tuple[OverrideStatus, ...]:
        must_reach(caller, {name})
        policy, now = self._policy(), self._control_plane.now()
        holding = [one for one in (await self._ledger.read()).overrides if one.kind in WITHDRAWS and now < one.ends_at]
        ended = [
            await self._ledger.lift(caller, one.id, reason, lambda there: None) for one in holding if one.region == name
        ]
        if not ended:
            region_of(policy, name, "region")
            held = [one for one in windows(policy, now) if one.region == name and one.holds(now)]
            because = f" but by the policy: {held[0].reason} ({held[0].author})" if held else ""
            raise Problem(409, f"{name} is not drained or failed over{because}")
        return tuple(map(self._status, ended))

    def _policy(self) -> Policy:
        return policy_in_force(self._control_plane.policy)

    def _status(self, one: Override, *, by_policy: bool = False) -> OverrideStatus:
        ramp_s = self._policy().failover.failback_ramp_s
        return shown(one, self._control_plane.now(), ramp_s, by_policy=by_policy)

    async def _seen(self) -> OverrideSet:
        try:
            return await self._ledger.read()
        except StoreError:
            return self._ledger.seen


def _told(one: OverrideStatus) -> Response:
    return answer(one, headers={"etag": etag(digest(one.override))})


def _wanted_by(caller: Caller, wanted: OverrideRequest, now: float) -> Override:
    return Override(
        id=token_hex(6),
        kind=wanted.kind,
        reason=wanted.reason,
        author=caller.name,
        begins_at=now,
        region=wanted.region,
        model=wanted.model,
        origin=wanted.origin,
        value=wanted.value,
        last_resort=wanted.last_resort,
        expires_at=None if wanted.expires_in_s == "none" else now + _seconds(wanted.expires_in_s),
    )


def _may(caller: Caller, wanted: OverrideRequest) -> None:
    if wanted.kind is OverrideKind.FREEZE:
        must_reach(caller, None if wanted.origin is None else {wanted.origin})
    elif wanted.region is not None:
        must_reach(caller, {wanted.region})
    if wanted.force and not caller.role.covers(Role.ADMIN):
        raise Problem(403, f"{caller.name} is {caller.role.value}, and going past guard rails needs {Role.ADMIN.value}")


def _reach(caller: Caller, there: Override) -> None:
    place = there.region if there.region is not None else there.origin
    must_reach(caller, None if place is None else {place})


def _seconds(given: float | str) -> float:
    seconds = float(given)
    if not 0.0 < seconds <= MAX_S or not math.isfinite(seconds):
        raise Problem(422, f"expires_in_s: give more than 0 and at most {MAX_S} seconds, or `none`")
    return seconds


def _unknown(id: str) -> Problem:
    return Problem(404, f"there is no override {id[:64]}; it may be over")


def _problem(refused: OverrideRefused) -> Problem:
    match refused:
        case Flawed():
            return Problem(422, str(refused))
        case Guarded():
            against = refused.objection
            return Problem(
                409,
                f"{refused}; send force: true if that is meant",
                guard=True,
                classes=msgspec.to_builtins(against.classes),
                withdrawn=dict(against.withdrawn),
            )
        case Standing():
            return Problem(409, str(refused), override=refused.override.id)
    return Problem(409, str(refused))
